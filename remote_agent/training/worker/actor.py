"""Defines the worker, a Ray actor that owns one device, measures it, and computes gradient sums of slices."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch

from remote_agent.current_call import HERE, rays_logs
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.strategies import spec_of
from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data.datasets import to_measure
from remote_agent.training.deadlines import BUSY_S, TRANSFER_S
from remote_agent.training.errors import TrainingError
from remote_agent.training.shared import flat, log_file, rpc, without_compiler
from remote_agent.training.shared.audit import Audit, Sketch
from remote_agent.training.shared.coordinator_watchdog import CoordinatorWatchdog
from remote_agent.training.shared.figures import Figures
from remote_agent.training.shared.link_speed import LinkEnd
from remote_agent.training.shared.messages import (
    AuditTask,
    Busy,
    EvaluationTask,
    Failed,
    Measured,
    Pulse,
    WorkerReady,
    WorkerStatus,
)
from remote_agent.training.shared.optimizer_options import OptimizerOptions
from remote_agent.training.shared.output import OUTPUT, Printed
from remote_agent.training.user_code import checks, losses, sending
from remote_agent.training.user_code.ownership import is_users_own
from remote_agent.training.user_code.user_errors import LOADING, LOSS, frames_of_stack, is_out_of_memory
from remote_agent.training.wire.endpoint import place
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device import memory, recompute
from remote_agent.training.worker.device.audit import Auditor
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.profiling import Profiler
from remote_agent.training.worker.device.simulation import SimulatedDevice, simulated_speed
from remote_agent.training.worker.device.trained import Still, TrainedParameters
from remote_agent.training.worker.device.untouched import into_training
from remote_agent.training.worker.engine import Engine, Parts
from remote_agent.training.worker.evaluation import BatchMeter, Metrics, metrics_of
from remote_agent.training.worker.staging import BlockProfiler, cut_between, has_room_for_gradients

LOG = logging.getLogger(__name__)

_LOGGED = frozenset({"join", "rejoin", "take_over", "follow", "enter", "set_aside", "abandon"})
"""Calls of an engine that are logged, since they are not made in every step."""


class Worker(LinkEnd):
    """The worker of one device.

    The strategy's ``engine`` makes its part of the run's steps; the worker has it from :meth:`prepare` on.
    """

    def __init__(self, device: str, threads: int, run: str = "", name: str = "") -> None:
        without_compiler.install()
        OUTPUT.install(log_file.place(run, name))
        HERE.open(rays_logs(), ray.get_runtime_context().get_actor_id())
        torch.set_num_threads(max(1, threads))
        # The object store's arrays are read-only, and so are our uses of them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._wanted = device
        self._engine: Engine | None = None
        self._watchdog = CoordinatorWatchdog()
        self._validated_on: tuple[Any, Any] | None = None  # the ref of the validation data, and the data
        self._changing: set[str] = set()  # of the model's state, what the job's code changes; known once it is measured

    def enter(self, blob: bytes) -> None:
        """Import the job's file, as the data may need modules of the job."""
        with contextlib.suppress(TrainingError):  # opening the job reports it
            job.guard(LOADING, sending.enter, blob)

    def open(
        self, blob: bytes, data: Any, state: bytes, config: TrainingConfig, max_batch: int | None
    ) -> WorkerReady | Failed:
        """Build the job's model on the device, with the run's initial ``state`` (safetensors)."""
        losses.install()
        try:
            factory = job.guard(LOADING, sending.loads, blob)
            if config.deterministic:
                devices.be_deterministic()
            self._device = devices.find(self._wanted)  # its kind may be the job's own
            devices.select(self._device)
            model = job.create_model(factory, config.seed, config)
            checks.load_first(model, state)
            split = spec_of(config.strategy).split
            if not split:
                memory.check_room(model, self._device)
                job.guard(f"moving the model to {self._device}", devices.move_model, model, self._device)
            self._model = model
            modes = into_training(model)
            devices.move_beside(factory, model, self._device)
            self._factory = factory
            speed = simulated_speed()
        except TrainingError as error:
            return Failed.of(error)
        except ValueError as error:
            return Failed(cause=str(error))
        self._config = config
        # A stage's weights are moved to the device once its part is decided.
        self._weights = flat.FlatTensors(torch.nn.Module() if split else self._model, self._device)
        loss = TrainedParameters(self._model).watching(job.loss_function(factory))
        dtype, note = devices.autocast_dtype(self._device, config.precision)
        limits = [limit for limit in (config.micro_batch, max_batch) if limit]
        most = min(limits, default=None)
        self._compute_slice = SliceComputer(self._model, loss, data, self._device, config.seed, most, dtype)
        self._autocast = dtype
        self._measured_with = measured_with = to_measure(data)
        self._profiler: Profiler | BlockProfiler = (
            BlockProfiler(self._compute_slice, self._model, measured_with, factory, config)
            if split
            else Profiler(self._compute_slice, self._model, self._weights, self._device, measured_with)
        )
        notes = [each for each in (note, modes) if each]
        if config.activation_checkpointing:
            cut: Sequence[torch.nn.Module] = ()
            with contextlib.suppress(TrainingError):  # the measurement reports it
                cut = cut_between(self._model, factory) if split else ()
            notes.append(f"activation checkpointing of {recompute.apply(self._model, cut, self._changing)} blocks")
        LOG.info("open on %s, process %d", self._device, os.getpid())
        return WorkerReady(
            machine=machine_id(),
            cores=os.cpu_count() or 1,
            device=str(self._device),
            simulated_speed=speed,
            notes=tuple(notes),
        )

    def use_threads(self, count: int) -> None:
        """Set the number of threads for computing."""
        torch.set_num_threads(count)

    def measure(self, sizes: Sequence[int], seconds: float) -> Measured | Failed:
        """Time slices, while no other worker computes on the same computer."""
        try:
            return self._profiler.measure(sizes, seconds, self._config.batch_size)
        except TrainingError as error:
            return Failed.of(error)

    def audit(self, task: AuditTask) -> Audit | Sketch | Failed | None:
        """Compute the task's samples for an audit; returns None where there is no room for so many together."""
        split = spec_of(self._config.strategy).split  # then the model is on the CPU, and may fill its memory
        computer = self._compute_slice.on(torch.device("cpu")) if split else copy.copy(self._compute_slice)
        computer.unit = self._config.unit  # an audit comes before `prepare`, too
        auditor = Auditor(self._model, computer, gradients=not split or has_room_for_gradients(self._model))
        indices = self._measured_with if task.indices is None else task.indices
        losses.at_step(task.step)
        if not task.alone and computer.most and len(indices) > computer.most:
            return None
        call: Callable[[], Audit | Sketch] = (
            partial(auditor.alone, indices, stir=not task.in_run, noise=task.noise)
            if task.alone
            else partial(auditor.whole, indices, evaluating=task.evaluating, stir=not task.in_run)
        )
        try:
            found: Audit | Sketch = job.guard(LOSS, call)
        except TrainingError as error:
            if not is_out_of_memory(error.__cause__ or error):
                return Failed.of(error)
            devices.release_memory(self._device)
            return None
        finally:
            computer.scalars.again()
        return found

    def ping(self) -> Pulse:
        """Answer a ping with this worker's progress."""
        self._watchdog.heard()
        engine = self._engine
        if engine is None:
            return Pulse(busy=_busy(), quiet_s=HERE.quiet_s())
        return Pulse(done=engine.computed, following=engine.following, busy=_busy())

    def printed(self) -> Printed:
        """The output of the user's code since the last call."""
        return OUTPUT.take()

    def prepare(
        self,
        buffer_names: Sequence[str],
        reference: DeviceProfile | None,
        config: TrainingConfig,
        options: OptimizerOptions | None = None,
    ) -> None:
        """Apply the results of the measurement of all devices, before the first slice.

        Args:
            buffer_names: the buffers and frozen parameters that are sent with the weights.
            reference: reference speed of a simulated device.
            config: the run's resolved configuration.
            options: of the optimizer in the coordinator's process.
        """
        self._config = config
        self._compute_slice.unit, self._compute_slice.summed = config.unit, config.loss_reduction == "sum"
        speed = simulated_speed()
        if speed is not None and reference is not None:
            self._compute_slice.simulated = SimulatedDevice(speed, reference)
        self._compute_slice.changing = tuple(buffer_names)
        self._changing.update(buffer_names)
        self._compute_slice.still = Still(self._model, buffer_names)
        self._compute_slice.scalars.take()  # drop those of the measurement
        metrics = partial(self._share_of, metrics_of(self._factory, summed=self._compute_slice.summed))
        self._meter = BatchMeter(self._model, metrics, self._device, config.seed, self._autocast)
        self._meter.changing = self._compute_slice.changing
        parts = Parts(
            model=self._model,
            weights=self._weights,
            compute=self._compute_slice,
            factory=self._factory,
            config=config,
            buffers=tuple(buffer_names),
            options=options,
            blocks=self._profiler if isinstance(self._profiler, BlockProfiler) else None,
        )
        self._engine = spec_of(config.strategy).engine()(parts)

    # --- Streamed ----------------------------------------------------------------------------------------------------

    def place(self) -> str:
        """The place of this process; see :func:`~remote_agent.training.wire.endpoint.place`."""
        return place()

    def account(self, coordinator: str) -> WorkerStatus | None:
        """Accept tasks only from this coordinator from now on; see :meth:`Engine.account`."""
        self._watchdog.heard()
        return self._engine.account(coordinator) if self._engine is not None else None

    def engine(self, method: str, *arguments: Any) -> Any:
        """Call a public method of the strategy's engine."""
        assert self._engine is not None, "the worker is prepared"
        assert not method.startswith("_"), "it is for the strategy's other half"
        if method in _LOGGED:
            steps = [str(each) for each in arguments if type(each) is int]
            LOG.info("is told to %s", " ".join((method, *steps)))
        return getattr(self._engine, method)(*arguments)

    # --- Evaluation --------------------------------------------------------------------------------------------------

    def evaluate(self, task: EvaluationTask) -> dict[int, Figures] | Failed:
        """Evaluate the task's batches of the validation data, by their numbers, between two steps."""
        if self._validated_on is None or self._validated_on[0] != task.data[0].raw:
            self._validated_on = task.data[0].raw, rpc.get(task.data[0], TRANSFER_S)
        try:
            return self._meter(self._validated_on[1], task.batches, checked=task.checked)
        except TrainingError as error:
            return Failed.of(error)

    def _share_of(self, metrics: Metrics, model: torch.nn.Module, batch: Any) -> Mapping[str, Any]:
        """The part of a batch's ``metrics`` that this worker's part of the model computes."""
        assert self._engine is not None, "the worker is prepared"
        return self._engine.share_of(partial(metrics, model, batch))


def _busy() -> Busy | None:
    """The current call of the user's code, if it takes long."""
    now = HERE.now()
    if now is None or now[1] < BUSY_S:
        return None
    place, seconds, frame = now
    own = [each for each in frames_of_stack(frame) if is_users_own(each.file)]
    return Busy(place=place, seconds=seconds, frames=tuple(own))


def machine_id() -> str:
    """The name of the physical computer; machines on the same one share cores and are measured one after the other."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else f"{uuid.getnode():x}"
