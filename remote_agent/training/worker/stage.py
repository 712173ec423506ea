"""Runs one stage of a pipeline: forward and backward of its blocks for each micro-batch, and the optimizer's step.

Micro-batches go through the stages one after the other (Huang et al., "GPipe", 2019). If a stage can do both, it
alternates backward and forward, as in 1F1B (Narayanan et al., "PipeDream-2BW", 2021), so that later stages have work.
It starts a micro-batch only while it holds fewer than ``in_flight``; this limits the memory of activations. On slow
links more than one micro-batch for each stage is faster. Backwards are done in the order of the micro-batches, so a
stage's gradient sums are bitwise the same for any timing.

A step ends with gradient sums. A weight that several stages use (a tied embedding) belongs to the first of them: the
others send it their sums, and get the new values after the optimizer's step. When all stages have answered, the
coordinator knows the weight of the samples and the gradient's norm over all stages. With these each stage makes its
optimizer's step (:meth:`Stage.commit`).

This module does not need Ray: tests run stages in threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remote_agent.current_call import HERE
from remote_agent.models.blocks import CannotCut
from remote_agent.models.part import Part
from remote_agent.models.seams import has_gradients
from remote_agent.planning import units
from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError, LossNotFinite
from remote_agent.training.shared import optimizer_options
from remote_agent.training.shared.average import WeightAverage
from remote_agent.training.shared.flat import BoundBuffers
from remote_agent.training.shared.messages import Stamps
from remote_agent.training.shared.stages import Commit, StageDone, StageRole, StageTask, micro_batch
from remote_agent.training.user_code import losses
from remote_agent.training.user_code.losses import PartLoss
from remote_agent.training.user_code.user_errors import LOSS, as_job_error
from remote_agent.training.wire.errors import ExchangeError
from remote_agent.training.wire.stage_links import Name, Purpose, StageLinks
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device.compute import SliceComputer, seed_everything
from remote_agent.training.worker.device.trained import Still
from remote_agent.training.worker.own_weights import owned

_OPTIMIZER = (1 << 31) - 1  # replaces a micro-batch's number, for the randomness of an optimizer's step
_PAST_THE_CUT = "; or for these samples the model uses weights or values of an earlier stage past its blocks"
_CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def unit_seed(seed: int, step: int, micro: int, block: int) -> int:
    """Seed of a block's random numbers in a micro-batch, which does not depend on the cut."""
    sequence = np.random.SeedSequence((seed, step, micro, block))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass
class _Micro:
    """A micro-batch whose backward is not done, with the stage's inputs and outputs."""

    samples: int
    given: tuple[Tensor, ...]
    result: tuple[Tensor, ...]


@dataclass
class _Sums:
    """The sums of the current step so far."""

    begun: int = 0
    done: int = 0
    loss: Tensor | None = None
    weight: float = 0.0
    scale: float = 1.0
    compute_s: float = 0.0
    held: dict[int, _Micro] = field(default_factory=dict)


class Stage:
    """One stage; one thread calls all its methods.

    Args:
        part: the part of the model on the device, with its weights.
        shared: parameters that several stages use, with the numbers of these stages.
        links: open connections to the other stages.
        optimizer: the job's optimizer over the stage's own weights.
        average: the average of the weights.
        done: number of steps that were made before.

    Attributes:
        computed: the last step of which this stage has computed its part.
        own: the trained weights that this stage updates, by name.
    """

    def __init__(
        self,
        part: Part,
        role: StageRole,
        shared: Mapping[str, Sequence[int]],
        links: StageLinks,
        compute: SliceComputer,
        optimizer: torch.optim.Optimizer,
        *,
        average: WeightAverage,
        config: TrainingConfig,
        done: int,
    ) -> None:
        self._part, self._role, self._links, self._compute = part, role, links, compute
        self.optimizer, self.average = optimizer, average
        self._config = config
        self.computed = self._committed = done
        trained = self._trained = {name: each for name, each in part.parameters().items() if each.requires_grad}
        self.own = owned(part, role.stage, shared)
        here = {name: tuple(holders) for name, holders in shared.items() if role.stage in holders and name in trained}
        self._shared = [
            (number, name, trained[name], here[name]) for number, name in enumerate(sorted(shared)) if name in here
        ]
        self._evaluated = 0
        self._anchored, self._still = BoundBuffers(part.model), Still(part.model, ())
        self._at_rest = self._still.look()

    # --- A step ------------------------------------------------------------------------------------------------------

    def step(self, task: StageTask) -> StageDone:
        """Commit the step before, if that is due, and compute the gradient sums of this one.

        Raises:
            StateChanged: the job's code changed state of the model that is not trained.
            TrainingError: the job's code failed, or another stage can't be reached.
        """
        entered = time.monotonic()
        devices.select(self._compute.device)
        if task.commit is not None:
            self.commit(task.commit)
        sent, waited = self._links.sent, self._links.waited
        for parameter in self._trained.values():
            parameter.grad = None
        self._compute.scalars.again()
        sums = self._pass(task)
        self._compute.scalars.settle()
        self._refuse_changes("the model's code")
        self._gather(task.step)
        squares = sum(
            float(torch.linalg.vector_norm(each.grad, dtype=torch.promote_types(each.dtype, torch.float32))) ** 2
            for each in self.own.values()
            if each.grad is not None
        )
        self.computed = task.step
        loss = float(sums.loss) / (sums.weight or 1.0) if sums.loss is not None else 0.0
        if not math.isfinite(loss):
            finite = all(bool(each.isfinite().all()) for each in self._trained.values())
            error = LossNotFinite.of(loss, f"step {task.step:,}", task.batch.indices.tolist(), weights=finite)
            error.hint += _PAST_THE_CUT if finite and not self._part.is_first else ""
            raise error
        return StageDone(
            loss=loss,
            weight=sums.weight * sums.scale,
            squares=squares,
            compute_s=sums.compute_s,
            sent=self._links.sent - sent,
            sending_s=self._links.waited.sending_s - waited.sending_s,
            receiving_s=self._links.waited.receiving_s - waited.receiving_s,
            stamps=Stamps(entered=entered, left=time.monotonic()),
        )

    def _refuse_changes(self, whose: str) -> None:
        """Raise StateChanged if what is not trained changed: other stages and checkpoints would not have it."""
        self._anchored.settle()
        self._still.check(self._at_rest, whose)

    def _pass(self, task: StageTask) -> _Sums:
        """Compute all micro-batches, forward and backward."""
        ends = units.bounds(len(task.batch.indices), micro_batch(self._config))
        parts = list(pairwise(ends))
        sums = _Sums(scale=1 / task.batch.total)
        turned = False  # whether the last work was a backward
        while sums.done < len(parts):
            arriving = Name(self._role.stage - 1, Purpose.ACTIVATIONS, task.step, sums.begun)
            returning = Name(self._role.stage + 1, Purpose.GRADIENTS, task.step, sums.done)
            may_begin = sums.begun < len(parts) and sums.begun - sums.done < self._role.in_flight
            can_begin = may_begin and (self._part.is_first or self._links.ready(arriving))
            if turned := bool(sums.held) and not (turned and can_begin) and self._links.ready(returning):
                self._backward(task, sums, self._links.take(returning))
            elif can_begin:
                given = () if self._part.is_first else self._links.take(arriving)
                self._forward(task, sums, parts[sums.begun], given)
            else:
                awaited = [returning] if sums.held else []
                self._links.wait(*awaited, *([arriving] if may_begin and not self._part.is_first else []))
        return sums

    def _forward(self, task: StageTask, sums: _Sums, bounds: tuple[int, int], given: Sequence[Tensor | None]) -> None:
        began, number, samples = time.perf_counter(), sums.begun, bounds[1] - bounds[0]
        inputs = tuple(self._arrived(each) for each in given)
        result = self._computed(task, number, bounds, inputs)
        sums.begun += 1
        if isinstance(result, PartLoss):
            summed = result.value.detach() * result.factor
            sums.loss = summed if sums.loss is None else sums.loss + summed
            sums.weight += result.weight
            self._paced(samples, began, 0)
            back = time.perf_counter()
            self._back([result.value * (result.factor * sums.scale)], [None])
            self._paced(samples, back, 1)
            self._finish(task, sums, number, inputs)
        else:
            self._paced(samples, began, 0)
            self._links.send(Name(self._role.stage + 1, Purpose.ACTIVATIONS, task.step, number), result)
            sums.held[number] = _Micro(samples, inputs, result)
        sums.compute_s += time.perf_counter() - began

    def _computed(
        self, task: StageTask, number: int, bounds: tuple[int, int], inputs: tuple[Tensor, ...]
    ) -> PartLoss | tuple[Tensor, ...]:
        batch, (begin, end) = task.batch, bounds
        indices, compute = batch.indices[begin:end], self._compute
        HERE.slice(task.step, number)
        samples, device = compute.fetched(indices, batch.begin + begin), compute.device
        compute.scalars.samples = end - begin

        def seed(block: int) -> None:
            seed_everything(unit_seed(self._config.seed, task.step, number, block), device)

        over = batch.total if compute.summed else 0
        of_part = partial(losses.of_part, compute.scalars.loss, self._part.model, samples, end - begin, over)
        try:
            with torch.autocast(device.type, compute.dtype, enabled=compute.dtype is not None):
                HERE.enter(LOSS, int(indices[0]), end - begin)
                # Copies, since a block may change its input, and autograd forbids changing a leaf.
                result = self._part.run(of_part, tuple(each.clone() for each in inputs), seed)
        except (JobError, CannotCut, ExchangeError):
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise as_job_error(LOSS, error) from error
        finally:
            HERE.leave()
        if isinstance(result, PartLoss):
            compute.refuse_lost(result, samples, end - begin, batch.total)
        return result

    def _backward(self, task: StageTask, sums: _Sums, gradients: Sequence[Tensor | None]) -> None:
        began, number = time.perf_counter(), sums.done
        micro = sums.held.pop(number)
        outputs, given = [], []
        for output, gradient in zip(micro.result, gradients, strict=True):
            if output.requires_grad and gradient is not None:
                outputs.append(output)
                given.append(gradient.to(output.device))
        if outputs:
            self._back(outputs, given)
        self._paced(micro.samples, began, 1)
        self._finish(task, sums, number, micro.given)
        sums.compute_s += time.perf_counter() - began

    def _back(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Compute a backward, which may run code of the job."""
        HERE.enter(LOSS)
        try:
            torch.autograd.backward(outputs, gradients)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise as_job_error(LOSS, error) from error
        finally:
            HERE.leave()

    def _finish(self, task: StageTask, sums: _Sums, number: int, inputs: Sequence[Tensor]) -> None:
        """After a backward, send the gradients to the stage before."""
        devices.synchronize(self._compute.device)
        sums.done += 1
        if not self._part.is_first:
            name = Name(self._role.stage - 1, Purpose.GRADIENTS, task.step, number)
            self._links.send(name, [each.grad for each in inputs])

    def _arrived(self, tensor: Tensor | None) -> Tensor:
        assert tensor is not None, "a stage hands on tensors"
        here = tensor.to(self._compute.device)
        return here.requires_grad_(has_gradients(here))

    def _paced(self, samples: int, began: float, direction: int) -> None:
        """Slow a simulated device down to its speed."""
        if self._compute.simulated is not None:
            self._compute.simulated.sleep_until_target(samples, began, self._role.paces[direction])

    # --- Weights that several stages use -----------------------------------------------------------------------------

    def _gather(self, step: int) -> None:
        """Add the gradient sums of shared weights at the stages to which they belong."""
        for number, _, parameter, holders in self._shared:
            owner = holders[0]
            if owner != self._role.stage:
                self._links.send(Name(owner, Purpose.SHARED_GRADIENT, step, number), [parameter.grad])
                parameter.grad = None
                continue
            for other in holders[1:]:
                (gradient,) = self._links.take(Name(other, Purpose.SHARED_GRADIENT, step, number))
                if gradient is not None:
                    here = gradient.to(parameter.device)
                    parameter.grad = here.clone() if parameter.grad is None else parameter.grad.add_(here)

    def _spread(self, step: int) -> None:
        """Send the new values of shared weights to the stages that use them."""
        for number, _, parameter, holders in self._shared:
            owner = holders[0]
            if owner == self._role.stage:
                for other in holders[1:]:
                    self._links.send(Name(other, Purpose.SHARED_WEIGHTS, step, number), [parameter])
        with torch.no_grad():
            for number, _, parameter, holders in self._shared:
                if holders[0] != self._role.stage:
                    (value,) = self._links.take(Name(holders[0], Purpose.SHARED_WEIGHTS, step, number))
                    assert value is not None, "weights are sent"
                    parameter.copy_(value)

    def commit(self, commit: Commit) -> None:
        """Make the optimizer's step of a step that all stages have computed, unless this was done before.

        Raises:
            JobError: the optimizer failed.
            ExchangeError: another stage can't be reached.
        """
        if commit.step == self._committed:
            return
        assert commit.step == self._committed + 1 == self.computed, "what is committed was computed just before"
        most = self._config.clip_norm
        factor = min(1.0, most / (commit.norm + _CLIP_EPSILON)) if most else 1.0
        with torch.no_grad():
            for parameter in self.own.values():
                if parameter.grad is not None:
                    parameter.grad.div_(commit.weight)
                    if most:
                        parameter.grad.mul_(factor)
        optimizer_options.set_options(self.optimizer, commit.options)
        seed_everything(unit_seed(self._config.seed, commit.step, _OPTIMIZER, 0), self._compute.device)
        job.guard("the optimizer's step", self.optimizer.step)
        self._refuse_changes("the optimizer's step")
        self.average.update(self.own.values())
        for parameter in self._trained.values():
            parameter.grad = None
        self._spread(commit.step)
        self._committed = commit.step

    # --- Evaluation --------------------------------------------------------------------------------------------------

    def forward(self, function: Callable[[], Any], seed: int) -> Any:
        """Compute the stage's part of ``function``, which calls the whole model once, without gradients.

        Returns:
            The result of ``function`` on the last stage; None on the others.
        """
        self._evaluated += 1
        given: tuple[Tensor, ...] = ()
        if not self._part.is_first:
            name = Name(self._role.stage - 1, Purpose.EVALUATED, self._evaluated, 0)
            given = tuple(each.to(self._compute.device) for each in self._links.take(name) if each is not None)
        result = self._part.run(function, given, lambda block: seed_everything(seed + block, self._compute.device))
        if self._part.is_last:
            return result
        self._links.send(Name(self._role.stage + 1, Purpose.EVALUATED, self._evaluated, 0), result)
        return None


def peers(stage: int, stages: int, shared: Mapping[str, Sequence[int]]) -> set[int]:
    """The stages with which a stage exchanges data."""
    found = {other for other in (stage - 1, stage + 1) if 0 <= other < stages}
    for holders in shared.values():
        if stage in holders:
            found.update(holders if holders[0] == stage else holders[:1])
    return found - {stage}
