"""Options and arguments that several commands have, and what a shell may complete them with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetero_tui.launcher import INVENTORY
from remote_agent import protocol

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for scripts.")]
Plain = Annotated[bool, typer.Option("--plain", help="No colour, no boxes.")]
AcceptKeys = Annotated[
    bool,
    typer.Option("--accept-new-host-keys", help="Trust hosts that were never seen; a changed key is refused even so."),
]
Run = Annotated[str | None, typer.Argument(metavar="RUN", help="The run's name; the newest if not given.")]
LiveRun = Annotated[
    str | None, typer.Argument(metavar="RUN", help="The run's name; the only one under way if not given.")
]
Weights = Annotated[
    protocol.Choice | None,
    typer.Option(
        "--weights",
        help="Of the newest checkpoint (default), of the best (keep_best), or their moving average (ema_decay).",
    ),
]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="PATH",
        help="Send a file or folder along, such as the job's data; the Python files beside it go by themselves."
        " Repeatable.",
    ),
]


def hosts(context: typer.Context, incomplete: str) -> list[str]:
    """The inventory's hosts; none where it can't be read: a shell is no place for its mistakes."""
    from hetero_tui.errors import HeteroTuiError
    from hetero_tui.inventory.file import load

    try:
        inventory = load(Path(context.find_root().params.get("inventory") or INVENTORY))
    except HeteroTuiError:
        return []
    return [host.name for host in inventory.hosts if host.name.startswith(incomplete)]


def jobs(incomplete: str) -> list[str]:
    """The ready jobs, and Python files here, which still need ``:Name``."""
    from hetero_tui.runs.order import READY_JOBS

    here = sorted(f"{path}:" for path in Path().glob("*.py"))
    return [job for job in (*READY_JOBS, *here) if job.startswith(incomplete)]


def scripts(incomplete: str) -> list[str]:
    """Python files here."""
    return [str(path) for path in sorted(Path().glob("*.py")) if str(path).startswith(incomplete)]


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """The names of settings, with their ``=``; those of the job itself first."""
    from hetero_tui.errors import OrderError
    from hetero_tui.runs.description import own_settings
    from hetero_tui.runs.order import parse_job
    from remote_agent.settings import names

    try:
        own = [each.name for each in own_settings(parse_job(str(context.params.get("job") or "")))]
    except OrderError:
        own = []
    return [f"{name}=" for name in (*own, *names()) if name.startswith(incomplete)]


Host = Annotated[str, typer.Argument(metavar="HOST", help="A host of the inventory.", autocompletion=hosts)]
_JOB = typer.Argument(
    metavar="JOB",
    help="A ready job (digits, text, hf-lm) or path/to/file.py:Name (no name: its only job).",
    autocompletion=jobs,
)
Job = Annotated[str, _JOB]
JobOrNone = Annotated[str | None, _JOB]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a TrainingConfig field, or one of the job's own; repeatable.",
        autocompletion=settings,
    ),
]
LogTo = Annotated[
    str | None,
    typer.Option(
        "--log-to", metavar="csv|tensorboard", help="Also write the figures into the run's folder: --set log_to=..."
    ),
]


def with_log(pairs: list[str] | None, log_to: str | None) -> list[str]:
    """``--log-to`` as the setting that it is."""
    return [*(pairs or ()), *([f"log_to={log_to}"] if log_to is not None else [])]
