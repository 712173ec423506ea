"""The parameter server: a Ray actor with the weights and the job's optimizer.

Where gradients and weights are streamed, it serves a shard of them (:meth:`ParameterServer.serve`) and is not called
any more. Else a step is one call, :meth:`ParameterServer.apply`, with exactly one gradient for each of the step's
slices; it changes all or nothing. Both follow Li et al., "Scaling Distributed Machine Learning with the Parameter
Server" (OSDI 2014), in its synchronous form.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import time
import warnings
from collections.abc import Sequence

import numpy as np
import ray
import safetensors.torch
import torch
from numpy.typing import NDArray

from remote_agent.training import dataplane, flat, job, without_compiler
from remote_agent.training.config import STALE_STRATEGIES, TrainingConfig
from remote_agent.training.dataplane import OptimizerFacts, StreamPlan
from remote_agent.training.errors import TrainingError
from remote_agent.training.exchange import (
    Codecs,
    Layout,
    OptimizerUpdate,
    Shard,
    ShardServer,
    StaleServer,
    StaleShard,
)
from remote_agent.training.flat import Payload
from remote_agent.training.lane import Board, LaneServer, available
from remote_agent.training.messages import Applied, Failed, Refused, Skipped, SliceResult, Stamps
from remote_agent.training.placing.links import LinkEnd
from remote_agent.training.saving.optimizer_state import (
    WEIGHTS,
    Fragment,
    NotPortable,
    Resumption,
    TrainingState,
    into_optimizer,
    of_optimizer,
)
from remote_agent.training.working import schedule
from remote_agent.training.working.channels import Door, place
from remote_agent.training.working.local_rounds import outer_optimizer
from remote_agent.training.working.orphan import Orphan

PIECE = 1 << 15
"""Elements that are summed and divided at a time: they stay in a core's cache, and torch starts no threads for them."""


class ParameterServer(LinkEnd):
    """Weights on this host's CPU, in one flat buffer per dtype; the optimizer works on views into them."""

    def __init__(self, threads: int) -> None:
        without_compiler.install()
        torch.set_num_threads(max(1, threads))
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._orphan: Orphan | None = None

    def open(self, blob: bytes, state: bytes, config: TrainingConfig) -> Failed | OptimizerFacts:
        """Build model and optimizer, with the run's initial ``state`` (safetensors)."""
        self._orphan = Orphan()
        try:
            factory = job.guard("loading the job", job.loads, blob)
            self._model = job.create_model(factory, config.seed)
            self._model.load_state_dict(safetensors.torch.load(state), strict=False)
            self._optimizer = job.create_optimizer(factory, self._model, config)
            self._schedule = schedule.create(factory, self._optimizer, config)
        except TrainingError as error:
            return Failed.of(error)
        self._config = config
        self._step = 0
        self._applied: Applied | None = None
        self._streams: list[ShardServer | StaleServer | LaneServer] = []
        self._resumed = Resumption(step=0)
        self._shapes: dict[str, torch.Size] = {}
        self._held: TrainingState | tuple[Fragment, ...] = TrainingState()
        return dataplane.facts(self._model, self._optimizer)

    def warm_up(self, blob: bytes) -> None:
        """Load what :meth:`open` will need, and build nothing."""
        with contextlib.suppress(TrainingError):  # whoever opens it hears of that
            job.guard("loading the job", job.loads, blob)

    def ping(self) -> Failed | None:
        """Answer, and say why the streams ended, if they did."""
        if self._orphan is not None:
            self._orphan.heard()
        failures = [stream.failure for stream in self._streams if stream.failure is not None]
        return Failed.of(failures[0]) if failures else None

    def begun_step(self) -> int | Failed:
        """The newest step that this shard has got any gradient of; or why the streams ended."""
        failure = self.ping()
        if failure is not None:
            return failure
        assert isinstance(self._shard, Shard), "its strategy has common steps"
        return self._shard.begun_step()

    def place(self) -> str:
        """Where this process is; see :func:`~remote_agent.training.working.channels.place`."""
        return place()

    def serve(
        self,
        plan: StreamPlan,
        layout: Layout,
        number: int,
        secret: bytes,
        memory: bool,
        codecs: Codecs,
        kept: NDArray[np.float32] | None = None,
    ) -> Door | Failed:
        """Serve shard ``number`` of the streamed buffer from now on, in the background; and through ``memory``?

        A shard that is served already ends: the run goes on from an earlier step, with the weights that a worker has
        ``kept`` (shape ``(layout.numel,)``), and without them with those that came with :meth:`open`.
        """
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        parameters = flat.trained(self._model)
        self._shapes = self._shapes or {name: parameters[name].shape for name in plan.names}
        weights = _moved([parameters[name] for name in plan.names], kept)
        local = self._config.strategy == "local_sgd"  # the workers clip, and follow the schedule
        options = self._schedule.options if self._schedule is not None and not local else None
        update = OptimizerUpdate(layout, self._optimizer_of, options)
        most_norm = self._config.clip_norm or None if not local else None
        shares_memory = memory and available() and layout.shards == 1
        try:
            done = self._resumed.step
            board = Board(layout, weights, done) if shares_memory else None
            keep = board.keep if board else None
            shard: Shard | StaleShard
            if self._config.strategy in STALE_STRATEGIES:
                shard = StaleShard(layout, number, weights, update, codecs, batch=self._config.batch_size, step=done)
            else:
                shard = Shard(layout, number, weights, update, codecs, most_norm=most_norm, step=done, keep=keep)
            for chunk in shard.chunks:
                part = layout.chunks[chunk]
                update.load_state(chunk, self._resumed.of_chunk(self._shapes, part.begin, part.end))
            self._shard, self._update = shard, update
            here = ray.util.get_node_ip_address()
            network = ShardServer(shard, secret, here) if isinstance(shard, Shard) else StaleServer(shard, secret, here)
            self._streams.append(network)
            if board is not None and isinstance(shard, Shard):
                self._streams.append(LaneServer(shard, board))
        except OSError as error:
            cause = f"the parameter server can't listen: {error}"
            return Failed(cause=cause, hint="look at the host's memory and addresses")
        except NotPortable as error:
            return _not_resumed(error)
        self._resumed = Resumption(step=done)
        del weights
        _give_back_memory()
        for stream in self._streams:
            stream.start()
        lanes = [stream.address for stream in self._streams if isinstance(stream, LaneServer)]
        return Door(address=network.address, place=place(), lane="".join(lanes))

    def _optimizer_of(self, group: int, part: torch.nn.Parameter) -> torch.optim.Optimizer:
        """What changes a part of parameter group ``group``."""
        if self._config.strategy == "local_sgd":
            return outer_optimizer(self._config, part)
        return dataplane.part_of(self._optimizer, group, part)

    def begin(self, buffer_names: Sequence[str]) -> Payload | Failed:
        """Before the first step: the buffers that training changes travel with the weights. Returns both."""
        try:
            into_optimizer(self._model, self._optimizer, self._resumed.state.optimizer)
        except (NotPortable, ValueError) as error:
            return _not_resumed(error)
        self._weights = flat.FlatTensors(self._model)
        self._gradients = [group.allocate() for group in self._weights.groups]
        self._gradient_views = [
            group.views(buffer) for group, buffer in zip(self._weights.groups, self._gradients, strict=True)
        ]
        self._buffers = flat.buffers(self._model, buffer_names)
        self._buffer_groups = flat.group(self._buffers)
        return self._published()

    # --- For checkpoints, and going on from one ----------------------------------------------------------------------

    def restore(self, resumed: Resumption) -> None:
        """Go on after ``resumed.step``; before :meth:`serve` or :meth:`begin`, which has or gets the weights."""
        self._resumed, self._step = resumed, resumed.step

    def snapshot(self, weights: bool = False) -> None:
        """Keep what the optimizer remembers as it is now, between two steps; see :mod:`.optimizer_state`.

        Args:
            weights: keep the weights with it; of a shard that does not wait.
        """
        if self._streams:
            held = []
            for number in self._shard.chunks:
                chunk, entries = self._shard.layout.chunks[number], self._update.state(number)
                if weights and isinstance(self._shard, StaleShard):
                    entries = {**entries, WEIGHTS: self._shard.weights(number)}
                held.append(Fragment(begin=chunk.begin, end=chunk.end, entries=entries))
            self._held = tuple(held)
            return
        try:
            self._held = TrainingState(optimizer=of_optimizer(self._model, self._optimizer))
        except NotPortable as error:
            self._held = TrainingState(missing=str(error))

    def snapshot_taken(self) -> TrainingState | tuple[Fragment, ...]:
        """What :meth:`snapshot` kept, once: by parameter, or of a shard the pieces that it holds."""
        held, self._held = self._held, TrainingState()
        return held

    # --- A step over Ray objects -------------------------------------------------------------------------------------

    def apply(
        self, step: int, *slices: SliceResult | Failed | Skipped | Payload | None
    ) -> tuple[Payload | None, Applied | Refused | Failed]:
        """Add the slices' gradient sums, divide by the samples, clip, make the optimizer's step, publish the weights.

        Args:
            step: the step; it must be the one after the last that was applied.
            slices: outcome, gradient, outcome, gradient, ... of the step's slices.

        Returns:
            The new weights (and changed buffers), or None where nothing was changed, and what was done.
        """
        entered = time.monotonic()
        results = [result for result in slices[::2] if isinstance(result, SliceResult) and math.isfinite(result.loss)]
        gradients = [gradient for gradient in slices[1::2] if isinstance(gradient, tuple)]
        if self._applied is not None and step == self._applied.step:
            return self._published(), self._applied  # submitted twice: a slice was late, not lost
        if step != self._step + 1 or not len(results) == len(gradients) == len(slices) // 2:
            return None, Refused(step=step)
        samples = sum(result.samples for result in results)
        self._sum(gradients, samples)
        sum_s = time.monotonic() - entered
        unused = set.intersection(*(set(result.unused) for result in results))
        position = 0
        for members, views in zip(self._weights.parameters, self._gradient_views, strict=True):
            for parameter, view in zip(members, views, strict=True):
                # Without a gradient an optimizer leaves a parameter alone; with a zero it would still decay it.
                parameter.grad = None if position in unused else view
                position += 1
        try:
            if self._config.clip_norm:
                torch.nn.utils.clip_grad_norm_(flat.trained(self._model).values(), self._config.clip_norm)
            if self._schedule is not None:
                self._schedule.set(self._optimizer, step)
            job.guard("the optimizer's step", self._optimizer.step)
        except TrainingError as error:
            return None, Failed.of(error)
        self._average_buffers(gradients, results, samples)
        self._step = step
        self._applied = Applied(step=step, sum_s=sum_s, stamps=Stamps(entered=entered, left=time.monotonic()))
        return self._published(), self._applied

    @torch.no_grad()
    def _sum(self, gradients: Sequence[Payload], samples: int) -> None:
        """Leave the mean gradient in the flat buffers; in pieces that stay in the cache until they are divided."""
        for index, (total, group) in enumerate(zip(self._gradients, self._weights.groups, strict=True)):
            parts = [flat.from_bytes(gradient[index], group.dtype) for gradient in gradients]
            for begin in range(0, len(total), PIECE):
                piece = slice(begin, begin + PIECE)
                if len(parts) == 1:
                    torch.div(parts[0][piece], samples, out=total[piece])
                    continue
                torch.add(parts[0][piece], parts[1][piece], out=total[piece])
                for part in parts[2:]:
                    total[piece].add_(part[piece])
                total[piece].div_(samples)

    def _average_buffers(self, gradients: Sequence[Payload], results: Sequence[SliceResult], samples: int) -> None:
        """Float buffers are averaged by samples, as under data parallel training; of counters the largest is kept."""
        for index, group in enumerate(self._buffer_groups, start=len(self._gradients)):
            parts = torch.stack([flat.from_bytes(gradient[index], group.dtype) for gradient in gradients])
            if group.dtype.is_floating_point:
                shares = torch.tensor([result.samples / samples for result in results], dtype=torch.float64)
                merged = (parts.double() * shares[:, None]).sum(0).to(group.dtype)
            else:
                merged = parts.max(0).values
            for name, view in zip(group.names, group.views(merged), strict=True):
                self._buffers[name].copy_(view)

    def _published(self) -> Payload:
        arrays = [flat.to_bytes(buffer) for buffer in self._weights.flats]
        return (*arrays, *flat.gather(self._buffers))


def _not_resumed(error: Exception) -> Failed:
    return Failed(
        cause=f"the checkpoint's optimizer state can't be used: {error}",
        hint="resume with the model, the optimizer and the path (stream=...) that the checkpoint was made with",
    )


def _give_back_memory() -> None:
    """The whole model was needed for a moment only; malloc, which is told to keep what was freed, lets it go once."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc does so by itself
        ctypes.CDLL(None).malloc_trim(0)


@torch.no_grad()
def _moved(parameters: Sequence[torch.nn.Parameter], kept: NDArray[np.float32] | None) -> torch.Tensor:
    """The parameters one after the other, or what was ``kept`` of them; each lets its own memory go at once.

    They lie in pages that go back to the system.
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
