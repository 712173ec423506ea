"""Prepares a pipeline on a worker: finds where the model can be cut, measures its blocks, builds a stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.models.blocks import CannotCut, blocks_of
from remote_agent.models.part import Part, WholeModel, check
from remote_agent.models.seams import Seams, has_gradients, trace
from remote_agent.planning.blocks import TRAINED_COPIES, BlockCost, DeviceBlocks, Tied
from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import BESIDE, TrainingState, into_optimizer
from remote_agent.training.config import TrainingConfig
from remote_agent.training.deadlines import TRANSFER_S
from remote_agent.training.shared import flat, optimizer_options
from remote_agent.training.shared.average import WeightAverage
from remote_agent.training.shared.dataplane import Usage
from remote_agent.training.shared.messages import Measured
from remote_agent.training.shared.optimizer_options import OptimizerOptions
from remote_agent.training.shared.slices import Indices
from remote_agent.training.shared.stages import StageRole, micro_batch
from remote_agent.training.user_code import losses
from remote_agent.training.user_code.losses import PartLoss
from remote_agent.training.user_code.user_errors import LOSS, as_job_error
from remote_agent.training.wire import codecs
from remote_agent.training.wire.stage_links import StageLinks
from remote_agent.training.worker.device import backend
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.trained import keeping, refuse_sparse
from remote_agent.training.worker.own_weights import OwnWeights, optimizer_over, owned
from remote_agent.training.worker.stage import Stage, peers

T = TypeVar("T")

GRADIENT_ROOM = 8
"""Times the weights' bytes that have to be free for the whole model's gradient to be looked at."""


@dataclass(frozen=True)
class StageParts:
    """What a stage is made from: the whole model (on the CPU), and what belongs to it."""

    model: nn.Module
    blocks: Sequence[nn.Module]
    seams: Seams
    compute: SliceComputer
    factory: Any
    config: TrainingConfig
    options: OptimizerOptions | None = None


def cut_between(model: nn.Module, factory: Any) -> tuple[nn.Module, ...]:
    """The blocks that a pipeline cuts the job's model between.

    Raises:
        JobError: the job's ``layers`` raised.
        CannotCut: the model can't be cut.
    """
    own: Callable[..., Any] | None = getattr(factory, "layers", None)
    if own is None:
        return blocks_of(model)

    def named(whole: nn.Module) -> tuple[Any, ...] | None:
        given = job.guard("layers", own, whole)
        return None if given is None else job.guard("layers", tuple, given)

    return blocks_of(model, named)


def has_room_for_gradients(model: nn.Module) -> bool:
    """Return True if a gradient of the whole model fits into the host's memory beside the others'."""
    bytes_ = sum(each.numel() * each.element_size() for each in model.parameters())
    return GRADIENT_ROOM * bytes_ < backend.CPU.free_bytes(torch.device("cpu"))


class BlockProfiler:
    """Measures a model block by block on a device that need not hold more than one of them at a time.

    Args:
        compute: has the job's data and loss.
        model: the whole model, on the CPU; it is as it was afterwards.
        samples: indices of those that it is measured with.

    Attributes:
        parts: what a stage is made from, once :meth:`measure` was called.
        costs: what the blocks cost on this device, then.
    """

    def __init__(
        self, compute: SliceComputer, model: nn.Module, samples: Indices, factory: Any, config: TrainingConfig
    ) -> None:
        self._compute, self._model, self._samples = compute, model, samples
        self._factory, self._config = factory, config
        self.parts: StageParts | None = None
        self.costs = DeviceBlocks(blocks=(), room=0.0)

    def measure(self, sizes: Sequence[int], seconds: float, batch: int) -> Measured:
        """Find out where the model can be cut, see that its parts give what the whole does, and time the blocks.

        Args:
            sizes: not used: a micro-batch is what travels.
            seconds: not used: each kind of block is timed twice.

        Raises:
            JobError: the job's loss, model or data raised.
            CannotCut: the model can't be cut.
        """
        del sizes, seconds, batch
        blocks = cut_between(self._model, self._factory)
        loss = self._compute.scalars.loss
        on_cpu = self._compute.on(torch.device("cpu"))
        indices = np.resize(self._samples, 2)
        few = on_cpu.fetched(indices, 0)
        untrained = flat.LocalState(self._model, ())
        bare = keeping(job.loss_function(self._factory))  # not what is trained is looked at: in a trace all weights are
        seams = _of_users(trace, self._model, blocks, lambda: bare(self._model, few))
        if changed := untrained.changed():
            raise CannotCut(
                f"training changes the buffer {changed}, as batch normalisation does, and a pipeline does not yet",
                hint="use GroupNorm or LayerNorm in its place, or train with strategy=sync",
            )

        def value() -> Tensor:
            part = losses.of_part(loss, self._model, few, len(indices))
            if part.terms:
                raise CannotCut(
                    f"loss gives {len(part.terms)} terms with weights of their own, and a pipeline sums one gradient",
                    hint="return one (sum, weight), or train with strategy=sync",
                )
            return part.value

        check(self._model, blocks, seams, value, lambda number: devices.seed(torch.device("cpu"), number))
        self._compute.scalars.again()
        self.parts = StageParts(self._model, blocks, seams, self._compute, self._factory, self._config)
        size = min(micro_batch(self._config), self._config.batch_size)
        room = self._room()
        costs = tuple(self._costs(self.parts, size))
        update = self._update(self.parts)
        self.costs = DeviceBlocks(
            blocks=costs,
            room=room,
            copies=update.copies,
            workspace=update.workspace,
            update_s=update.seconds,
            tied=tuple(_tied(self._model, seams)),
        )
        points = ((size, sum(cost.seconds for cost in costs)),)
        return Measured(points=points, usage=Usage())

    def _room(self) -> float:
        """Bytes that a stage may take: on a CPU those of the model, where it is in memory now, are free again then."""
        kind, device = backend.of(self._compute.device), self._compute.device
        free = kind.safe_part * kind.free_bytes(device)
        if device.type == "cpu":
            own = (*self._model.parameters(), *self._model.buffers())
            free += sum(each.nbytes for each in own if not _is_in_file(each))
        return free

    def _costs(self, parts: StageParts, size: int) -> Iterator[BlockCost]:
        indices = np.resize(self._samples, size)
        samples, device = self._compute.fetched(indices, 0), self._compute.device
        whole = WholeModel(parts.model)
        known: dict[object, BlockCost] = {}
        given: tuple[Tensor, ...] = ()
        loss = partial(losses.of_part, self._compute.scalars.loss, parts.model, samples, size, 0)
        for number in range(len(parts.blocks)):
            part = Part(parts.model, parts.blocks, parts.seams, number, number + 1)
            part.move(device)
            with torch.autocast(device.type, self._compute.dtype, enabled=self._compute.dtype is not None):
                measured = _timed(part, loss, given, device)
                ends = number in (0, len(parts.blocks) - 1)
                key: object = number if ends else _kind(parts.blocks[number], given)
                if key not in known:
                    measured = _timed(part, loss, given, device)  # the first was the warm-up
            known.setdefault(key, measured[0])
            yield known[key]
            given = tuple(each.detach() for each in measured[1])
            whole.put_back()
        self._compute.scalars.again()

    def _update(self, parts: StageParts) -> _Update:
        """What the job's optimizer takes, by two steps for one block, whose weights are as they were afterwards."""
        whole, number, device = WholeModel(parts.model), len(parts.blocks) // 2, self._compute.device
        part = Part(parts.model, parts.blocks, parts.seams, number, number + 1)
        part.move(device)
        own = {name: each for name, each in part.parameters().items() if each.requires_grad}
        before = {name: each.detach().clone() for name, each in own.items()}
        trained, kind = sum(each.nbytes for each in own.values()), backend.of(device)
        try:
            optimizer = optimizer_over(own.values(), self._factory, parts.model, self._config)
            for each in own.values():
                each.grad = torch.zeros_like(each)
            optimizer.step()  # the first one makes what it remembers
            devices.synchronize(device)
            kind.release()
            used, began = kind.used_bytes(device), time.perf_counter()

            def step() -> None:
                optimizer.step()
                devices.synchronize(device)

            workspace = max(0, kind.peak_bytes(device, step) - used)
            seconds = time.perf_counter() - began
        except Exception:  # noqa: BLE001 - if it is the job's mistake the first step says so
            return _Update()
        finally:
            with torch.no_grad():
                for name, each in own.items():
                    each.copy_(before[name])
            whole.put_back()
        if not trained:
            return _Update()
        kept = [value for entries in optimizer.state.values() for value in entries.values()]
        copies = 1 + sum(value.nbytes for value in kept if isinstance(value, Tensor)) / trained
        copies += 1 if self._config.ema_decay else 0
        if kind.own_memory:  # there torch's optimizers step all weights at once
            return _Update(copies + workspace / trained, 0.0, seconds / trained)
        return _Update(copies, workspace, seconds / trained)


class _Update(NamedTuple):
    """Of the optimizer's step; see :class:`DeviceBlocks`."""

    copies: float = TRAINED_COPIES
    workspace: float = 0.0
    seconds: float = 0.0


def _tied(model: nn.Module, seams: Seams) -> Iterator[Tied]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and len(set(seams.uses[name])) > 1:
            yield Tied(blocks=tuple(sorted(set(seams.uses[name]))), size=parameter.nbytes)


def _of_users(function: Callable[..., T], *arguments: Any) -> T:
    """What ``function`` gives, which calls the user's loss.

    Raises:
        CannotCut: as it does.
        JobError: the user's code failed.
    """
    try:
        return function(*arguments)
    except CannotCut:
        raise
    except (Exception, SystemExit) as error:
        raise as_job_error(LOSS, error) from error


def _is_in_file(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.untyped_storage().filename is not None


def _kind(block: nn.Module, given: Sequence[Tensor]) -> object:
    """What two blocks have in common that take as long."""
    named = (*block.named_parameters(), *block.named_buffers())
    shapes = tuple((name, tuple(each.shape)) for name, each in named)
    return type(block), shapes, tuple(tuple(each.shape) for each in given)


def _timed(
    part: Part, loss: Callable[[], PartLoss], given: tuple[Tensor, ...], device: torch.device
) -> tuple[BlockCost, tuple[Tensor, ...]]:
    """A forward and a backward of one block: its cost, and what it gave."""
    held: dict[int, int] = {}
    own = (*part.parameters().values(), *part.model.buffers())
    weights = {each.untyped_storage().data_ptr() for each in own if each.layout == torch.strided}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs = tuple(each.clone().requires_grad_(has_gradients(each)) for each in given)
    devices.synchronize(device)
    began = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = _of_users(part.run, loss, tuple(each.clone() for each in inputs), lambda number: None)
    devices.synchronize(device)
    forward_s = time.perf_counter() - began
    began = time.perf_counter()
    outputs = (result.value,) if isinstance(result, PartLoss) else result
    trained = [each for each in outputs if each.requires_grad]
    if trained:
        _of_users(torch.autograd.backward, trained, [torch.ones_like(each) for each in trained])
        refuse_sparse(part.model)
    devices.synchronize(device)
    parameters = part.parameters().values()
    cost = BlockCost(
        forward_s=forward_s,
        backward_s=time.perf_counter() - began,
        weights=sum(each.numel() * each.element_size() for each in (*parameters, *part.buffers())),
        trained=sum(each.numel() * each.element_size() for each in parameters if each.requires_grad),
        held=sum(held.values()),
        boundary=sum(each.nbytes for each in given),
        numbers=sum(each.numel() for each in given if each.is_floating_point()),
    )
    for each in parameters:
        each.grad = None
    return cost, () if isinstance(result, PartLoss) else outputs


def part_of(parts: StageParts, bounds: Sequence[int], stage: int) -> Part:
    """The part of the model that is a stage's, cut at ``bounds``."""
    return Part(parts.model, parts.blocks, parts.seams, bounds[stage], bounds[stage + 1])


def stage_of(parts: StageParts, role: StageRole, links: StageLinks, done: int, state: TrainingState) -> Stage:
    """Bring a stage's weights to its device, free those of the others, and connect.

    Args:
        parts: of the worker; the model is a stage's afterwards.
        done: steps that were made before.

    Raises:
        JobError: the job's optimizer failed.
        ExchangeError: another stage can't be reached.
        NotPortable, ValueError: the state does not fit.
    """
    config, stage = parts.config, role.stage
    part = part_of(parts, role.bounds, stage)
    part.move(parts.compute.device)
    backend.CPU.release()  # what the other blocks took while they were measured
    shared = parts.seams.shared(role.bounds)
    own = owned(part, stage, shared)
    optimizer = optimizer_over(own.values(), parts.factory, parts.model, config)
    optimizer_options.adopt(optimizer, parts.options)
    average = WeightAverage(config.ema_decay)
    kept = {name: entries for name, entries in state.optimizer.items() if name in own or name == BESIDE}
    into_optimizer(OwnWeights(own), optimizer, kept, average)
    links.codec = codecs.create(role.codec) if role.codec != "fp32" else None
    # The others may take as long to load; of a lost one the coordinator tells.
    links.open(dict(enumerate(role.addresses)), peers(stage, role.stages, shared), TRANSFER_S)
    torch.manual_seed(config.seed)
    return Stage(
        part,
        role,
        shared,
        links,
        parts.compute,
        optimizer,
        average=average,
        config=config,
        done=done,
    )
