"""Makes a worker's part of an all-reduce: reduces the gradient sums of all workers, and makes the same step on each.

Every worker has the whole model and the job's whole optimizer. In a step it adds its slices (none, one, or several if
other workers were lost) to its *contribution*, reduces it with the group, and waits. It commits only after the
coordinator has heard from all workers that the reduction was complete: it divides by the samples, clips, sets the
options of the step, and makes the optimizer's step. A broken reduction is repeated from the contribution, which does
not change until the commit. So no slice is counted twice, and none is lost.

It reduces one flat buffer of gradients per dtype, and a short float64 vector: samples, sum of losses, their weight,
what the last step made of the weights, which parameters had a gradient, and the buffers that training changes (batch
normalisation), weighted by samples.

Gloo works on the CPU's memory. Gradients of another device are copied there and back, a whole flat buffer at a time;
the device's own backend is not used, since a group may have devices of different kinds. See Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009), for the ring.

The reduced numbers are bitwise the same everywhere, but devices of different kinds round an optimizer's step
differently. So that the copies do not drift apart in a long run, all workers load the weights of the group's first
worker every :data:`ALIGN_EVERY` steps; with devices of one kind this changes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from remote_agent.training import job
from remote_agent.training.errors import JobError, TrainingError
from remote_agent.training.shared import flat, optimizer_options
from remote_agent.training.shared.average import WeightAverage
from remote_agent.training.shared.flat import Payload
from remote_agent.training.shared.messages import (
    Broken,
    Computed,
    Failed,
    GroupMembership,
    Reduced,
    ReductionTask,
    Slice,
    Stamps,
)
from remote_agent.training.shared.optimizer_options import Options
from remote_agent.training.user_code import checks
from remote_agent.training.wire.errors import NothingCounts
from remote_agent.training.worker.device.compute import seed_everything, slice_seed
from remote_agent.training.worker.device.trained import TrainedParameters
from remote_agent.training.worker.engine import Parts
from remote_agent.training.worker.process_group import GroupBroken, ProcessGroup
from remote_agent.training.worker.same_steps import NUMBERS, SameSteps

ALIGN_EVERY = 100
"""Steps between two alignments of the weights, which add about half a percent to the traffic."""

_SUMS = 3  # samples, sum of losses, their weight
_FACTS = _SUMS + NUMBERS  # numbers before those of the parameters; the others are about the last step
_OPTIMIZER = (1 << 31) - 1  # replaces a slice's number, for the randomness of an optimizer's step


@dataclass
class _Sums:
    """Sums over slices.

    Attributes:
        gradients: sum over all samples so far, for each trained parameter; None: it had no gradient.
        facts: samples, sum of losses, their weight, those of :class:`SameSteps`, 1 for each parameter with a gradient,
            changed float buffers times samples.
        counters: maximum of each changed buffer of whole numbers.
    """

    gradients: list[Tensor | None]
    facts: Tensor
    counters: Tensor


@dataclass
class _Contribution:
    """This worker's contribution to a step: its ``computed`` slices, all in the sums 0, or each in its own sums.

    ``sums`` are by these numbers and the term of the loss.
    """

    sums: dict[tuple[int, int], _Sums] = field(default_factory=dict)
    computed: dict[int, Computed] = field(default_factory=dict)


class Reduction:
    """Makes one worker's steps. One thread calls :meth:`step` and :meth:`commit`, another :meth:`give_up`.

    Args:
        parts: the worker's; the model is in training mode.
        first: the buffers that training changes, before the first step.
        done: number of steps that an earlier part of this run made.
        average: the average of the weights.

    Attributes:
        contributed: the last step of which this worker has computed its slices.
        moved: number of pieces that it has reduced so far.
    """

    def __init__(
        self,
        parts: Parts,
        optimizer: torch.optim.Optimizer,
        *,
        first: Payload,
        done: int,
        address: str,
        average: WeightAverage,
    ) -> None:
        self._weights, self._compute, self._optimizer = parts.weights, parts.compute, optimizer
        self._average, self._address = average, address
        self._most_norm, self._seed = parts.config.clip_norm, parts.config.seed
        self._parameters = [parameter for members in parts.weights.parameters for parameter in members]
        self._buffers = flat.buffers(parts.model, parts.buffers)
        self._trained = TrainedParameters(parts.model)
        self._same = SameSteps(self._parameters)
        self._bystanders: flat.LocalState | None = flat.LocalState(parts.model, parts.buffers)
        self._kept = {name: tensor.clone() for name, tensor in self._buffers.items()}
        flat.scatter(self._kept, first)
        self.contributed = self._committed = done
        self.moved = 0
        self._group: ProcessGroup | None = None
        self._given_up = 0
        self._reduced_step = done
        self._options: Options = ()
        self._begin(done + 1)
        self._facts, self._counters = self._nothing().facts, self._nothing().counters
        self._allocate()

    # --- A step ------------------------------------------------------------------------------------------------------

    def step(self, task: ReductionTask) -> Reduced | Broken | Failed:
        """Commit the step before, if that is due, add the task's slices, and reduce."""
        entered = time.monotonic()
        try:
            self.commit(task.committed)
            self._options, self._compute.terms = task.options, task.terms
            if task.step != self._step:
                self._begin(task.step)
            for part in task.slices:
                if part.index not in self._contribution.computed:
                    self.contributed = task.step - 1  # only a lost worker's slice is added after this worker's own
                    self._add(part, part.index if task.ordered else 0)
        except TrainingError as error:
            return Failed.of(error)
        self.contributed = task.step
        ready = time.monotonic()
        try:
            self._reduce(task.group, max(1, task.ordered), task.terms)
        except GroupBroken as error:
            # Gloo may still write into the buffers of an abandoned operation.
            self._leave()
            self._allocate()
            return Broken(cause=str(error))
        self._reduced_step = task.step
        try:
            self._same.check(self._facts[_SUMS:_FACTS], self._committed)
        except JobError as error:
            return Failed.of(error)
        samples = int(self._facts[0])
        return Reduced(
            samples=samples,
            loss=float(self._facts[1]) / (float(self._facts[2]) or 1.0),
            computed=tuple(self._contribution.computed.values()),
            ready=ready,
            norm=flat.norm(self._flats) / (float(self._facts[2]) or 1.0),
            stamps=Stamps(entered=entered, left=time.monotonic()),
        )

    def commit(self, step: int) -> None:
        """Apply the reduction of ``step``, unless this was done before.

        Raises:
            JobError: the optimizer failed.
            NothingCounts: no sample of the step counts.
        """
        if step == self._committed:
            return
        assert step == self._reduced_step == self._committed + 1, "what is committed was reduced just before"
        samples, weight = float(self._facts[0]), float(self._facts[2])
        if not weight:
            raise NothingCounts.of(step)
        for flats in self._flats:
            flats.div_(weight)
        users = flat.users_of(self._flats)
        self._show_gradients()
        self._average_buffers(samples)
        if self._most_norm:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._most_norm)
        optimizer_options.set_options(self._optimizer, self._options)
        seed_everything(slice_seed(self._seed, step, _OPTIMIZER), self._parameters[0].device)
        self._same.begin(step)
        job.guard("the optimizer's step", self._optimizer.step)
        self._weights.settle()
        self._same.end()
        self._trained.check()
        self._average.update(self._parameters)
        if self._bystanders is not None:  # checking the first step is enough
            checks.refuse_changes(self._bystanders)
            self._bystanders = None
        for parameter in self._parameters:
            parameter.grad = None
        if flat.users_of(self._flats) > users:  # the optimizer keeps gradients until its next step
            self._allocate()
        for name, kept in self._kept.items():  # a hook of the step may have changed it
            kept.copy_(self._buffers[name])
        self._committed = step

    def _show_gradients(self) -> None:
        used = self._facts[_FACTS : _FACTS + len(self._parameters)].tolist()
        views = [view for group, flats in self._gradients() for view in group.views(flats)]
        for parameter, view, count in zip(self._parameters, views, used, strict=True):
            # Without a gradient an optimizer leaves a parameter alone; with a zero it would still decay it.
            parameter.grad = view if count else None

    def give_up(self, number: int) -> None:
        """Mark group ``number`` and all before it as broken, and wake a thread that waits for them."""
        self._given_up = max(self._given_up, number)
        group = self._group
        if group is not None and group.membership.number <= number:
            group.give_up()

    def payload(self) -> Payload:
        """The weights and the changed buffers after the last committed step, by dtype."""
        weights = [flat.to_bytes(buffer.clone()) for buffer in self._weights.flats]
        return (*weights, *flat.gather(self._kept))

    # --- Computing ---------------------------------------------------------------------------------------------------

    def _begin(self, step: int) -> None:
        self._step, self._contribution = step, _Contribution()

    def _nothing(self) -> _Sums:
        floats = sum(buffer.numel() for buffer in self._kept.values() if buffer.is_floating_point())
        wholes = sum(buffer.numel() for buffer in self._kept.values() if not buffer.is_floating_point())
        return _Sums(
            gradients=[None] * len(self._parameters),
            facts=torch.zeros(_FACTS + len(self._parameters) + floats, dtype=torch.float64),
            counters=torch.full((wholes,), torch.iinfo(torch.int64).min, dtype=torch.int64),
        )

    def _add(self, part: Slice, number: int) -> None:
        """Compute a slice from the committed weights and buffers, and add it to the sums of this number."""
        for name, buffer in self._buffers.items():
            buffer.copy_(self._kept[name])
        began, samples = time.perf_counter(), len(part.indices)
        result = self._compute(self._step, part)
        compute_s = time.perf_counter() - began
        for term, each in enumerate(result.terms or (result,)):
            sums = self._contribution.sums.setdefault((number, term), self._nothing())
            sums.facts[1] += each.loss * each.weight
            sums.facts[2] += each.weight
            own = self._compute.gradients[term] if result.terms else [known.grad for known in self._parameters]
            for position, gradient in enumerate(own):
                if gradient is not None:
                    sums.gradients[position] = _added(sums.gradients[position], gradient)
                    sums.facts[_FACTS + position] = 1
        for parameter in self._parameters:
            parameter.grad = None
        mine = self._contribution.sums[number, 0]
        mine.facts[0] += samples
        floats, wholes = self._split(self._buffers)
        if floats:
            mine.facts[_FACTS + len(self._parameters) :] += samples * torch.cat(floats).double()
        if wholes:
            torch.maximum(mine.counters, torch.cat(wholes), out=mine.counters)
        self._contribution.computed[part.index] = Computed(index=part.index, samples=samples, compute_s=compute_s)

    def _split(self, buffers: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The buffers as flat tensors on the CPU: float buffers, and the others as int64."""
        flats = [buffer.detach().reshape(-1).cpu() for buffer in buffers.values()]
        return [each for each in flats if each.is_floating_point()], [
            each.long() for each in flats if not each.is_floating_point()
        ]

    def _average_buffers(self, samples: float) -> None:
        """Average float buffers by samples, as in data parallel training, and keep the maximum of counters."""
        means, largest = self._facts[_FACTS + len(self._parameters) :] / samples, self._counters
        for name, buffer in self._kept.items():
            size = buffer.numel()
            if buffer.is_floating_point():
                source, means = means[:size], means[size:]
            else:
                source, largest = largest[:size], largest[size:]
            buffer.copy_(source.view(buffer.shape))
            self._buffers[name].copy_(buffer)

    # --- Reducing ----------------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        """Allocate flat gradients on the device, and gloo's buffers, in the same memory if possible."""
        device = self._parameters[0].device
        self._flats = [group.allocate(device) for group in self._weights.groups]
        self._staged = [_wire(buffer) for buffer in self._flats]

    def _gradients(self) -> list[tuple[flat.Group, Tensor]]:
        return list(zip(self._weights.groups, self._flats, strict=True))

    def _reduce(self, membership: GroupMembership | None, numbers: int, terms: int) -> None:
        """Leave the sums over all members in the flat gradients, the facts and the counters.

        The sums of several terms are divided by their weights, one by one, and added up; then their weight is 1.

        Args:
            membership: membership in the group; None: this worker is alone.
            numbers: number of sums that are reduced one by one and added in order.
            terms: of the loss.

        Raises:
            GroupBroken: the sums are lost; the contribution is unchanged.
        """
        group = self._join(membership)
        self._facts, self._counters = self._nothing().facts, self._nothing().counters
        total = [torch.zeros_like(buffer) for buffer in self._flats] if terms > 1 else []
        loss = counts = 0.0
        for term in range(terms):
            facts = self._sum_up(group, term, numbers)
            if weight := float(facts[2]):
                loss, counts = loss + float(facts[1]) / weight, 1.0
                for whole, buffer in zip(total, self._flats, strict=False):
                    whole.add_(buffer, alpha=1 / weight)
        if terms > 1:
            self._facts[1], self._facts[2] = loss, counts
            for buffer, whole in zip(self._flats, total, strict=True):
                buffer.copy_(whole)
        if group is not None and self._step % ALIGN_EVERY == 0:
            self._align(group)

    def _sum_up(self, group: ProcessGroup | None, term: int, numbers: int) -> Tensor:
        """Leave the sum of a term's gradients in the flat gradients; returns its facts, which are added to all."""
        mine = self._nothing().facts
        total = [torch.zeros_like(buffer) for buffer in self._flats] if numbers > 1 else []
        for number in range(numbers):
            sums = self._contribution.sums.get((number, term)) or self._nothing()
            self._pack(sums)
            facts, counters = sums.facts.clone(), sums.counters.clone()
            facts[_SUMS:_FACTS] = 0 if number or term else self._same.numbers
            if group is not None:
                self._over(group, facts, counters)
            mine += facts
            self._counters = torch.maximum(self._counters, counters)
            for whole, buffer in zip(total, self._flats, strict=False):
                whole += buffer
        for buffer, whole in zip(self._flats, total, strict=False):
            buffer.copy_(whole)
        self._facts = self._facts + mine
        return mine

    def _over(self, group: ProcessGroup, facts: Tensor, counters: Tensor) -> None:
        """Replace the flat gradients and these values by their sums over the members, and counters by the maximum."""
        apart = [
            (_real(buffer), staged)
            for buffer, staged in zip(self._flats, self._staged, strict=True)
            if staged.data_ptr() != buffer.data_ptr()
        ]
        for buffer, staged in apart:
            staged.copy_(buffer)
        group.sum([*self._staged, facts], self._count)
        for buffer, staged in apart:
            buffer.copy_(staged)
        if len(counters):
            group.largest(counters)

    @torch.no_grad()
    def _align(self, group: ProcessGroup) -> None:
        for weights in self._weights.flats:
            common = _wire(weights, copy=True)
            group.from_first(common, self._count)
            _real(weights).copy_(common)

    @torch.no_grad()
    def _pack(self, sums: _Sums) -> None:
        """Copy the gradients into the flat buffers."""
        gradients = iter(sums.gradients)
        for group, buffer in self._gradients():
            targets, sources = [], []
            for view in group.views(buffer):
                gradient = next(gradients)
                if gradient is None:
                    view.zero_()
                else:
                    targets.append(view)
                    sources.append(gradient)
            if targets:
                torch._foreach_copy_(targets, sources)

    def _join(self, membership: GroupMembership | None) -> ProcessGroup | None:
        group = self._group
        if membership is None:
            self._leave()
            return None
        if group is None or group.membership != membership:
            self._leave()
            group = self._group = ProcessGroup(membership, self._address)
        if membership.number <= self._given_up:
            raise GroupBroken("the group was given up")
        return group

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _count(self) -> None:
        self.moved += 1


def _added(total: Tensor | None, gradient: Tensor) -> Tensor:
    return gradient if total is None else total.add_(gradient)


def _real(buffer: Tensor) -> Tensor:
    """View complex numbers of ``buffer`` as pairs of real ones, which gloo can sum."""
    return torch.view_as_real(buffer).view(-1) if buffer.is_complex() else buffer


def _wire(buffer: Tensor, *, copy: bool = False) -> Tensor:
    """Gloo's tensor for a flat ``buffer``: the buffer itself, or a CPU tensor if device or dtype differ."""
    real = _real(buffer)
    return real.to("cpu", flat.wide(real.dtype), copy=copy)
