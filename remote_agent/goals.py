"""Decides from a run's validation metrics which evaluation was the best, and whether to stop. Pure.

All of it is computed from the figures so far of the one metric that is watched. They are in every checkpoint, so a run
that goes on from one decides as if it had never ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from remote_agent.kinds import nearest

Watched = tuple[tuple[int, float | None], ...]
"""(step, figure) of each evaluation so far, in the order of the steps; None: the figure was not a finite number."""

VAL_LOSS = "val_loss"
"""The loss over the validation data: what is watched where nothing else is named."""

USUAL = (VAL_LOSS, "accuracy", "perplexity")
"""Metrics that are measured where a job has none of its own, and of a language model."""

_ALIKE = 0.7
"""How alike two names are of which one is a misspelling of the other."""

_LESS, _MORE = ("loss", "error", "perplexity"), ("accuracy",)
"""Ends of names that say by themselves whether less or more is better."""


def shown(metric: str) -> str:
    """A validation metric's name as people see it: a job's own ``loss`` would stand beside the training loss."""
    return VAL_LOSS if metric == "loss" else metric


@dataclass(frozen=True)
class Goal:
    """The metric that is watched: by ``keep_best``, ``early_stopping``, and a scheduler that goes by it.

    Attributes:
        sign: 1 where less is better, -1 where more is.
    """

    metric: str = VAL_LOSS
    sign: int = 1

    @classmethod
    def of(cls, setting: str) -> Goal:
        """The goal that ``keep_best`` names; the validation loss where it names none.

        ``min:NAME`` says that less is better, ``max:NAME`` that more is. A NAME alone that ends in ``loss``, ``error``,
        ``perplexity`` or ``accuracy`` says so by itself.

        Raises:
            ValueError: it does not say which.
        """
        if not setting:
            return cls()
        direction, separated, name = setting.rpartition(":")
        if separated and name and direction in ("min", "max"):
            return cls(name, 1 if direction == "min" else -1)
        if not separated and name.endswith(_LESS):
            return cls(name)
        if not separated and name.endswith(_MORE):
            return cls(name, -1)
        close = nearest(name, USUAL, alike=_ALIKE) if name else ""
        advice = f"did you mean {close!r}? else " if close else ""
        raise ValueError(f"{advice}say min:{name or 'NAME'} if less is better, or max:{name or 'NAME'}")

    def best(self, watched: Watched) -> tuple[int, float] | None:
        """The first of the best (step, figure); None: none was a finite number."""
        finite = [(step, figure) for step, figure in watched if figure is not None]
        return min(finite, key=lambda each: self.sign * each[1], default=None)

    def without_gain(self, watched: Watched) -> int:
        """Evaluations since the best one."""
        best = self.best(watched)
        return len(watched) if best is None else sum(step > best[0] for step, _ in watched)


class GoalSetting:
    """What ``keep_best`` may be, for :func:`remote_agent.kinds.convert`."""

    def mistake(self, value: str) -> str:
        """What is wrong with ``value``; empty: nothing."""
        try:
            Goal.of(value)
        except ValueError as error:
            return str(error)
        return ""


def up_to(watched: Iterable[tuple[int, float | None]], step: int) -> Watched:
    """The figures up to ``step``: what came later is superseded."""
    return tuple((at, figure) for at, figure in watched if at <= step)
