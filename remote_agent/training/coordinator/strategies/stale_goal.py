"""Where workers that do not wait for each other have to come together: checkpoints, the end, and a stop. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent.training.data.order import SampleOrder


@dataclass(frozen=True)
class Goal:
    """Slices are issued up to position ``end``, the last one of ``step``, and then have to be applied first."""

    step: int
    end: int


def next_goal(
    order: SampleOrder, after: int, taken: int, last: int, every: int, due: Sequence[int | None] = (), *, stopping: bool
) -> Goal:
    """Where all workers have to come together next.

    Args:
        order: the run's.
        after: the last step that is whole.
        taken: slices have been issued up to this position.
        last: the run's last step.
        every: a checkpoint is made after every so many steps; 0: not by the number of the step.
        due: the state is to be kept after these steps, or as soon after each as may be; None says nothing.
        stopping: no step that is not under way is to be begun.
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
    """The step that is under way, or whole, when the positions up to ``end`` have been used."""
    return order.done + max(1, math.ceil((end - order.start) / order.batch))
