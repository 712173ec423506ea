"""The options of the optimizer (learning rate, momentum, betas, weight decay, ...) at each step of a run.

The coordinator alone has the job's scheduler. It is over a copy of the job's optimizer on the coordinator's own model,
whose step is never made. The scheduler is stepped once for each of the run's steps, a
``ReduceLROnPlateau`` once for each evaluation with its figure. What it has set travels with the step, to whoever makes
the optimizer's step, so servers and workers have no scheduler.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from remote_agent.goals import Watched
from remote_agent.training import job
from remote_agent.training.checkpoint import optimizer_state
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared import optimizer_options
from remote_agent.training.shared.optimizer_options import Options


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
    """The job's optimizer and scheduler on the coordinator: the job's own scheduler, else that of the settings.

    Args:
        saved: a state from :meth:`state`, for a run that goes on; None, or one of another scheduler: the scheduler is
            stepped anew up to the first step that is asked for.

    Attributes:
        base: the optimizer's options before a scheduler changed any.
        kind: the optimizer's, as checkpoints name it.
        plateau: ``min`` or ``max`` where the scheduler goes by the evaluations: what of them is better; else empty.
        notes: for the plan.

    Raises:
        JobError: the job's ``create_optimizer`` or ``create_scheduler`` failed, or gave something else.
    """

    _scheduler: LRScheduler | None
    _made: int

    def __init__(self, factory: Any, model: nn.Module, config: TrainingConfig, saved: Any = None) -> None:
        self._factory, self._model, self._config = factory, model, config
        self._begin()
        self.plateau = str(self._scheduler.mode) if isinstance(self._scheduler, ReduceLROnPlateau) else ""
        self.notes = _notes(factory, self._optimizer, self.plateau)
        if saved is not None:
            self._load(saved)

    def options(self, step: int, watched: Watched = ()) -> Options:
        """What the scheduler has set for ``step`` (from 1), when ``watched`` came of the evaluations before it.

        Steps are asked for in their order. To go back to an earlier step, the scheduler is stepped anew.

        Raises:
            JobError: the scheduler failed; ``OneCycleLR`` does beyond its last step.
        """
        if self._scheduler is None:
            return ()
        figures = [figure for at, figure in watched if at < step]
        wanted = len(figures) if self.plateau else step - 1
        if wanted < self._made:
            self._begin()
        while self._made < wanted:
            figure = figures[self._made] if self.plateau else None
            given = [math.nan if figure is None else figure] if self.plateau else []  # NaN is better than nothing
            job.guard("the scheduler's step", self._scheduler.step, *given)
            self._made += 1
            self._look()
        self._step = step
        return self._options()

    def rate(self, options: Options) -> float | None:
        """The learning rate of a step with these options: the first parameter group's; None: the optimizer has none."""
        rate = {**self.base.groups[0], **(options[0] if options else {})}.get("lr")
        return None if rate is None else float(rate)

    def state(self, step: int) -> Any:
        """The scheduler's ``state_dict()`` in ``step``, the last that was asked for, for a JSON document.

        None: there is no scheduler, or its state is no plain data; then it is stepped anew.
        """
        if self._scheduler is None or step != self._step:
            return None
        tensors: list[Tensor] = []
        try:
            about = {"kind": type(self._scheduler).__name__, "made": self._made, "options": self._options()}
            text = optimizer_state.described({**about, "state": self._scheduler.state_dict()}, tensors)
        except Exception:  # noqa: BLE001 - whatever a scheduler of the user's raises
            return None
        return None if tensors else text

    def _begin(self) -> None:
        """Make optimizer and scheduler, as before the first step."""
        own: Optimizer = job.create_optimizer(self._factory, self._model, self._config)
        parameters = {id(each): each for group in own.param_groups for each in group["params"]}
        # A copy, since the job may give the same object at each call.
        optimizer: Any = job.guard("copying the optimizer", copy.deepcopy, own, parameters)
        self._optimizer: Optimizer = optimizer
        self.base, self.kind = optimizer_options.of(optimizer), optimizer_state.kind_of(optimizer)
        self._before = [optimizer_options.copies(group) for group in optimizer.param_groups]
        self._changed: list[set[str]] = [set() for _ in self._before]
        self._made = self._step = 0
        # Its step is never made, which a scheduler would warn of.
        optimizer._opt_called = True  # noqa: SLF001 - there is no public way to say so
        self._scheduler = _scheduler(self._factory, optimizer, self._config)
        self._look()

    def _load(self, saved: Any) -> None:
        known = optimizer_state.from_described(saved, {}, torch.device("cpu"))
        options: Options = known["options"]
        if known["kind"] != type(self._scheduler).__name__ or len(options) not in (0, len(self._before)):
            return
        assert self._scheduler is not None, "it is of the kind that was saved"
        job.guard("the scheduler's load_state_dict", self._scheduler.load_state_dict, known["state"])
        optimizer_options.set_options(self._optimizer, options)
        self._made = int(known["made"])
        self._look()
        for changed, given in zip(self._changed, options, strict=False):
            changed |= set(given)

    def _look(self) -> None:
        """Note which options are not what they were: they count from then on, even at their first value."""
        for group, before, changed in zip(self._optimizer.param_groups, self._before, self._changed, strict=True):
            changed |= {name for name, was in before.items() if not optimizer_options.is_equal(group[name], was)}

    def _options(self) -> Options:
        if not any(self._changed):
            return ()
        groups = zip(self._optimizer.param_groups, self._changed, strict=True)
        return tuple({name: _plain(name, group[name]) for name in sorted(changed)} for group, changed in groups)


def _plain(name: str, value: object) -> object:
    found = optimizer_options.plain(value)
    if found is None and value is not None:
        raise JobError(
            f"the scheduler sets {name} to a {type(value).__name__}, which can't be sent to servers and workers",
            hint="a scheduler may set numbers and tuples of numbers",
        )
    return found


def _scheduler(factory: Any, optimizer: Optimizer, config: TrainingConfig) -> LRScheduler | None:
    """The job's own scheduler, else that of the settings; None: all options stay."""
    if job.has_scheduler(factory):
        return job.create_scheduler(factory, optimizer, config)
    if config.schedule == "constant" and not config.warmup_steps:
        return None
    shape = config.schedule, config.warmup_steps, config.num_iterations
    return LambdaLR(optimizer, lambda done: factor(*shape, done + 1))


def _notes(factory: Any, optimizer: Optimizer, plateau: str) -> tuple[str, ...]:
    notes = []
    if job.has_scheduler(factory) and not plateau:
        notes.append("the job's scheduler is stepped after each step, not after each epoch: give it numbers of steps")
    if callable(getattr(optimizer, "eval", None)):  # schedule-free ones
        name = type(optimizer).__name__
        notes.append(
            f"eval() of {name} is not called: evaluations, checkpoints and the result have its train() weights"
        )
    if _has_stepped(optimizer):
        notes.append("create_optimizer loads state of earlier steps, which a parameter server does not take over")
    return tuple(notes)


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
