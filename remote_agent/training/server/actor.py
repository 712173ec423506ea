"""Defines the parameter server, a Ray actor that holds a shard of the weights and the job's optimizer.

Workers stream gradients to it and weights from it (:meth:`ParameterServer.serve`); the coordinator does not call it
during a step. See Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014), in its
synchronous form.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import warnings
from collections.abc import Sequence

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from remote_agent.strategies import spec_of
from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import Fragment, NotPortable, Resumption
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import TrainingError
from remote_agent.training.server.relay import Relay, RelayServer
from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.shared_memory_server import SharedMemoryServer, SharedWeights
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.shared import dataplane, flat, log_file, optimizer_options, without_compiler
from remote_agent.training.shared.coordinator_watchdog import CoordinatorWatchdog
from remote_agent.training.shared.dataplane import OptimizerFacts
from remote_agent.training.shared.link_speed import LinkEnd
from remote_agent.training.shared.messages import Failed
from remote_agent.training.shared.optimizer_options import OptimizerOptions
from remote_agent.training.shared.output import OUTPUT
from remote_agent.training.user_code import checks, sending
from remote_agent.training.user_code.user_errors import LOADING
from remote_agent.training.wire.endpoint import ShardEndpoint, Stream, StreamInfo, place
from remote_agent.training.wire.shared_memory.memory import available

LOG = logging.getLogger(__name__)


class ParameterServer(LinkEnd):
    """A shard of the weights on this host's CPU; the optimizer steps it chunk by chunk."""

    def __init__(self, threads: int, run: str = "") -> None:
        without_compiler.install()
        if run:
            OUTPUT.install(log_file.place(run, "server"))
        torch.set_num_threads(max(1, threads))
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._watchdog: CoordinatorWatchdog | None = None
        self._streams: list[ShardServer | SharedMemoryServer] = []

    def open(
        self, blob: bytes, state: bytes, config: TrainingConfig, options: OptimizerOptions | None = None
    ) -> Failed | OptimizerFacts:
        """Build model and optimizer, with the run's initial ``state`` (safetensors).

        The optimizer gets the ``options`` of the one in the coordinator's process.
        """
        self._watchdog = CoordinatorWatchdog()
        try:
            factory = job.guard(LOADING, sending.loads, blob)
            self._model = job.create_model(factory, config.seed, config)
            checks.load_first(self._model, state)
            self._optimizer = job.create_optimizer(factory, self._model, config)
            optimizer_options.adopt(self._optimizer, options)
        except TrainingError as error:
            return Failed.of(error)
        self._config = config
        self._resumed = Resumption(step=0)
        self._shapes: dict[str, torch.Size] = {}
        self._held: tuple[Fragment, ...] = ()
        self._first: torch.Tensor | None = None
        return dataplane.facts(self._model, self._optimizer)

    def warm_up(self, blob: bytes) -> None:
        """Load what :meth:`open` will need, and build nothing."""
        with contextlib.suppress(TrainingError):  # opening the job reports it
            job.guard(LOADING, sending.loads, blob)

    def ping(self) -> Failed | None:
        """Answer a ping, with the reason if the streams have ended."""
        if self._watchdog is not None:
            self._watchdog.heard()
        failures = [stream.failure for stream in self._streams if stream.failure is not None]
        return Failed.of(failures[0]) if failures else None

    def begun_step(self) -> int | Failed:
        """The newest step of which this shard has any gradient; or why the streams ended."""
        failure = self.ping()
        if failure is not None:
            return failure
        return self._shard.begun_step()

    def steps(self) -> frozenset[int]:
        """The steps that this shard's chunks have made; see :meth:`Shard.steps`."""
        return self._shard.steps()

    def place(self) -> str:
        """The place of this process; see :func:`~remote_agent.training.wire.endpoint.place`."""
        return place()

    def serve(
        self,
        streamed: Stream,
        number: int,
        secret: bytes,
        kept: NDArray[np.float32] | None,
        relays: bool,
    ) -> ShardEndpoint | Failed:
        """Serve shard ``number`` of the ``streamed`` buffer in the background.

        A shard that was served before ends, since the run continues from an earlier step: with the weights that a
        worker has ``kept`` (shape ``(layout.numel,)``), or without them with the weights of :meth:`open`.
        With ``relays`` :meth:`relay` is called next, for this host's workers.
        """
        plan, layout, codecs = streamed.plan, streamed.layout, streamed.codecs
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        parameters = flat.trained(self._model)
        self._shapes = self._shapes or {name: parameters[name].shape for name in plan.names}
        weights = _moved([parameters[name] for name in plan.names], kept)
        local = spec_of(self._config.strategy).rounds  # then the workers clip
        update = OptimizerUpdate(layout, self._optimizer_of, self._config.ema_decay)
        most_norm = None if local else self._config.clip_norm or None
        shares_memory = streamed.memory and available() and layout.shards == 1
        try:
            done = self._resumed.step
            shared = SharedWeights(layout, weights, done) if shares_memory else None
            keep = shared.keep if shared else None
            shard = Shard(layout, number, weights, update, codecs, most_norm=most_norm, step=done, keep=keep)
            for chunk in shard.chunks:
                part = layout.chunks[chunk]
                update.load_state(chunk, self._resumed.of_chunk(self._shapes, part.begin, part.end))
            self._shard, self._update = shard, update
            network = ShardServer(shard, secret, ray.util.get_node_ip_address())
            self._streams.append(network)
            LOG.info("serves shard %d of %d from step %d on, process %d", number + 1, layout.shards, done, os.getpid())
            if shared is not None:
                self._streams.append(SharedMemoryServer(shard, shared))
        except OSError as error:
            cause = f"the parameter server can't listen: {error}"
            return Failed(cause=cause, hint="look at the host's memory and addresses")
        except NotPortable as error:
            return _not_resumed(error)
        self._resumed = Resumption(step=done)
        self._first = weights if relays else None
        del weights
        _give_back_memory()
        for stream in self._streams:
            stream.start()
        addresses = [stream.address for stream in self._streams if isinstance(stream, SharedMemoryServer)]
        return ShardEndpoint(address=network.address, place=place(), memory="".join(addresses))

    def relay(self, entry: StreamInfo) -> tuple[str, int] | Failed:
        """Serve a relay to all shards, for this host's workers, in the background; returns its address."""
        first, self._first = self._first, None
        assert first is not None, "this server was told that it relays"
        shards = [shard.address for shard in entry.shards]
        try:
            relay = Relay(entry.layout, shards, entry.secret, entry.codecs, first, self._resumed.step)
            server = RelayServer(relay, entry.secret, ray.util.get_node_ip_address())
        except OSError as error:
            return Failed(cause=f"the relay can't listen: {error}", hint="look at the host's memory and addresses")
        self._streams.append(server)
        server.start()
        LOG.info("relays this host's workers to %d shards from step %d on", len(shards), self._resumed.step)
        return server.address

    def _optimizer_of(self, group: int, part: torch.nn.Parameter) -> torch.optim.Optimizer:
        """Make the optimizer for a part of parameter group ``group``."""
        if spec_of(self._config.strategy).rounds:
            # ``outer=none`` makes the weights the mean of the workers', ``outer=nesterov`` is DiLoCo's.
            rate, momentum = self._config.outer_learning_rate, self._config.outer_momentum
            if self._config.outer == "nesterov":
                return torch.optim.SGD([part], lr=rate, momentum=momentum, nesterov=momentum > 0)
            return torch.optim.SGD([part], lr=1.0)
        return dataplane.part_of(self._optimizer, group, part)

    # --- For checkpoints, and going on from one ----------------------------------------------------------------------

    def restore(self, resumed: Resumption) -> None:
        """Continue after ``resumed.step``; call it before :meth:`serve`, which gets the weights."""
        self._resumed = resumed

    def snapshot(self) -> None:
        """Keep the optimizer's current state, between two steps; see :mod:`.optimizer_state`."""
        held = []
        for number in self._shard.chunks:
            chunk = self._shard.layout.chunks[number]
            held.append(Fragment(begin=chunk.begin, end=chunk.end, entries=self._update.state(number)))
        self._held = tuple(held)

    def snapshot_taken(self) -> tuple[Fragment, ...]:
        """Return and forget the state that :meth:`snapshot` kept: the pieces of this shard."""
        held, self._held = self._held, ()
        return held


def _not_resumed(error: Exception) -> Failed:
    return Failed(
        cause=f"the checkpoint's optimizer state can't be used: {error}",
        hint="resume with the model, the optimizer and the strategy that the checkpoint was made with",
    )


def _give_back_memory() -> None:
    """Return the memory of the whole model, which was needed only for a moment; malloc would keep it."""
    with contextlib.suppress(OSError, AttributeError):  # other C libraries than glibc do this by themselves
        ctypes.CDLL(None).malloc_trim(0)


@torch.no_grad()
def _moved(parameters: Sequence[torch.nn.Parameter], kept: NDArray[np.float32] | None) -> torch.Tensor:
    """Move the parameters, or the ``kept`` weights, into one buffer; each parameter frees its own memory at once.

    The buffer is in pages that can be returned to the system.
    """
    if kept is not None:
        for parameter in parameters:
            parameter.data = torch.empty(0)
        return torch.from_numpy(kept)
    numel = sum(parameter.numel() for parameter in parameters)
    buffer = torch.frombuffer(mmap.mmap(-1, 4 * numel), dtype=torch.float32)
    for parameter, part in zip(parameters, torch.split(buffer, [each.numel() for each in parameters]), strict=True):
        part.copy_(parameter.reshape(-1))
        parameter.data = torch.empty(0)
    return buffer
