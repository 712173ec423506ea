"""The worker: a Ray actor that owns one device, measures it, and turns slices into gradient sums."""

from __future__ import annotations

import dataclasses
import uuid
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import ray
import safetensors.torch
import torch
from numpy.typing import NDArray

from remote_agent.training import flat, job, rpc, without_compiler
from remote_agent.training.config import STALE_STRATEGIES, TrainingConfig
from remote_agent.training.dataplane import StreamPlan
from remote_agent.training.deadlines import TRANSFER_S
from remote_agent.training.devices import device as devices
from remote_agent.training.devices import recompute
from remote_agent.training.devices.compute import SliceComputer
from remote_agent.training.devices.profiling import Profiler
from remote_agent.training.errors import TrainingError
from remote_agent.training.exchange import Codecs, Layout, StaleClient
from remote_agent.training.flat import Payload
from remote_agent.training.messages import (
    Account,
    Broken,
    Failed,
    Measured,
    Opened,
    Pulse,
    Reduced,
    ReductionTask,
    Skipped,
    SliceResult,
    SliceTask,
    StaleResult,
    StaleTask,
    StreamedAnswer,
    StreamedResult,
    StreamedTask,
    Unlinked,
)
from remote_agent.training.placing.links import LinkEnd
from remote_agent.training.rpc import Ref
from remote_agent.training.saving.optimizer_state import (
    NotPortable,
    Resumption,
    States,
    TrainingState,
    into_optimizer,
    of_optimizer,
)
from remote_agent.training.speed.shares import DeviceProfile
from remote_agent.training.speed.simulation import SimulatedDevice, simulated_speed
from remote_agent.training.working import schedule
from remote_agent.training.working.assignments import Assignments
from remote_agent.training.working.channels import Door, Entry, NetworkChannel, open_channel, place
from remote_agent.training.working.latecomer import Latecomer
from remote_agent.training.working.local_rounds import LocalRounds
from remote_agent.training.working.object_steps import ObjectSteps
from remote_agent.training.working.orphan import Orphan
from remote_agent.training.working.reduction import Reduction
from remote_agent.training.working.stale_steps import StaleSteps
from remote_agent.training.working.streaming import Streaming

Answer = TypeVar(
    "Answer",
    StreamedAnswer,
    StaleResult | Failed | Unlinked,
)

REPAIR, PING, EXCHANGE = "repair", "ping", "exchange"
GROUPS = (REPAIR, PING, EXCHANGE)
"""Calls that are carried out while a step or slice is under way: :meth:`Worker.repair`, :meth:`Worker.ping` and
:meth:`Worker.stale_exchange`."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a worker was after a step: the streamed weights, on the CPU, and its own optimizer's state."""

    weights: torch.Tensor
    inner: States


class Worker(LinkEnd):
    """One device's worker.

    A slice is computed by :meth:`compute`, with weights that arrive with the call, or (when weights and gradients are
    streamed) as a part of :meth:`step`, with the weights that the step before brought.
    """

    def __init__(self, device: str, threads: int) -> None:
        without_compiler.install()
        torch.set_num_threads(max(1, threads))
        # The object store's arrays are read-only, and so are our uses of them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._wanted = device
        self._streaming: Streaming | None = None
        self._reduction: Reduction | None = None
        self._latecomer = Latecomer()
        self._stale: StaleSteps | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._resumed, self._held = Resumption(step=0), TrainingState()
        self._streamed: tuple[str, ...] = ()
        self._kept: dict[int, Kept] = {}
        self._assignments = Assignments()
        self._orphan = Orphan()

    def open(
        self, blob: bytes, data: Any, state: bytes, config: TrainingConfig, max_batch: int | None
    ) -> Opened | Failed:
        """Build the job's model on the device, with the run's initial ``state`` (safetensors)."""
        try:
            self._device = devices.find(self._wanted)
            factory = job.guard("loading the job", job.loads, blob)
            model = job.create_model(factory, config.seed)
            model.load_state_dict(safetensors.torch.load(state), strict=False)
            self._model = model.to(self._device).train()
            self._factory = factory
            speed = simulated_speed()
        except TrainingError as error:
            return Failed.of(error)
        except ValueError as error:
            return Failed(cause=str(error))
        self._config = config
        self._weights = flat.FlatTensors(self._model, self._device)
        loss = job.loss_function(factory)
        dtype, note = devices.autocast_dtype(self._device, config.precision)
        limits = [limit for limit in (config.micro_batch, max_batch) if limit]
        most = min(limits, default=None)
        self._compute_slice = SliceComputer(self._model, loss, data, self._device, config.seed, most, dtype)
        self._profiler = Profiler(self._compute_slice, self._model, self._weights, self._device, len(data))
        notes = [note] if note else []
        if config.activation_checkpointing:
            notes.append(f"activation checkpointing of {recompute.apply(self._model)} blocks")
        self._objects = ObjectSteps(self._model, self._weights, self._device, self._compute_slice)
        return Opened(machine=machine_id(), device=str(self._device), simulated_speed=speed, notes=tuple(notes))

    def measure(self, sizes: Sequence[int], seconds: float) -> Measured | Failed:
        """See :meth:`~remote_agent.training.devices.profiling.Profiler.measure`."""
        try:
            return self._profiler.measure(sizes, seconds, self._config.batch_size)
        except TrainingError as error:
            return Failed.of(error)

    def ping(self) -> Pulse:
        """Answer, and say how far this worker is."""
        self._orphan.heard()
        parts = self._streaming or self._stale
        if parts is not None:
            return Pulse(done=parts.computed, following=parts.following)
        done = self._reduction.contributed if self._reduction is not None else 0
        return Pulse(done=done, following=self._latecomer.following)

    def prepare(self, buffer_names: Sequence[str], reference: DeviceProfile | None, iterations: int) -> None:
        """What the measurement of all devices showed, before the first slice.

        Args:
            buffer_names: the buffers that travel with the weights.
            reference: of a simulated device.
            iterations: the run's last step, as far as it is known now.
        """
        self._objects.buffer_names = tuple(buffer_names)
        self._config = dataclasses.replace(self._config, num_iterations=iterations)
        speed = simulated_speed()
        if speed is not None and reference is not None:
            self._compute_slice.simulated = SimulatedDevice(speed, reference)
        self._compute_slice.changing = self._objects.buffer_names

    def compute(
        self, task: SliceTask, weights: Payload | None
    ) -> tuple[Payload | None, SliceResult | Failed | Skipped]:
        """The gradient SUM over the slice's samples, and the slice's outcome.

        Args:
            task: which samples.
            weights: the groups of trained parameters, then of changed buffers, as bytes; None: the step before failed.

        Returns:
            Payload in the layout of ``weights`` (gradients in place of parameters), and the result.
        """
        return self._objects.compute(task, weights)

    # --- Streamed ----------------------------------------------------------------------------------------------------

    def place(self) -> str:
        """Where this process is; see :func:`~remote_agent.training.working.channels.place`."""
        return place()

    def join(
        self, plan: StreamPlan, layout: Layout, doors: Sequence[Door], secret: bytes, codecs: Codecs, late: bool = False
    ) -> str | Failed:
        """Connect to the shards. Returns the kind of channel, in words.

        Args:
            plan: what is streamed.
            layout: how it is cut.
            doors: the shards, in the layout's order.
            secret: what both ends must know.
            codecs: for the network.
            late: steps were made without this worker: it has to :meth:`follow` before it can take part in one.
        """
        self._streamed = plan.names
        parameters = flat.trained(self._model)
        weights = self._streamed_weights()
        self._weights.flats.clear()  # the channel has its own, and for gradients too
        self._objects.release()
        for parameter in parameters.values():
            parameter.grad = None
        if self._config.strategy in STALE_STRATEGIES:
            client = StaleClient(layout, [door.address for door in doors], secret, codecs)
            parts_of_model = (self._model, plan.names, plan.watched)
            clip_norm, done = self._config.clip_norm, self._resumed.step
            self._stale = StaleSteps(*parts_of_model, client, self._compute_slice, clip_norm, done)
            self._compute_slice.on_repeat = self._stale.again
            return NetworkChannel.kind
        try:
            channel = open_channel(layout, doors, secret, weights, codecs, None if late else self._resumed.step)
            parts = (self._model, plan.names, plan.watched, channel, self._compute_slice)
            if self._config.strategy == "local_sgd":
                self._optimizer = job.create_optimizer(self._factory, self._model, self._config)
                into_optimizer(self._model, self._optimizer, self._resumed.state.optimizer)
                options = schedule.create(self._factory, self._optimizer, self._config)
                self._streaming = LocalRounds(*parts, self._optimizer, options, self._config.clip_norm)
            else:
                self._streaming = Streaming(*parts)
        except TrainingError as error:
            return Failed.of(error)
        except NotPortable as error:
            return Failed(cause=f"the checkpoint's optimizer state can't be used: {error}")
        self._compute_slice.on_repeat = self._streaming.again
        return channel.kind

    def step(self, task: StreamedTask) -> StreamedAnswer:
        """This worker's part in a streamed step; see :meth:`Streaming.step`."""
        assert self._streaming is not None, "the worker has joined"
        if not self._assignments.begin(task):
            return Unlinked(cause=f"step {task.step} is of a coordinator that was killed")
        answer = self._about_memory(self._streaming.step(task))
        self._assignments.end(task, answer)
        return answer

    def repair(self, task: StreamedTask) -> StreamedAnswer:
        """A slice that another worker has lost; see :meth:`Streaming.repair`."""
        assert self._streaming is not None, "the worker has joined"
        answer = self._about_memory(self._streaming.repair(task))
        self._assignments.repaired(task, answer)
        return answer

    def account(self, coordinator: str) -> Account | None:
        """Heed this coordinator alone from now on; see :meth:`Assignments.account`."""
        self._orphan.heard()
        return self._assignments.account(coordinator, self._streaming)

    def outcome(self, step: int) -> StreamedAnswer:
        """What came of this worker's part in ``step``, which it has begun for a coordinator that was killed."""
        return self._assignments.outcome(step)

    def follow(self) -> Unlinked | None:
        """Get up to date, and take part again once :meth:`enter` says from when on; see :meth:`Streaming.follow`."""
        if self._stale is not None:
            return self._stale.follow()
        if self._config.strategy == "allreduce":
            self._latecomer.follow()
            return None
        assert self._streaming is not None, "the worker has joined"
        return self._streaming.follow()

    def enter(self, step: int) -> None:
        """See :meth:`Streaming.enter`; without common steps it takes part from now on."""
        if self._stale is not None:
            self._stale.enter()
            return
        if self._reduction is not None:
            self._latecomer.enter()
            return
        assert self._streaming is not None, "the worker has joined"
        self._streaming.enter(step)

    def set_aside(self, step: int) -> None:
        """See :meth:`Streaming.set_aside`; without common steps nothing has to be caught up with."""
        if self._stale is not None:
            return
        assert self._streaming is not None, "the worker has joined"
        self._streaming.set_aside(step)

    def stale_slice(self, task: StaleTask) -> None:
        """Compute a slice that waits for no others; see :meth:`StaleSteps.compute`."""
        assert self._stale is not None, "the worker has joined"
        self._stale.compute(task)

    def stale_exchange(self, number: int) -> StaleResult | Failed | Unlinked:
        """Exchange the gradient of that slice, and tell how it went; see :meth:`StaleSteps.exchange`."""
        assert self._stale is not None, "the worker has joined"
        return self._about_memory(self._stale.exchange(number))

    # --- Going back to an earlier step, with other shards ------------------------------------------------------------

    def keep(self, step: int, still: int) -> bool:
        """Keep, between two steps, what this worker needs to go back to ``step``, and what it kept for ``still``.

        Returns whether it could: not while it has not got the step's weights.
        """
        parts = self._streaming or self._stale
        weights = parts.common(step) if parts is not None else None
        self._kept = {known: kept for known, kept in self._kept.items() if known == still}
        if weights is None:
            return False
        inner = of_optimizer(self._model, self._optimizer) if self._optimizer is not None else {}
        self._kept[step] = Kept(weights=weights, inner=inner)
        return True

    def kept_weights(self, step: int) -> NDArray[np.float32] | None:
        """The streamed weights after ``step``, shape ``(layout.numel,)``; None: they were not kept."""
        kept = self._kept.get(step)
        return kept.weights.numpy() if kept is not None else None

    def abandon(self) -> None:
        """End the steps that wait for the shards, some of which are gone."""
        parts = self._streaming or self._stale
        if parts is not None:
            parts.abandon()

    def rejoin(self, kept: NDArray[np.float32] | None, step: int, door: Entry) -> str | Failed:
        """Go back to ``step``, and on with other shards; as :meth:`join`.

        Args:
            kept: the weights after ``step``, for a worker that has not kept them itself.
            step: is the last one that counts.
            door: to the shards.
        """
        mine = self._kept.get(step)
        if mine is None and kept is None:
            return Failed(cause=f"the weights of step {step} are not here", hint="resume the run")
        weights = mine.weights if mine is not None else torch.tensor(kept)
        parts = self._streaming or self._stale
        if parts is not None:
            parts.close()
        parameters, begin = flat.trained(self._model), 0
        for name in door.plan.names:
            parameter = parameters[name]
            part = weights[begin : begin + parameter.numel()]
            parameter.data = part.to(parameter.device, copy=True).view(parameter.shape)
            begin += parameter.numel()
        self._resumed = Resumption(step=step, state=TrainingState(optimizer=mine.inner if mine is not None else {}))
        self._assignments.forget()
        return self.join(door.plan, door.layout, door.doors, door.secret, door.codecs)

    def _streamed_weights(self) -> torch.Tensor:
        parameters = flat.trained(self._model)
        return torch.cat([parameters[name].detach().reshape(-1) for name in self._streamed])

    def _about_memory(self, answer: Answer) -> Answer:
        """``answer``, which says so if the device's memory was full meanwhile."""
        if not isinstance(answer, StreamedResult | StaleResult):
            return answer
        return dataclasses.replace(answer, at_most=self._compute_slice.reduced())

    def weights(self) -> Payload:
        """The trained parameters as they are now, by dtype; in an all-reduce the changed buffers too."""
        if self._reduction is not None:
            return self._reduction.payload()
        if self._stale is not None:
            return self._stale.weights()
        return flat.gather(flat.trained(self._model))

    # --- All-reduce --------------------------------------------------------------------------------------------------

    def join_reduction(self, buffers: Payload) -> Failed | None:
        """Take part in reductions from now on; before the first step the changed ``buffers`` are these."""
        try:
            optimizer = job.create_optimizer(self._factory, self._model, self._config)
            into_optimizer(self._model, optimizer, self._resumed.state.optimizer)
            self._reduction = Reduction(
                self._model,
                self._weights,
                self._compute_slice,
                optimizer,
                schedule=schedule.create(self._factory, optimizer, self._config),
                most_norm=self._config.clip_norm,
                seed=self._config.seed,
                first=(self._objects.buffer_names, buffers),
                done=self._resumed.step,
                address=ray.util.get_node_ip_address(),
            )
        except TrainingError as error:
            return Failed.of(error)
        except (NotPortable, ValueError) as error:
            return Failed(cause=f"the checkpoint's optimizer state can't be used: {error}")
        self._optimizer = optimizer
        self._objects.release()  # the reduction has gradients of its own
        return None

    def take_over(self, step: int, given: tuple[Ref[Payload], Ref[TrainingState]]) -> Failed | None:
        """Be what another worker is after ``step``, and take part in reductions from the next one on.

        Args:
            step: the last one that is applied.
            given: the other one's :meth:`weights` and optimizer state.
        """
        payload, state = rpc.get(given[0], TRANSFER_S), rpc.get(given[1], TRANSFER_S)
        if state.missing:
            return Failed(cause=f"it can't take over the optimizer's state: {state.missing}")
        self._objects.load(payload)
        self._resumed = Resumption(step=step, state=state)
        return self.join_reduction(payload[len(self._weights.flats) :])

    def reduce(self, task: ReductionTask) -> Reduced | Broken | Failed:
        """This worker's part in a step; see :meth:`Reduction.step`."""
        assert self._reduction is not None, "the worker has joined"
        return self._reduction.step(task)

    def commit(self, step: int) -> Failed | None:
        """Apply ``step``, which was reduced; see :meth:`Reduction.commit`."""
        assert self._reduction is not None, "the worker has joined"
        try:
            self._reduction.commit(step)
        except TrainingError as error:
            return Failed.of(error)
        return None

    def give_up_group(self, number: int) -> None:
        """Stop waiting in group ``number``; see :meth:`Reduction.give_up`."""
        assert self._reduction is not None, "the worker has joined"
        self._reduction.give_up(number)

    def reduction_progress(self) -> tuple[int, int]:
        """The last step whose slices this worker has computed, and how many pieces it has reduced so far."""
        assert self._reduction is not None, "the worker has joined"
        return self._reduction.contributed, self._reduction.moved

    # --- For checkpoints, and going on from one ----------------------------------------------------------------------

    def restore(self, resumed: Resumption) -> None:
        """Go on from a checkpoint, with the state of this worker's own optimizer if it has one; before :meth:`join`."""
        self._resumed = resumed

    def snapshot(self) -> None:
        """Keep what this worker's own optimizer remembers, between two steps; see :mod:`.optimizer_state`."""
        self._held = TrainingState()
        if self._optimizer is None:
            return
        try:
            self._held = TrainingState(optimizer=of_optimizer(self._model, self._optimizer))
        except NotPortable as error:
            self._held = TrainingState(missing=str(error))

    def snapshot_taken(self) -> TrainingState:
        """What :meth:`snapshot` kept, once."""
        held, self._held = self._held, TrainingState()
        return held


def machine_id() -> str:
    """Names the physical computer: machines that share it share its cores, so they are measured one after the other."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else f"{uuid.getnode():x}"
