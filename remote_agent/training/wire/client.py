"""Runs a worker's side of the exchange: sends gradients to all shards and receives new weights at the same time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor

from remote_agent.training.shared.slices import WHOLE, Part
from remote_agent.training.wire import frames
from remote_agent.training.wire.codecs import Codec, Codecs, decode
from remote_agent.training.wire.deadlines import FETCH_S, STEP_S
from remote_agent.training.wire.errors import ExchangeError, FellBehind, MalformedFrame, StepIncomplete
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.link import Link, Worker
from remote_agent.training.wire.outbox import Frame
from remote_agent.training.wire.steps import Contribution, NewWeights, Timings

MAX_EARLY = 2
"""Number of steps after the last complete one whose weights are kept here. The others do not wait for a worker without
a slice, and steps are submitted ahead, so they may finish two steps before it begins the first."""

_FETCH_AGAIN = "fetch the weights again, then go on with the step after them"


class ExchangeClient(Worker):
    """A worker's connections to all shards; a context manager. One thread uses it (and may share its steps).

    Args:
        addresses: (host, port) of each shard, in the layout's order.
        token: the cluster's secret.
        step: the step whose weights this worker already has, bitwise as the shards have them; None: it has to
            :meth:`fetch`.

    Attributes:
        step: the newest step whose weights are complete here; None before :meth:`fetch`.
        residual: the error of the gradient codec so far; None: there is none yet, or the codec needs no feedback.
    """

    def __init__(
        self,
        layout: Layout,
        addresses: Sequence[tuple[str, int]],
        token: bytes,
        codecs: Codecs,
        step: int | None = None,
    ) -> None:
        self.residual: Tensor | None = None
        self.layout, self._codecs = layout, codecs
        self._changed = threading.Condition(threading.RLock())
        self._failure: ExchangeError | None = None
        self._links = []
        for number, (chunks, address) in enumerate(zip(layout.by_shard, addresses, strict=True)):
            if chunks:
                longest = 4 * max(layout.chunks[chunk].numel for chunk in chunks)
                longest = max(longest, max(codecs.weights.size(layout.chunks[chunk].numel) for chunk in chunks))
                self._links.append(Link(self, number, chunks, longest, address, token))
        self.step = step
        self._now: Exchanging | None = None
        self._fetching: Fetching | None = None
        self._early: list[tuple[Header, Tensor]] = []
        self._norms: dict[int, dict[int, float]] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Connect to all shards, in the background."""
        for link in self._links:
            link.start()

    def abandon(self) -> None:
        """Wake the threads that wait here, without waiting, from any thread; the run continues with other shards."""
        self.failed(ExchangeError("the exchange was given up: the run goes on with other shards"))
        for link in self._links:
            link.close(0.0)

    def close(self) -> None:
        for link in self._links:
            link.close()

    # --- For the trainer ---------------------------------------------------------------------------------------------

    def fetch(self, out: Tensor, deadline: float = FETCH_S) -> int:
        """Get the whole weights of the newest step: at the start, to join later, or after falling behind.

        Args:
            out: float32, shape ``(layout.numel,)``: gets the weights.
            deadline: seconds.

        Returns:
            The step; the next to :meth:`begin` is the one after it.

        Raises:
            ExchangeError: a shard can't be reached, or the deadline passed.
        """
        with self._changed:
            self.step = self._now = None
            self._early.clear()
            self._fetching = fetching = Fetching(self.layout, self._codecs.weights, out)
            for link in self._links:
                link.control(Frame(Header(Kind.FETCH)))
            done = self._changed.wait_for(lambda: fetching.whole or self._failure is not None, deadline)
            if self._failure is not None:
                raise self._failure
            if not done:
                raise StepIncomplete(
                    f"the weights were not here within {deadline:g} s", hint="look at the shards' hosts"
                )
            self._fetching, self.step = None, fetching.step
            assert self.step is not None, "whole weights have a step"
            for header, payload in fetching.later:
                self._keep(header, payload)
            return fetching.step or 0

    def begin(
        self, step: int, slices: int, samples: int, weights: Tensor, out: Tensor, options: bytes = b""
    ) -> Exchanging:
        """Open the exchange of ``step``, which is the one after :attr:`step`. New weights arrive from now on.

        Args:
            slices: number of slices with samples, over all workers.
            samples: number of samples in all slices.
            weights: the weights before the step: float32, shape ``(layout.numel,)``, as the last step (or fetch) left
                them.
            out: gets the new weights; another buffer of the same shape and device.
            options: what the scheduler has set in the step, encoded.

        Raises:
            ExchangeError: the step does not follow, the worker has fallen behind, or a shard can't be reached.
        """
        with self._changed:
            self._check()
            if self.step is None:
                raise FellBehind("this worker has no weights", hint=_FETCH_AGAIN)
            if self._now is not None and self._now.incoming.step == step and self._now.incoming.goes_to(out):
                # Until now this worker only followed the step, or had left it.
                again = Exchanging(self, self._now.incoming, slices, samples, options)
                again.contributed = self._now.contributed
                self._now = again
                return again
            if self._now is not None or step != self.step + 1:
                raise ExchangeError(f"step {step} can't begin: step {self.step} is the last one that is whole here")
            incoming = NewWeights(self.layout, step, self._codecs.weights, weights, out)
            self._now = Exchanging(self, incoming, slices, samples, options)
            early, self._early = self._early, []
            for header, payload in early:
                self._keep(header, payload)
            return self._now

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- For a step's exchange ---------------------------------------------------------------------------------------

    def wait(self, incoming: NewWeights, deadline: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: incoming.whole or self._failure is not None or self.step is None, deadline)
            if not incoming.whole:
                self._check()
                if self.step is None:
                    self._now = None
                    raise FellBehind(f"step {incoming.step} went on without this worker", hint=_FETCH_AGAIN)
                missing = f"{incoming.has.count(False)} of {len(incoming.has)} chunks of step {incoming.step}"
                raise StepIncomplete(
                    f"{missing} are not here after {deadline:g} s", hint="a worker has not sent its slice"
                )
            if self.step is not None:  # else later steps' weights came meanwhile, too many to keep: fetch is next
                self.step = incoming.step
            self._now = None
        for link in self._links:
            link.forget_gradients()

    @property
    def gradient_codec(self) -> Codec:
        return self._codecs.gradients

    def feedback_for(self, gradient: Tensor) -> Tensor:
        if self.residual is None:
            self.residual = torch.zeros_like(gradient)
        return self.residual

    def push(self, contribution: Contribution, chunks: Sequence[int]) -> None:
        for link in self._links:
            own = [chunk for chunk in chunks if self.layout.owners[chunk] == link.number]
            if own:
                link.push(contribution, own)

    def bytes_moved(self) -> tuple[int, int]:
        moved = [link.bytes_moved() for link in self._links]
        return sum(out for out, _ in moved), sum(into for _, into in moved)

    def last_sent(self) -> float:
        return max((link.last_sent for link in self._links), default=0.0)

    # --- For the links -----------------------------------------------------------------------------------------------

    def hello(self, shard: int) -> tuple[Frame, bool]:
        signature = self._codecs.signature(self.layout)
        with self._changed:
            if self.step is None or self._fetching is not None:
                return Frame(Header(Kind.HELLO, length=len(signature)), signature), False
            step, chunks = self.step, self.layout.by_shard[shard]
            held = [True] * len(chunks)
            if self._now is not None:
                step, held = step + 1, [self._now.incoming.has[chunk] for chunk in chunks]
            payload = signature + frames.pack_bits(held)
            return Frame(Header(Kind.HELLO, step=step, length=len(payload)), payload), True

    def request(self, held: bool) -> Frame | None:
        wanted = self._fetching is not None or (self.step is not None and not held)
        return Frame(Header(Kind.FETCH)) if wanted else None

    def contributions(self) -> Sequence[Contribution]:
        with self._changed:
            return () if self._now is None else self._now.contributed

    def awaited(self) -> NewWeights | None:
        now = self._now
        return None if now is None else now.incoming

    def has(self, step: int, chunk: int) -> bool:
        incoming = self.awaited()
        return incoming is None or incoming.step != step or incoming.has[chunk]

    def memory(self, header: Header) -> memoryview | None:
        incoming = self.awaited()
        return None if incoming is None else incoming.memory(header)

    def arrived(self, header: Header) -> None:
        incoming = self.awaited()
        if incoming is not None and incoming.awaits(header):
            incoming.arrived(header)
            self.wake_if_whole(incoming)

    def wake_if_whole(self, incoming: NewWeights) -> None:
        if incoming.whole:
            with self._changed:
                self._changed.notify_all()

    def payload_size(self, header: Header) -> int:
        if header.chunk >= len(self.layout.chunks):
            raise MalformedFrame(f"there is no chunk {header.chunk}")
        numel = self.layout.chunks[header.chunk].numel
        if header.kind is Kind.WHOLE:
            return 4 * numel
        if header.codec != self._codecs.weights.code:
            raise MalformedFrame(f"weights in codec {header.codec}, not {self._codecs.weights.name}")
        return self._codecs.weights.size(numel)

    def failed(self, error: ExchangeError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def take(self, header: Header, payload: Tensor) -> None:
        incoming = self.awaited()
        if incoming is not None and incoming.step == header.step:
            incoming.decode(header, payload)  # without the lock: each link has chunks of its own
            self.wake_if_whole(incoming)
            return
        with self._changed:
            if self._fetching is not None:
                if header.kind is Kind.WHOLE:
                    self._fetching.take_whole(header, payload)
                else:
                    self._fetching.take_weights(header, payload.clone())
                self._changed.notify_all()
            elif self.step is not None:
                self._keep(header, payload.clone())

    def _keep(self, header: Header, payload: Tensor) -> None:
        """Keep weights of a step that may not have begun here; the lock is held."""
        assert self.step is not None, "weights are kept once there are some"
        newest = self.step if self._now is None else self._now.incoming.step
        if self._now is not None and header.step == newest:
            self._now.incoming.decode(header, payload)
            self.wake_if_whole(self._now.incoming)
        elif newest < header.step <= self.step + MAX_EARLY:
            self._early.append((header, payload))
        elif header.step > newest:
            self.fell_behind()

    def take_newest(self, shard: int, step: int) -> None:
        with self._changed:
            if self._fetching is not None:
                self._fetching.take_newest(shard, step)
                self._changed.notify_all()

    def take_norm(self, shard: int, step: int, part: float) -> None:
        """Send the sum to all shards once every shard has sent its part; every worker's sum is bitwise the same."""
        with self._changed:
            self._norms = {known: parts for known, parts in self._norms.items() if known >= step - 1}
            parts = self._norms.setdefault(step, {})
            parts[shard] = part
            if len(parts) < len(self._links):
                return
            payload = frames.pack_number(math.fsum(parts[number] for number in sorted(parts)))
        for link in self._links:
            link.control(Frame(Header(Kind.NORM_TOTAL, step=step, length=len(payload)), payload))

    def fell_behind(self) -> None:
        with self._changed:
            self.step = None
            self._early.clear()
            self._changed.notify_all()


class Exchanging:
    """The exchange of one step, from :meth:`ExchangeClient.begin` until :meth:`finish` returns.

    Attributes:
        contributed: the slices that this worker sends.
    """

    def __init__(
        self, carrier: ExchangeClient, incoming: NewWeights, slices: int, samples: int, options: bytes
    ) -> None:
        self.contributed: tuple[Contribution, ...] = ()
        self.incoming = incoming
        self._carrier = carrier
        self.is_cut(slices, samples, options)
        self._begun = time.monotonic()
        self._bytes = carrier.bytes_moved()

    def is_cut(self, slices: int, samples: int, options: bytes) -> None:
        """Set how many slices and samples the step has, and its options; before the first contribution."""
        self._slices, self._samples, self._options = slices, samples, options

    def contribute(
        self,
        index: int,
        gradient: Tensor,
        weight: float | None = None,
        *,
        part: Part = WHOLE,
        feedback: bool = True,
    ) -> Contribution:
        """Send a slice's gradient as it is offered. A worker may send any number of slices, also none.

        Args:
            index: the slice's number, from 0.
            gradient: the SUM of the gradients of its samples: float32, shape ``(layout.numel,)``; do not change it
                before :meth:`finish` has returned.
            weight: weight of its samples in the step's mean; None: the same for every slice.
            part: the part of the slice; a relay sums the parts.
            feedback: False for a slice of which another worker may have sent a part: chunks that are not counted must
                not leave an error for error feedback.
        """
        layout, codec = self._carrier.layout, self._carrier.gradient_codec
        if gradient.shape != (layout.numel,) or gradient.dtype != torch.float32:
            raise ValueError(f"a gradient is one flat float32 buffer of {layout.numel} numbers")
        residual = self._carrier.feedback_for(gradient) if codec.feedback and feedback else None
        about = Header(
            Kind.GRADIENT,
            step=self.incoming.step,
            slice=index,
            slices=self._slices,
            samples=self._samples,
            weight=equal_weight(self._samples, self._slices) if weight is None else weight,
            part=part.number,
            parts=part.of,
            options=self._options,
        )
        contribution = Contribution(layout, about, gradient, codec, residual)
        contribution.ready = partial(self._carrier.push, contribution)
        self.contributed = (*self.contributed, contribution)
        return contribution

    def finish(self, deadline: float = STEP_S) -> Timings:
        """Wait until all new weights are here.

        Raises:
            StepIncomplete: they did not arrive within ``deadline`` seconds; the exchange stays open, so that the
                missing slice can be contributed and :meth:`finish` called again.
            FellBehind: the shards continued without this worker.
            ShardUnreachable: a shard is gone.
        """
        self._carrier.wait(self.incoming, deadline)
        now = time.monotonic()
        begun = min((one.begun for one in self.contributed if one.begun is not None), default=None)
        pushed = self._begun if begun is None else min(max(self._carrier.last_sent(), begun), now)
        before, after = self._bytes, self._carrier.bytes_moved()
        return Timings(
            push_s=0.0 if begun is None else pushed - begun,
            pull_s=now - pushed,
            bytes_out=after[0] - before[0],
            bytes_in=after[1] - before[1],
        )


def equal_weight(samples: int, slices: int) -> float:
    """The weight of each slice if all have the same; together they weigh as much as the samples."""
    return samples / max(1, slices)


# --- The whole weights, for a worker that joins ----------------------------------------------------------------------

# Each shard sends its chunks whole, each at its current step, and then the following steps. All chunks are brought to
# the newest step that any shard had, by the same additions that all other workers make.


_NOT_HERE = -1


class Fetching:
    """The state of one fetch; calls are made one at a time.

    Args:
        out: float32, shape ``(layout.numel,)``: gets the weights.

    Attributes:
        later: WEIGHTS frames beyond the step that is fetched: (header, payload).
    """

    def __init__(self, layout: Layout, codec: Codec, out: Tensor) -> None:
        if out.shape != (layout.numel,):
            raise ValueError(f"weights are one flat float32 buffer of {layout.numel} numbers")
        self.later: list[tuple[Header, Tensor]] = []
        self._layout, self._codec, self._out = layout, codec, out
        self._steps = [_NOT_HERE] * len(layout.chunks)
        self._newest: dict[int, int] = {}
        self._shards = set(layout.owners)

    @property
    def step(self) -> int | None:
        """The step to which all chunks are brought; None until every shard has sent its own."""
        return max(self._newest.values(), default=0) if self._shards <= self._newest.keys() else None

    @property
    def whole(self) -> bool:
        step = self.step
        return step is not None and all(at == step for at in self._steps)

    def take_whole(self, header: Header, payload: Tensor) -> None:
        chunk = self._layout.chunks[header.chunk]
        self._out[chunk.begin : chunk.end].copy_(payload.view(self._out.dtype))
        self._steps[header.chunk] = header.step

    def take_newest(self, shard: int, step: int) -> None:
        self._newest[shard] = step
        self._advance()

    def take_weights(self, header: Header, payload: Tensor) -> None:
        """Take a WEIGHTS frame; ``payload`` is kept."""
        if self._steps[header.chunk] != _NOT_HERE:
            self.later.append((header, payload))
            self._advance()

    def _advance(self) -> None:
        """Apply the steps up to the fetched one."""
        target = self.step
        if target is None:
            return
        remaining = []
        for header, payload in self.later:
            if header.step > target:
                remaining.append((header, payload))
            elif header.step == self._steps[header.chunk] + 1:
                self._add(header, payload)
                self._steps[header.chunk] = header.step
        self.later = remaining

    def _add(self, header: Header, payload: Tensor) -> None:
        chunk = self._layout.chunks[header.chunk]
        target = self._out[chunk.begin : chunk.end]
        decoded = target.new_empty(chunk.numel)
        decode(self._codec, payload.to(target.device), decoded)
        if self._codec.lossy:
            target.add_(decoded)
        else:
            target.copy_(decoded)
