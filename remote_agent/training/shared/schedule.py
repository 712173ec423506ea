"""The options of the optimizer (learning rate, momentum, betas, weight decay, ...) at each step of a run.

They come from a torch scheduler that is stepped once after each of the run's steps; a ``ReduceLROnPlateau`` is stepped
after each evaluation, with its figure. Here it works on an empty copy of the optimizer, whose step is never made: what
it has set by step t is replayed on demand, from the steps or the figures before it, so it is the same on every shard
and every worker, and after a resume.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from remote_agent.goals import Watched
from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.shared import optimizer_options

Options = Mapping[str, Any]
"""What a scheduler has set in one parameter group."""

_REMEMBERED = 8
"""Steps whose options are kept: the chunks of a shard, and workers that repair, are at most a few steps apart."""


def factor(schedule: str, warmup: int, total: int, step: int) -> float:
    """What the learning rate is multiplied by in ``step`` (from 1) of ``total``.

    Over the first ``warmup`` steps it rises in equal parts, to 1 in the step after them. From there it stays 1
    (``constant``), or falls towards 0, which it would reach in the step after the last: in a line (``linear``), or by
    half a cosine (``cosine``; Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts). Never below 0.
    """
    if step <= warmup:
        return step / (warmup + 1)
    done = min(1.0, (step - 1 - warmup) / max(1, total - warmup))
    if schedule == "linear":
        return 1.0 - done
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    return 1.0


class Schedule:
    """What a scheduler sets, by step and parameter group. May be asked by several threads.

    Args:
        optimizer: the job's, before its first step; it stays as it is.
        make: makes a new scheduler over the optimizer that it is given.

    Attributes:
        plateau: ``min`` or ``max`` where it goes by the figures that are given to :meth:`watch`: what of them is
            better; empty where it goes by the steps.

    Raises:
        JobError: ``make`` failed.
    """

    def __init__(self, optimizer: Optimizer, make: Callable[[Optimizer], LRScheduler]) -> None:
        self._optimizer, self._make = _empty_copy(optimizer), make
        self._lock = threading.Lock()
        self._watched: Watched = ()
        self._known: dict[int, tuple[Options, ...]] = {}
        self._rewind()
        self.plateau = str(self._scheduler.mode) if isinstance(self._scheduler, ReduceLROnPlateau) else ""

    def watch(self, watched: Watched) -> None:
        """Go by these figures from now on; those of steps that have been asked for are the same as they were."""
        with self._lock:
            if self.plateau and watched != self._watched:
                self._watched = watched
                self._known.clear()
                self._rewind()

    def options(self, group: int, step: int) -> Options:
        """What has been set in parameter group ``group`` by ``step`` (from 1), that step's own values included.

        Raises:
            JobError: the scheduler failed; ``OneCycleLR`` does beyond its last step.
        """
        with self._lock:
            if step not in self._known:
                figures = [figure for at, figure in self._watched if at < step]
                wanted = len(figures) if self.plateau else step - 1
                if wanted < self._steps:
                    self._rewind()
                while self._steps < wanted:
                    self._make_step(figures)
                self._remember(step)
            return self._known[step][group]

    def _make_step(self, figures: list[float | None]) -> None:
        given: list[Any] = []
        if self.plateau:
            figure = figures[self._steps]
            given = [math.nan if figure is None else figure]  # which is better than nothing
        job.guard("the scheduler's step", self._scheduler.step, *given)
        self._steps += 1
        self._look()

    def set(self, optimizer: Optimizer, step: int) -> None:
        """Give the whole ``optimizer``, one like the schedule's own, its options of ``step``."""
        for number, group in enumerate(optimizer.param_groups):
            options = self.options(number, step)
            group.update(options)
            optimizer_options.was_set(optimizer, number, options)

    def _rewind(self) -> None:
        self._replica = _empty_copy(self._optimizer)
        self._before = [dict(group) for group in _groups(self._replica)]
        self._changed: list[set[str]] = [set() for _ in self._before]
        self._scheduler = self._make(self._replica)
        self._steps = 0
        self._look()

    def _look(self) -> None:
        """Note which options are not what they were: they count from then on, even at their first value."""
        for group, before, changed in zip(_groups(self._replica), self._before, self._changed, strict=True):
            changed |= {name for name, value in group.items() if name in before and value != before[name]}

    def _remember(self, step: int) -> None:
        """Keep what is set now as the options of ``step``, in the place of what was asked for first."""
        groups = zip(_groups(self._replica), self._changed, strict=True)
        self._known[step] = tuple({name: group[name] for name in changed} for group, changed in groups)
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]


def create(factory: Any, optimizer: Optimizer, config: TrainingConfig) -> Schedule | None:
    """The run's schedule for ``optimizer``: the job's own, else the configuration's; None: all options stay.

    Raises:
        JobError: the job's ``create_scheduler`` failed, or gave something that can't be followed by counting steps.
    """
    if job.has_scheduler(factory):
        return Schedule(optimizer, lambda replica: job.create_scheduler(factory, replica, config))
    if config.schedule == "constant" and not config.warmup_steps:
        return None
    return Schedule(optimizer, lambda replica: LambdaLR(replica, lambda done: _factor(config, done + 1)))


class Rates:
    """The learning rate of each step, for events: that of the first parameter group.

    Args:
        optimizer: the job's, before its first step.
        schedule: of its options; None: they stay.
        steps: of the run, as far as is known.

    Attributes:
        options: of the optimizer and of the schedule's first steps.
    """

    def __init__(
        self, optimizer: Optimizer, schedule: Schedule | None, steps: int = 1, notes: tuple[str, ...] = ()
    ) -> None:
        self._schedule, self._usual, self.notes = schedule, optimizer.param_groups[0].get("lr"), notes
        self.options = optimizer_options.chosen(optimizer, schedule, steps)

    def at(self, step: int, watched: Watched) -> float | None:
        """The rate of ``step``, when ``watched`` came of the evaluations before it; None: the optimizer has none."""
        rate = self._usual
        if self._schedule is not None:
            self._schedule.watch(watched)
            rate = self._schedule.options(0, step).get("lr", rate)
        return None if rate is None else float(rate)


def rates_of(factory: Any, model: torch.nn.Module, config: TrainingConfig) -> Rates:
    """The learning rates of a run of the job's; raises JobError if its optimizer or scheduler fails."""
    optimizer = job.create_optimizer(factory, model, config)
    schedule, notes = create(factory, optimizer, config), list[str]()
    if job.has_scheduler(factory) and schedule is not None and not schedule.plateau:
        notes.append("the job's scheduler is stepped after each step, not after each epoch: give it numbers of steps")
    if callable(getattr(optimizer, "eval", None)):  # schedule-free ones
        name = type(optimizer).__name__
        notes.append(
            f"eval() of {name} is not called: evaluations, checkpoints and the result have its train() weights"
        )
    if _has_stepped(optimizer):
        notes.append("create_optimizer loads state of earlier steps, which a parameter server does not take over")
    return Rates(optimizer, schedule, config.num_iterations, tuple(notes))


def _has_stepped(optimizer: Optimizer) -> bool:
    """Whether one of torch's optimizers has the state of steps that it has made."""
    for state in getattr(optimizer, "state", {}).values():
        step = state.get("step") if isinstance(state, Mapping) else None
        if isinstance(step, Tensor) and step.numel() == 1:
            step = step.item()
        if (isinstance(step, int | float) and step > 0) or (step is None and _has_momentum(state)):
            return True
    return False


def _has_momentum(state: object) -> bool:
    return isinstance(state, Mapping) and isinstance(state.get("momentum_buffer"), Tensor)


def _factor(config: TrainingConfig, step: int) -> float:
    return factor(config.schedule, config.warmup_steps, config.num_iterations, step)


def _groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The options of each parameter group by value: schedulers change tensors in place."""
    return [
        {name: value.clone() if isinstance(value, Tensor) else value for name, value in group.items()}
        for group in (
            {name: value for name, value in each.items() if name != "params"} for each in optimizer.param_groups
        )
    ]


def _empty_copy(optimizer: Optimizer) -> Optimizer:
    """An optimizer of the same kind with the same groups and options, over parameters whose content can't be read."""
    stand_ins: dict[int, object] = {
        id(parameter): torch.nn.Parameter(torch.empty(0, device="meta"), requires_grad=parameter.requires_grad)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    twin: Optimizer = job.guard("copying the optimizer", copy.deepcopy, optimizer, stand_ins)
    # Its step is never made, which a scheduler would warn of.
    twin._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way to say so
    return twin
