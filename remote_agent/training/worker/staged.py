"""The engine of a pipeline: the worker has one stage of the model, or none; see ``stage``."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Mapping
from typing import Any

import ray
import torch
from torch import nn

from remote_agent.models.nf4 import DIGEST, is_other, other_base
from remote_agent.models.part import Part
from remote_agent.planning.blocks import DeviceBlocks
from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import (
    NotPortable,
    Packed,
    TrainingState,
    of_average,
    of_optimizer,
    packed,
    unpacked,
)
from remote_agent.training.errors import JobError, TrainingError
from remote_agent.training.shared import flat
from remote_agent.training.shared.flat import Payload
from remote_agent.training.shared.messages import Failed
from remote_agent.training.shared.stages import (
    Commit,
    StageBroken,
    StageDone,
    StageRole,
    StageTask,
    StageWeights,
)
from remote_agent.training.user_code.checks import SAME
from remote_agent.training.user_code.user_errors import is_out_of_memory
from remote_agent.training.wire.errors import ConnectionBroken, ExchangeError
from remote_agent.training.wire.stage_links import StageLinks
from remote_agent.training.worker.device import backend
from remote_agent.training.worker.engine import Answer, Parts, WaitingEngine, unusable
from remote_agent.training.worker.own_weights import OwnWeights
from remote_agent.training.worker.stage import Stage
from remote_agent.training.worker.staging import StageParts, part_of, stage_of


@torch.no_grad()
def renew(parts: StageParts) -> None:
    """Build the whole model on the CPU again, as ``create_model`` gives it, after a stage kept only its own part.

    Raises:
        JobError: ``create_model`` failed, or gave another model than before.
    """
    model = parts.model
    Part(model, parts.blocks, parts.seams, 0, 0).move("cpu")  # free its memory before the new one takes some
    gc.collect()  # an optimizer and its scheduler refer to each other
    backend.of(parts.compute.device).release()
    fresh = job.create_model(parts.factory, parts.config.seed, parts.config)
    weights, modules = dict(fresh.named_parameters()), dict(fresh.named_modules())
    try:
        for name, parameter in model.named_parameters():
            parameter.data = weights[name].data
        for place, module in model.named_modules():
            for name, _ in module.named_buffers(recurse=False):
                setattr(module, name, getattr(modules[place], name))
    except (KeyError, AttributeError, RuntimeError) as error:
        raise JobError(f"create_model gave another model than before: {error}", hint=SAME) from error


def bring(model: nn.Module, weights: StageWeights) -> None:
    """Have these numbers in the model, by name.

    Raises:
        ValueError: they are of another model.
        JobError: they belong beside other frozen weights.
    """
    own = flat.carried(model)
    with torch.no_grad():
        for name, (dtype, numbers) in weights.items():
            given = flat.from_bytes(numbers.copy(), getattr(torch, dtype.removeprefix("torch.")))
            if given.numel() != own[name].numel():
                raise ValueError(f"create_model gave another model here: {name} has {own[name].numel():,} numbers")
            if name.endswith(DIGEST) and is_other(given, own[name]):
                raise JobError(f"create_model gave another model on this host: {other_base(name)}", hint=SAME)
            own[name].copy_(given.view(own[name].shape))


class StageEngine(WaitingEngine):
    """See the module."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        assert parts.blocks is not None, "the model was measured block by block"
        self._blocks = parts.blocks
        self._links: StageLinks | None = None
        self._stage: Stage | None = None

    def join(self, way: Payload, late: bool = False) -> str | Failed:
        del way, late
        return "TCP"

    def abandon(self) -> None:
        """Stop waiting for other stages, since one of them is lost."""
        if self._links is not None:
            self._links.fail("the model is cut anew")

    def release(self) -> Failed | None:
        """Give up the stage, and build the whole model again, as ``create_model`` gives it."""
        links, self._links = self._links, None
        if links is None:
            return None
        links.close()
        self._stage = None
        assert self._blocks.parts is not None, "it was measured"
        try:
            renew(self._blocks.parts)
        except TrainingError as error:
            return Failed.of(error)
        return None

    def costs(self) -> DeviceBlocks:
        """What was measured."""
        return self._blocks.costs

    def names(self) -> tuple[str, ...]:
        """The trained parameters of the whole model, in its order."""
        return tuple(flat.trained(self.parts.model))

    def listen(self, stage: int, secret: bytes) -> tuple[str, int]:
        """Be this stage, and listen for the others; returns (host, port)."""
        self._links = StageLinks(stage, secret, ray.util.get_node_ip_address())
        return self._links.address

    def fingerprints(self, bounds: tuple[int, ...], stage: int) -> dict[str, str]:
        """Of all tensors of the model that ``stage`` uses, as ``create_model`` gave them here; cut at ``bounds``."""
        parts = self._blocks.parts
        assert parts is not None, "it was measured"
        used = part_of(parts, bounds, stage).tensors()
        return {name: flat.fingerprint(each) for name, each in flat.carried(parts.model).items() if name in used}

    def take(self, role: StageRole, weights: StageWeights, done: int, state: Packed) -> Failed | StageBroken | None:
        """Hold a stage's weights alone, and connect to the other stages.

        Args:
            weights: the run's, where they are other ones than ``create_model`` gave here.
            done: steps that were made before.
        """
        assert self._links is not None, "it listens"
        assert self._blocks.parts is not None, "it was measured"
        try:
            bring(self._blocks.parts.model, weights)
            settled = dataclasses.replace(self._blocks.parts, config=self.parts.config, options=self.parts.options)
            self._stage = stage_of(settled, role, self._links, done, TrainingState(optimizer=unpacked(state)))
        except ExchangeError as error:
            return self._broken(error)
        except TrainingError as error:
            return Failed.of(error)
        except (NotPortable, ValueError) as error:
            return unusable(error)
        return None

    def _broken(self, error: ExchangeError) -> StageBroken:
        """A connection broke: end the others, too, so that no stage waits for this one."""
        assert self._links is not None, "it listens"
        self._links.close()
        return StageBroken(cause=error.cause)

    @property
    def stage(self) -> Stage:
        assert self._stage is not None, "it has a stage"
        return self._stage

    def step(self, task: StageTask) -> StageDone | StageBroken | Failed:
        """The stage's part in a step; see :meth:`Stage.step`."""
        done = self._answered(lambda: self.stage.step(task))
        if isinstance(done, StageDone):
            return dataclasses.replace(done, scalars=self.parts.compute.scalars.take())
        return done

    def commit(self, commit: Commit) -> StageBroken | Failed | None:
        return self._answered(lambda: self.stage.commit(commit))

    def _answered(self, work: Callable[[], Answer]) -> Answer | StageBroken | Failed:
        try:
            return work()
        except ConnectionBroken as error:
            return self._broken(error)
        except TrainingError as error:
            return Failed.of(error)

    def share_of(self, function: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """The figures of a batch, of the last stage; of the others, and where one is lost meanwhile, none."""
        if self._stage is None:
            return {}
        try:
            return self._stage.forward(function, self.parts.config.seed) or {}
        except ConnectionBroken as error:
            self._broken(error)
            return {}  # the next step says more
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise JobError(
                "a batch of the validation data does not fit into memory", hint="lower batch_size"
            ) from error

    # Ray copies what these two return into its store before the next call: a copy here would double the memory.

    def own_weights(self) -> StageWeights:
        """The weights that the stage steps, as they are now."""
        return {
            name: (str(each.dtype), flat.to_bytes(each.detach().reshape(-1))) for name, each in self.stage.own.items()
        }

    def remembered(self) -> tuple[Packed, str]:
        """What the stage's optimizer remembers now, and why that is nothing if it can't be kept."""
        stage = self.stage
        try:
            return packed(of_optimizer(OwnWeights(stage.own), stage.optimizer, stage.average, copied=False)), ""
        except NotPortable as error:
            return packed(of_average(OwnWeights(stage.own), stage.average)), str(error)

    @property
    def computed(self) -> int:
        return self._stage.computed if self._stage is not None else 0
