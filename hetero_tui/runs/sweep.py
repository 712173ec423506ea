"""Reads and checks the ``--param`` texts of a sweep before anything starts, and reads a sweep's result.

How a sweep is carried out is in :mod:`remote_agent.sweep`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

from hetero_tui.errors import OrderError, RunError, SweepError
from hetero_tui.fleet import agent
from hetero_tui.runs.order import (
    NO_VALIDATION,
    Order,
    has_no_validation,
    own_hints,
    parse_settings,
    read_order,
    rest_of,
    without_effect,
)
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent import settings as fields
from remote_agent.goals import Goal
from remote_agent.kinds import convert, nearest, spelt_out
from remote_agent.search import Parameter, Search

STEP = "sweep"

MAX_TRIALS = 10_000

HINT = "for example --param learning_rate=1e-4..1e-2:log --param batch_size=16,32,64"

NOT_SWEPT = {
    "num_iterations": "it says how long a trial is: use --set",
    "epochs": "it says how long a trial is: use --set",
    "strategy": "each trial is on one device",
    "shards": "each trial is on one device",
    "in_flight": "each trial is on one device",
    "rebalance": "each trial is on one device",
    "slice_deadline_s": "each trial is on one device",
    "allow": "each trial is on one device",
    "measure_seconds": "it changes no figure",
    "checkpoint_seconds": "it changes no figure",
    "checkpoint_every": "it changes no figure",
    "keep_checkpoints": "it changes no figure",
    "log_to": "it changes no figure",
}
"""Settings that are no parameters of a sweep, and why."""

_RANGE = re.compile(r"(?P<low>[^.:]*(?:\.(?!\.)[^.:]*)*)\.\.(?P<high>[^:]*?)(?P<scale>:\w*)?")


def read_sweep(
    job: str,
    parameters: Sequence[str],
    trials: int,
    metric: str = "loss",
    pairs: Sequence[str] = (),
    paths: Sequence[str] = (),
) -> Order:
    """The order that a sweep's words make: as :func:`~hetero_tui.runs.order.read_order`, with what is looked for.

    Args:
        parameters: ``name=low..high``, ``name=low..high:log`` or ``name=one,other`` each.
        metric: ``loss``, or a figure of the validation, as ``keep_best`` takes it.

    Raises:
        OrderError: with every mistake at once.
    """
    mistakes: list[str] = []
    hints: list[str] = []
    order = None
    swept = {text.partition("=")[0].strip() for text in parameters}
    try:
        order = read_order(job, pairs, paths, swept)
    except OrderError as error:
        mistakes += error.mistakes
        hints.append(error.hint)
    if not 1 <= trials <= MAX_TRIALS:
        mistakes.append(f"--trials {trials}: must be 1 to {MAX_TRIALS:,}")
    goal = Goal("loss")
    try:
        goal = Goal.of(metric)
    except ValueError as error:
        mistakes.append(f"--by {metric}: {error}")
    own: Mapping[str, Any] = own_hints(order.job) if order is not None else {}
    known = {**own, **fields.hints()}
    given = order.settings if order is not None else parse_settings(pairs)[0]
    rest = rest_of(order.job) if order is not None else {}
    found: dict[str, Parameter] = {}
    wrong: list[str] = []
    for text in parameters:
        try:
            parameter = parse_parameter(text, known, is_open=order is None or order.job.is_open)
            _refuse(parameter, given, found)
            found[parameter.name] = parameter
        except ValueError as error:
            wrong.append(f"--param {text}: {error}")
            continue
        ends = parameter.choices or (parameter.at(0.0), parameter.at(1.0))
        if order is not None:
            said = [
                mistake
                for end in ends
                for mistake in fields.check(
                    {**given, parameter.name: end},
                    own=own,
                    is_open=order.job.is_open,
                    rest=rest,
                    swept=swept - {parameter.name},
                )
            ]
            wrong += [f"--param {text}: {mistake}" for mistake in dict.fromkeys(said)]
            why = without_effect(order.job, given, swept).get(parameter.name)
            wrong += [f"--param {text}: has no effect: {why}"] if why and not said else []
    if fields.values_of(given).get("shards", 0) > 1:
        mistakes.append(f"--set shards={given['shards']}: {NOT_SWEPT['shards']}")
    if order is not None and has_no_validation(order.job):
        wrong += [f"--param {name}: {NO_VALIDATION}" for name in fields.OF_VALIDATION if name in found]
        mistakes += [f"--by {metric}: {NO_VALIDATION}"] if goal.metric != "loss" else []
    if not parameters:
        wrong.append("there is no --param: nothing differs between the trials")
    if "batch_size" in found and "epochs" not in given:
        wrong.append("--param batch_size: needs --set epochs=N, so that every trial sees as many samples")
    if wrong:
        mistakes += wrong
        hints.append(HINT)
    if mistakes or order is None:
        raise SweepError(tuple(mistakes), hint="; ".join(filter(None, hints)))
    seed = convert(fields.hints()["seed"], given.get("seed", "0"), parse=True)
    search = Search(parameters=tuple(found.values()), trials=trials, metric=goal.metric, sign=goal.sign, seed=seed)
    search = replace(search, trials=int(min(trials, search.combinations)))  # more would be the same again
    return replace(order, script=(), search=search)


def _refuse(parameter: Parameter, given: Mapping[str, str], found: Mapping[str, Parameter]) -> None:
    """Raises ValueError where a parameter can't be swept beside the settings and those that were ``found``."""
    if parameter.name in NOT_SWEPT:
        raise ValueError(f"{parameter.name} is no parameter of a sweep: {NOT_SWEPT[parameter.name]}")
    if parameter.name in found:
        raise ValueError(f"{parameter.name} is given twice")
    if parameter.name in given:
        raise ValueError(f"--set {parameter.name} gives all trials the same")


def parse_parameter(text: str, known: Mapping[str, Any], *, is_open: bool = False) -> Parameter:
    """The parameter that ``text`` describes, by the ``known`` settings' hints; ``is_open``: there may be others.

    Raises:
        ValueError: what is wrong with it.
    """
    name, equals, values = text.partition("=")
    name, values = name.strip(), values.strip()
    if not equals or not name.isidentifier() or not values:
        raise ValueError("is not NAME=LOW..HIGH or NAME=ONE,OTHER")
    if name not in known and not is_open:
        full = spelt_out(name, known)  # a job of which only its host knows all may have one of that name
        if full not in known:
            meant = nearest(name, known)
            raise ValueError("no such setting" + (f"; did you mean {meant!r}?" if meant else ""))
        name = full
    if ".." not in values:
        choices = tuple(value.strip() for value in values.split(","))
        if len(choices) < 2 or not all(choices) or len(set(choices)) < len(choices):
            raise ValueError("needs LOW..HIGH, or different values with commas between them")
        return Parameter(name=name, choices=choices)
    match = _RANGE.fullmatch(values)
    if match is None or "..." in values or match["scale"] not in (None, ":log"):
        raise ValueError("a range is LOW..HIGH or LOW..HIGH:log")
    try:
        low, high = float(match["low"]), float(match["high"])
    except ValueError:
        raise ValueError("the ends of a range are numbers") from None
    if not (float("-inf") < low < high < float("inf")):
        raise ValueError(f"{match['low']} is not below {match['high']}")
    is_log = match["scale"] is not None
    if is_log and low <= 0:
        raise ValueError("a logarithmic range begins above 0")
    kind = _kind(known[name]) if name in known else None
    if kind in (bool, str):
        raise ValueError(f"{name} is no number: give its values with commas between them")
    whole = kind is int or (kind is None and all(re.fullmatch(r"-?\d+", match[end]) for end in ("low", "high")))
    if whole and not (low.is_integer() and high.is_integer()):
        raise ValueError(f"{name} is a whole number")
    return Parameter(name=name, low=low, high=high, log=is_log, whole=whole)


def _kind(hint: Any) -> type | None:
    """The plain type behind an annotation, None of optional ones aside; None: it is not known."""
    while get_args(hint):
        options = [option for option in get_args(hint) if option is not type(None)]
        hint = options[0] if get_origin(hint) is not None else hint
    return hint if isinstance(hint, type) and hint in (bool, int, float, str) else None


async def result_of(transport: Transport, cluster: str, run: str) -> protocol.SweepResult:
    """How a sweep on that host went.

    Raises:
        RunError: it is none, or has no result yet.
        HostError: the host can't be asked.
    """
    words = ("--folder", agent.home_folder(cluster), "--result", run)
    done = await agent.call(transport, cluster, "sweep", *words, step=STEP)
    if done is None or done.exit_status != 0:
        said = last_lines(done.stderr, 1) if done is not None else "no agent there"
        raise RunError(f"{run}: {said}", step=STEP, hint="`hetero-tui runs` lists all; a sweep has it at its end")
    return agent.answer(protocol.SweepResult, transport.host, done, step=STEP)


def order_from(
    result: protocol.SweepResult, job: str | None, pairs: Sequence[str] = (), paths: Sequence[str] = ()
) -> Order:
    """The order to train with the best settings of a sweep; ``pairs`` of the user count more.

    Raises:
        RunError: none of its trials ended well.
        OrderError: the job is a file that is not here, or what :func:`~hetero_tui.runs.order.read_order` says.
    """
    best = result.trials[0] if result.trials else None
    if best is None or best.cause:
        raise RunError(f"{result.run}: none of its trials ended well", step=STEP, hint="sweep other ranges")
    if job is None and not Path(result.job.partition(":")[0]).is_file() and ":" in result.job:
        hint = f"name it: hetero-tui train path/to/{result.job} --from {result.run}"
        raise OrderError((f"{result.job}, which was swept, is not in this folder",), hint=hint)
    given, wrong = parse_settings(pairs)
    given = fields.with_whole_names(given)
    swept = {**{name: str(value) for name, value in result.config.items()}, **best.settings}
    if set(fields.GOALS) & set(given):  # one of them says how long
        swept = {name: value for name, value in swept.items() if name not in fields.GOALS}
    settings = {**swept, **given}
    return read_order(job or result.job, [*(f"{name}={value}" for name, value in settings.items()), *wrong], paths)
