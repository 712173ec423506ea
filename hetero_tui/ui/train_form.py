"""Describes each setting for the train form, and checks an order, both from TrainingConfig itself. Pure."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from hetero_tui.state import State
from hetero_tui.ui import format as fmt
from hetero_tui.ui.header import script_under_way
from hetero_tui.ui.sentences import ready_words
from remote_agent.job_settings import described, written
from remote_agent.kinds import spelt_out
from remote_agent.settings import FOR_SCRIPTS, OF_ORDERS, WHEN_RESUMED, TrainingConfig

_SAME_STEPS = frozenset({*WHEN_RESUMED, "seed"}) - {"epochs"}
"""Settings with which the model, and what a step takes, are what they were in an earlier run; of no others, and of none
of the job's own, that is known."""

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
            default=written(OF_ORDERS.get(field.name, field.default)),
            unit=next((unit for ending, unit in _UNITS.items() if field.name.endswith(ending)), ""),
            help=help_of.get(field.name, ""),
        )
        for field in dataclasses.fields(TrainingConfig)
        if field.name not in FOR_SCRIPTS
    )


def settings_of(job: str) -> tuple[Setting, ...]:
    """Those of the job itself, then all others with the values that it has in the place of their defaults."""
    from hetero_tui.errors import OrderError
    from hetero_tui.runs.description import chosen_by, own_settings  # not for the first picture
    from hetero_tui.runs.order import parse_job

    try:
        found = parse_job(job)
        chosen = chosen_by(found)
    except OrderError:
        return settings()
    own = tuple(Setting(name=each.name, default=each.default, unit="", help=each.help) for each in own_settings(found))
    others = (
        dataclasses.replace(each, default=chosen[each.name]) if each.name in chosen else each for each in settings()
    )
    return (*own, *others)


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


def foot(state: State, job: str, given: Mapping[str, str], width: int = 200) -> str:
    """What a run would be: how many hosts are ready, how long about, and how large the model is; in ``width`` cells.

    Time and size are known of a job that was trained on this fleet before; else, and if settings may make it another
    model or other steps, they are left out.
    """
    script = script_under_way(state)
    beside = f", in use by {script.id}" if script is not None else ""
    said = [f"{ready_words(state, 'host')[1]}{beside}"]
    known, names = _earlier(state, job), [each.name for each in settings_of(job)]
    given = {spelt_out(name, names): value for name, value in given.items()}
    if known is None or given.keys() - _SAME_STEPS:
        return ", ".join(said)
    parameters, seconds = known
    usual = {each.name: each.default for each in settings_of(job)}
    steps = given.get("num_iterations") or usual["num_iterations"]
    in_epochs = usual["epochs"] != "0" and "num_iterations" not in given
    if steps.isdigit() and seconds is not None and not in_epochs:
        said.append(f"about {fmt.duration(int(steps) * seconds)} of steps")
    said.append(f"{parameters:,} parameters")
    while len(said) > 1 and len(", ".join(said)) > width:
        said.pop()
    return ", ".join(said)


def _earlier(state: State, job: str) -> tuple[int, float | None] | None:
    """Parameters and seconds of a step of the newest run of this job: on the screen, or else of those that are listed.

    Seconds are measured, or else taken from the whole time, start included.
    """
    shown = state.run
    if shown is not None and shown.job == job and shown.step and shown.parameters:
        return shown.parameters, shown.step_seconds
    for run in reversed(state.listed_runs or ()):
        if run.job != job or not run.step or not run.parameters:
            continue
        if run.step_s is not None or run.started is None or run.ended is None:
            return run.parameters, run.step_s
        return run.parameters, (run.ended - run.started - run.away_s) / run.step
    return None
