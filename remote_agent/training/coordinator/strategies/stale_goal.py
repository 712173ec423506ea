"""Decides where workers of ``ssp`` and ``async`` finish together: before a checkpoint, the end, or a stop. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent.training.data.order import SampleOrder


@dataclass(frozen=True)
class Goal:
    """A position ``end``, the last of ``step``, up to which slices are issued; then all have to be applied first."""

    step: int
    end: int


def next_goal(
    order: SampleOrder, after: int, taken: int, last: int, every: int, due: Sequence[int | None] = (), *, stopping: bool
) -> Goal:
    """The next position at which all workers finish together.

    Args:
        after: the last complete step.
        taken: the position up to which slices were issued.
        every: steps between two checkpoints; 0: none by number of steps.
        due: steps after which the state is kept, or as soon as possible after each; None is ignored.
    """
    if order.limit is not None:
        last = min(last, _step_of(order, order.limit))
    if stopping:
        last = min(last, max(_step_of(order, taken), after + 1))
    steps = [last]
    if every:
        steps.append((after // every + 1) * every)
    steps += [max(step, _step_of(order, taken)) for step in due if step is not None and step > after]
    if order.limit is not None and order.span(last)[1] - order.span(last)[0] < order.batch:
        steps.append(last - 1)  # no slice is in the short last step and in the one before
    step = min(step for step in steps if step > after)
    return Goal(step, order.span(step)[1])


def _step_of(order: SampleOrder, end: int) -> int:
    """The current, or last complete, step when the positions up to ``end`` have been used."""
    return order.done + max(1, math.ceil((end - order.start) / order.batch))
