"""The command that looks for good settings; see :mod:`hetero_tui.cli`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hetero_tui import commanding
from hetero_tui.cli_options import AcceptKeys, Job, Json, Plain, Settings, With
from hetero_tui.launcher import DONE
from hetero_tui.narration import Output

if TYPE_CHECKING:  # asyncssh takes a while to import: `--help` does without
    from hetero_tui.session import Session

commands = typer.Typer()


@commands.command()
def sweep(
    context: typer.Context,
    job: Job,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=RANGE",
            help="A setting that differs: lr=1e-4..1e-2:log, batch_size=16..64, schedule=linear,cosine; repeatable.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", help="How many; each is a run on one device.")] = 20,
    metric: Annotated[
        str,
        typer.Option("--by", metavar="METRIC", help="What is to be good: loss, or a figure as keep_best takes it."),
    ] = "loss",
    settings: Settings = None,
    paths: With = None,
    as_json: Json = False,
    plain: Plain = False,
    accept: AcceptKeys = False,
) -> None:
    """Look for good settings by many short runs. One a device; the worse ones are stopped early (ASHA)."""
    from hetero_tui.runs.sweep import read_sweep

    output = Output(as_json, plain)
    words = (job, parameters or (), trials, metric, settings or (), paths or ())
    order = commanding.checked(output, lambda: read_sweep(*words))

    async def work(session: Session, output: Output) -> int:
        name = await session.launch(order)
        output.say(f"{name} is on its way; `hetero-tui attach {name}` shows its output again")
        code = await commanding.follow_script(session, output, name)
        if code == DONE:
            output.say(f"`hetero-tui train --from {name}` trains with the best settings on all devices")
        return code

    commanding.in_session(context, output, accept, work, watch=True)
