"""A row of the table, measured: struck several times in one run, far enough apart that the run has recovered.

Where a fault can't be struck twice in a run (the head is another host afterwards), each time has a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.faulty import figures
from benchmarks.faulty.rows import Figure, Row
from benchmarks.faulty.stage import PIPELINE, Stage, Verdict
from benchmarks.faulty.strikes import RECOVERED_S, SETTLE_STEPS, Blow
from remote_agent import protocol
from remote_agent.training.coordinator.journal import in_words
from tests.lab.following import Following

Say = Callable[[Following, int, int], None]
"""Takes the command that follows the run, and how many events and lines for people there were before the fault."""


def silent(follower: Following, events: int, lines: int) -> None:
    """Says nothing."""


def tell(follower: Following, events: int, lines: int) -> None:
    """Print what a user saw of the fault: the events but for the steps, and the command's own lines."""
    begun = follower.events[events - 1].time
    for one in follower.events[events:]:
        if not isinstance(one, protocol.Step | protocol.CheckpointSaved):
            print(f"    {one.time - begun:6.1f} s {in_words(one)[:400]}")
    for line in follower.said[lines:]:
        print(f"    | {line[:400]}", flush=True)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row with one strategy: each figure's values, how the runs ended, and why there is no more of it."""

    row: Row
    strategy: str
    values: Mapping[Figure, tuple[float, ...]]
    noise: float
    verdicts: tuple[Verdict, ...]
    failure: str = ""

    @property
    def is_good(self) -> bool:
        """Every value is within its budget, and every run ended as it has to."""
        within = all(
            value <= figure.budget
            for figure, values in self.values.items()
            if figure.budget is not None
            for value in values
        )
        return within and not self.failure and all(verdict.is_good for verdict in self.verdicts)


def carry_out(stage: Stage, row: Row, strategy: str, repetitions: int, say: Say = silent) -> Result:
    """Strike so often, and measure; what goes wrong is the result's ``failure``."""
    stall = Figure("stall", "s", row.stall_with(strategy))
    values: dict[Figure, list[float]] = {stall: [], **{figure: [] for figure in row.figures.values()}}
    verdicts: list[Verdict] = []
    noise, failure = 0.0, ""
    runs = [[number] for number in range(repetitions)] if row.is_alone(strategy) else [list(range(repetitions))]
    for numbers in runs:
        try:
            blows, marks, verdict = _one_run(stage, row, strategy, numbers, say)
        except (RuntimeError, AssertionError, OSError, ValueError) as error:
            failure = f"{type(error).__name__}: {error}"
            break
        verdicts.append(verdict)
        for blow in blows:
            values[stall].append(figures.stall(marks, blow.begin, blow.end))
            for key, value in blow.values.items():
                values[row.figures[key]].append(value)
        noise = max(noise, figures.noise(marks, ((blow.begin, blow.end) for blow in blows)))
    return Result(
        row=row,
        strategy=strategy,
        values={figure: tuple(found) for figure, found in values.items()},
        noise=noise,
        verdicts=tuple(verdicts),
        failure=failure,
    )


def _one_run(
    stage: Stage, row: Row, strategy: str, numbers: list[int], say: Say
) -> tuple[list[Blow], tuple[figures.Mark, ...], Verdict]:
    """A run with these repetitions in it."""
    shards = {"shards": len(stage.lab.hosts)} if row.sharded and strategy != PIPELINE else {}
    follower = stage.train(strategy, **row.settings, **shards)
    blows: list[Blow] = []
    try:
        for number in numbers:
            follower.until_step(follower.step + SETTLE_STEPS, RECOVERED_S, after=len(follower.events))
            seen, said = len(follower.events), len(follower.said)
            try:
                blows.append(row.strike(stage, follower, number))
            finally:
                say(follower, seen, said)
            follower = blows[-1].attached or follower
        follower.until_step(follower.step + SETTLE_STEPS, RECOVERED_S, after=len(follower.events))
        verdict = stage.finish(follower, strategy)
        return blows, figures.progress(follower.events), verdict
    finally:
        follower.kill()
        stage.bring_back()
