"""``plan --race``: the two ways that are predicted to be best train for some seconds each, and are compared.

Each is a run of its own, from the same first weights and over the same samples, and is stopped after its seconds. By
speed the samples a second count, without the first steps; by loss how much it fell a second, which is what ways with
other weights than one process would have must be compared by. Deciding and counting are pure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, Protocol

from hetero_tui.errors import HeteroTuiError, UsageError
from hetero_tui.events import Level
from hetero_tui.runs.order import Order
from hetero_tui.text import HostText
from remote_agent import protocol
from remote_agent.planning.choice import Choice
from remote_agent.planning.verdicts import names, rate, seconds
from remote_agent.planning.ways import LOCAL, Prediction, Way

By = Literal["speed", "loss"]

RACE_S = 20.0
"""Seconds of steps of each."""

SKIPPED = 3
"""First steps that do not count: nothing was in flight before them, and shares settle."""

LEAST_STEPS = 2 * SKIPPED
"""Steps that are waited for, however long they take."""

ENDS = 0.1
"""Part of the steps at either end over which a loss is averaged."""


class Runs(Protocol):
    """What starts, follows and stops runs: a session."""

    async def launch(self, order: Order) -> str:
        """Start a run; the answer is its name."""

    def events_of(self, run: str | None) -> AsyncGenerator[tuple[HostText, protocol.Event]]:
        """Its events, to its end."""

    async def stop_run(self, run: str | None = None) -> object:
        """Have it end after its step."""


@dataclass(frozen=True, kw_only=True)
class Raced:
    """A way, and what its run did.

    Attributes:
        steps: that count.
        step_s: the median step.
        speed: samples a second.
        fall: of the loss, a second; None: a loss was no number.
        error: why it counts for nothing; empty: it does count.
    """

    predicted: Prediction
    run: str = ""
    steps: int = 0
    step_s: float = 0.0
    speed: float = 0.0
    fall: float | None = None
    error: str = ""

    def score(self, by: By) -> float:
        """More is better."""
        if self.error:
            return float("-inf")
        value = self.speed if by == "speed" else self.fall
        return value if value is not None else float("-inf")


def racers(choice: Choice) -> tuple[Prediction, Prediction]:
    """The way that was chosen, and the fastest other one; raises UsageError if there is no other one."""
    alone = [choice.alone] if choice.alone is not None else []
    everything = [choice.everything] if choice.everything is not None else []
    others = [each for each in (*choice.ways, *alone, *everything) if _what(each.way) != _what(choice.best.way)]
    if not others:
        raise UsageError("there is only one way to train this", step="plan", hint="leave out --race")
    return choice.best, max(others, key=lambda each: each.speed)


def _what(way: Way) -> tuple[object, ...]:
    """What a run of it differs in: on one host, its strategy makes no difference."""
    one = len(way.hosts) == 1 and way.strategy != LOCAL
    local = (way.local_steps, way.overlap) if way.strategy == LOCAL else ()
    return way.hosts, "" if one else way.strategy, "" if one else way.codec, local


def order_of(order: Order, way: Way) -> Order:
    """The order, to be trained in this way."""
    settings = dict(order.settings) | {"strategy": way.strategy, "codec": way.codec}
    if way.strategy == LOCAL:
        settings |= {"local_steps": str(way.local_steps), "overlap": str(way.overlap).lower()}
    return dataclasses.replace(order, settings=settings, hosts=way.hosts)


def raced(predicted: Prediction, run: str, steps: Sequence[protocol.Step], error: str = "") -> Raced:
    """What a run's steps come to."""
    counted = steps[SKIPPED:]
    if error or not counted:
        return Raced(predicted=predicted, run=run, error=error or f"it made {len(steps)} steps only")
    total_s = sum(step.seconds for step in counted)
    ends = max(1, int(ENDS * len(steps)))
    losses = [step.loss for step in (*steps[:ends], *steps[-ends:])]
    known = [loss for loss in losses if loss is not None]
    fall = None
    if len(known) == len(losses):
        fall = (statistics.fmean(known[:ends]) - statistics.fmean(known[ends:])) / sum(step.seconds for step in steps)
    return Raced(
        predicted=predicted,
        run=run,
        steps=len(counted),
        step_s=statistics.median(step.seconds for step in counted),
        speed=sum(step.samples for step in counted) / total_s,
        fall=fall,
    )


async def race(
    runs: Runs, order: Order, choice: Choice, notice: Callable[[Level, str], None], lasts_s: float = RACE_S
) -> tuple[Raced, ...]:
    """Have both train, one after the other.

    Raises:
        UsageError: there is only one way, or a run is under way.
        HeteroTuiError: a run could not be started or followed.
    """
    found = []
    for predicted in racers(choice):
        notice(Level.INFO, f"{title(predicted.way)} trains for {lasts_s:.0f} s ...")
        run = await runs.launch(order_of(order, predicted.way))
        found.append(await _watched(runs, run, predicted, lasts_s))
    return tuple(found)


async def _watched(runs: Runs, run: str, predicted: Prediction, lasts_s: float) -> Raced:
    """Follow a run, and stop it once it has made steps for so long; it ends by itself where it is shorter."""
    steps: list[protocol.Step] = []
    error, begun, stopped, ended = "", 0.0, False, False
    try:
        async with aclosing(runs.events_of(run)) as coming:
            async for _, event in coming:
                match event:
                    case protocol.Step() if not stopped:
                        steps.append(event)
                        begun = begun or time.monotonic()
                        if time.monotonic() - begun >= lasts_s and len(steps) > LEAST_STEPS:
                            stopped = True
                            await runs.stop_run(run)
                    case protocol.RunFailed(cause=cause):
                        error = cause
                    case _:
                        pass
        ended = True
    finally:
        if not ended:  # the race is broken off: its run is not to go on
            with contextlib.suppress(HeteroTuiError):
                await runs.stop_run(run)
    return raced(predicted, run, steps, error)


# --- In words --------------------------------------------------------------------------------------------------------

HEADINGS = ["RACE", "HOSTS", "PREDICTED", "MEASURED", "SAMPLES/S", "LOSS/S", "RUN"]


def title(way: Way) -> str:
    """``sync on a and b``, ``a alone``."""
    return f"{way.hosts[0]} alone" if len(way.hosts) == 1 else f"{way.title} on {names(way.hosts)}"


def rows(found: Sequence[Raced]) -> list[list[str]]:
    """A row for each."""
    return [
        [
            each.predicted.way.title,
            names(each.predicted.way.hosts),
            seconds(each.predicted.seconds),
            "failed" if each.error else seconds(each.step_s),
            "-" if each.error else rate(each.speed),
            "-" if each.fall is None else f"{-each.fall:+.3g}",
            each.run,
        ]
        for each in found
    ]


def verdict(found: Sequence[Raced], by: By) -> tuple[str, ...]:
    """Which of them won, and which of them failed."""
    said = [f"{title(each.predicted.way)} failed: {each.error}" for each in found if each.error]
    best = max(found, key=lambda each: each.score(by))
    if best.score(by) == float("-inf"):
        return (*said, "neither can be judged")
    what = {"speed": "samples a second", "loss": "of the loss a second"}[by]
    told = rate if by == "speed" else "{:.3g}".format
    figures = " against ".join(told(each.score(by)) for each in sorted(found, key=lambda each: each is not best))
    agrees = "as predicted" if best is found[0] else f"though {title(found[0].predicted.way)} was predicted to be best"
    said.append(f"{title(best.predicted.way)} won by {by}, {agrees}: {figures} {what}".replace("-inf", "none"))
    exact = all(each.predicted.way.exact or len(each.predicted.way.hosts) == 1 for each in found)
    if by == "speed" and not exact:
        said.append("speed is not how soon a loss is reached, and one of them is not exact: see --by loss")
    return tuple(said)


def document(found: Sequence[Raced], by: By) -> dict[str, object]:
    """For scripts."""
    best = max(found, key=lambda each: each.score(by))
    return {
        "by": by,
        "winner": best.run if best.score(by) > float("-inf") else None,
        "runs": [
            {
                "run": each.run,
                "strategy": each.predicted.way.strategy,
                "codec": each.predicted.way.codec,
                "hosts": list(each.predicted.way.hosts),
                "predicted_s": each.predicted.seconds,
                "step_s": each.step_s or None,
                "samples_per_second": each.speed or None,
                "loss_fall_per_second": each.fall,
                "steps": each.steps,
                "error": each.error or None,
            }
            for each in found
        ],
    }
