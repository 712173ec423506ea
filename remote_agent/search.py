"""A sweep's decisions: which settings its trials get, and which are stopped early. Pure, and shared by both sides.

Values are drawn at random, each parameter's range cut into as many strata as there are trials with one value in each
(Latin hypercube sampling: McKay et al., 1979); where there are just as many combinations, each is tried once.

Trials are stopped by asynchronous successive halving (ASHA: Li et al., 2020, in the form that stops instead of
pausing): at a third, a ninth and a twenty-seventh of its steps a trial goes on if it is among the best third of those
that came so far. No trial waits for another.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

REDUCTION = 3
"""Of the trials that reach a rung, one in so many goes on."""

RUNGS = 3
"""A trial is judged at most so often before its end."""

MOST_LISTED = 1 << 31
"""Whole numbers of a range that are listed."""

WINDOW = 4
"""A trial's training loss is the mean over the last quarter of the steps that it made: one batch alone says little."""

LEAST = 4 * WINDOW
"""A trial is judged after no fewer steps, so that this is the mean of four losses."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A setting that the trials differ in: a range, on a logarithmic scale or not, or ``choices``.

    ``whole``: only whole numbers.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[str, ...] = ()

    @property
    def every(self) -> Sequence[object] | None:
        """All values; None: there are too many to list."""
        if self.choices:
            return self.choices
        can_be_listed = self.whole and self.high - self.low < MOST_LISTED
        return range(round(self.low), round(self.high) + 1) if can_be_listed else None

    def at(self, place: float) -> str:
        """The value at ``place`` in 0..1 of the range, as ``--set`` takes it."""
        if self.choices:
            return self.choices[min(int(place * len(self.choices)), len(self.choices) - 1)]
        # A whole number has as much of the range as its neighbours, those at the ends included.
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole and not self.log else (self.low, self.high)
        value = low * (high / low) ** place if self.log else low + (high - low) * place
        if self.whole:
            return str(round(min(max(value, self.low), self.high)))
        return f"{min(max(float(f'{value:.4g}'), self.low), self.high):g}"


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a sweep looks for: ``trials`` trials over ``parameters``; ``metric`` and ``sign`` say what is better.

    ``metric`` is ``loss``, or a figure of the validation; ``sign`` is 1 where less is better, else -1.
    """

    parameters: tuple[Parameter, ...]
    trials: int
    metric: str = "loss"
    sign: int = 1
    seed: int = 0

    @property
    def combinations(self) -> float:
        """How many different trials there can be."""
        return math.prod(math.inf if (every := each.every) is None else len(every) for each in self.parameters)

    def values(self) -> tuple[Mapping[str, str], ...]:
        """The settings of each trial, in the order in which they are tried."""
        chance = random.Random(self.seed)  # noqa: S311 - no secret
        if self.combinations == self.trials:
            names = [parameter.name for parameter in self.parameters]
            grid = list(itertools.product(*(parameter.every or () for parameter in self.parameters)))
            chance.shuffle(grid)
            return tuple(dict(zip(names, map(str, row), strict=True)) for row in grid)
        columns = []
        for parameter in self.parameters:
            strata = list(range(self.trials))
            chance.shuffle(strata)
            columns.append([parameter.at((stratum + chance.random()) / self.trials) for stratum in strata])
        names = [parameter.name for parameter in self.parameters]
        return tuple(dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def rungs(steps: int) -> tuple[int, ...]:
    """The steps after which a trial of so many is judged, ascending; none where it is too short for that."""
    return tuple(step for power in range(RUNGS, 0, -1) if (step := steps // REDUCTION**power) >= LEAST)


@dataclass
class Halving:
    """Decides which trials go on. ``sign`` is 1 where less is better, else -1."""

    sign: int = 1
    _seen: dict[tuple[int, int], float] = field(default_factory=dict)

    def goes_on(self, trial: int, rung: int, figure: float | None) -> bool:
        """Whether a trial that came to a rung (-1 is the last one) with ``figure`` goes on; without one it does not.

        A trial that is made again counts once.
        """
        own = math.inf if figure is None or not math.isfinite(figure) else self.sign * figure
        self._seen[rung, trial] = own
        others = [known for (at, _), known in self._seen.items() if at == rung]
        return own < math.inf and sum(known < own for known in others) < math.ceil(len(others) / REDUCTION)


def recent(losses: Sequence[float | None]) -> float | None:
    """The mean of the last quarter of a trial's losses; None where one of these is not a number, or there is none."""
    last = losses[-max(1, len(losses) // WINDOW) :]
    known = [loss for loss in last if loss is not None]
    return sum(known) / len(known) if known and len(known) == len(last) else None


def ranked(figures: Iterable[tuple[int, int, float | None]], sign: int) -> list[int]:
    """Trials from best to worst, by (trial, rung, figure): those of a later rung first, then by their figures.

    ``rung`` is 0 for a trial that came to its end, -1 for the last rung before it. A figure early in a trial says
    nothing beside one late in another. Steps don't tell: with other batches the same samples make more or fewer.
    """

    def rank(entry: tuple[int, int, float | None]) -> tuple[bool, int, float, int]:
        trial, rung, figure = entry
        return (figure is None, -rung, math.inf if figure is None else sign * figure, trial)

    return [trial for trial, _, _ in sorted(figures, key=rank)]
