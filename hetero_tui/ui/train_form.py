"""What the train form knows of each setting, and what it says of an order: from TrainingConfig itself. Pure."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from hetero_tui.events import HostState
from hetero_tui.state import IN_CLUSTER, State
from hetero_tui.ui import format as fmt
from remote_agent import protocol
from remote_agent.job_settings import described, written
from remote_agent.settings import TrainingConfig

FOR_SCRIPTS = frozenset({"num_gpu_workers", "num_cpu_workers"})
"""Settings that the fleet's devices make meaningless here."""

_UNITS = {
    "_seconds": "s",
    "_s": "s",
    "_steps": "steps",
    "_iterations": "steps",
    "_size": "samples",
    "_batch": "samples",
    "_every": "steps",
    "epochs": "epochs",
    "unit": "samples",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting: its name, its default as it is written, its unit ("" for none) and a line of help."""

    name: str
    default: str
    unit: str
    help: str


@cache
def settings() -> tuple[Setting, ...]:
    """All settings that a run on the fleet can have, in their order."""
    help_of = described(TrainingConfig.__doc__ or "")
    return tuple(
        Setting(
            name=field.name,
            default=written(field.default),
            unit=next((unit for ending, unit in _UNITS.items() if field.name.endswith(ending)), ""),
            help=help_of.get(field.name, ""),
        )
        for field in dataclasses.fields(TrainingConfig)
        if field.name not in FOR_SCRIPTS
    )


def own_settings(job: str) -> tuple[Setting, ...]:
    """Those of the job itself; none where it can't be read."""
    from hetero_tui.errors import OrderError
    from hetero_tui.runs.order import parse_job  # not for the first picture

    try:
        own = parse_job(job).own
    except OrderError:
        return ()
    return tuple(Setting(name=each.name, default=each.default, unit="", help=each.help) for each in own)


def parse_settings(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """``num_iterations=200 --with data.csv`` as settings, and files to send along; quotes as in a shell.

    Raises:
        ValueError: a word is not ``key=value``; the message says which.
    """
    found: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError("A quote is opened and not closed.") from None
    paths: list[str] = []
    coming = iter(words)
    for word in coming:
        if word == "--with":
            path = next(coming, "")
            if not path:
                raise ValueError("--with needs a file or folder after it.")
            paths.append(path)
            continue
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"“{word}” is not key=value, such as num_iterations=200.")
        found[key] = value
    return found, tuple(paths)


def foot(state: State, job: str, given: Mapping[str, str]) -> str:
    """What a run would be: how many hosts are ready, how long about, and how large the model is.

    Time and size are known of a job that was trained on this fleet before; else they are left out.
    """
    ready = sum(host.state in (*IN_CLUSTER, HostState.READY) for host in state.hosts)
    said = [f"{ready} of {fmt.plural(len(state.hosts), 'host')} ready"]
    before = next(
        (run for run in reversed(state.listed_runs or ()) if run.job == job and run.step and run.parameters), None
    )
    if before is None:
        return ", ".join(said)
    steps = given.get("num_iterations", str(before.iterations))
    seconds = _step_seconds(state, before)
    if steps.isdigit() and seconds is not None:
        said.append(f"about {fmt.duration(int(steps) * seconds)}")
    return ", ".join([*said, f"{before.parameters:,} parameters"])


def _step_seconds(state: State, before: protocol.RunSummary) -> float | None:
    """Of a step of that run: as measured where it is on the screen, else from its whole time, its start included."""
    if state.run is not None and state.run.run == before.id and state.run.step_seconds is not None:
        return state.run.step_seconds
    if before.started is None or before.ended is None:
        return None
    return (before.ended - before.started) / before.step
