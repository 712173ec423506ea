"""Runs a worker's side of a shared-memory channel."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import time

import torch
from torch import Tensor

from remote_agent.training.shared.slices import WHOLE, Part
from remote_agent.training.wire.client import equal_weight
from remote_agent.training.wire.deadlines import JOIN_S
from remote_agent.training.wire.errors import StepIncomplete
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.shared_memory import memory, messages
from remote_agent.training.wire.shared_memory.messages import SharedMemoryError
from remote_agent.training.wire.steps import Timings

_HINT = "look at the parameter server's host"


class SharedMemoryChannel:
    """A :class:`~remote_agent.training.worker.channels.Channel` through shared memory.

    Args:
        address: of the :class:`~remote_agent.training.server.shared_memory_server.SharedMemoryServer`.
        signature: must be the same at both ends.
        device: the worker's. On the CPU, gradient and weights are the shared memory itself; otherwise they are copied.

    Raises:
        SharedMemoryError: no server is at the address here, or it refuses this worker.
    """

    kind = "shared memory"
    offering = None  # a slice is complete at once, without being sent

    def __init__(self, address: str, layout: Layout, signature: bytes, device: torch.device) -> None:
        self._layout = layout
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(JOIN_S)
        try:
            self._sock.connect("\0" + address)
            messages.check_peer(self._sock)
            self._shared_gradient, sides, self.step = self._join(signature)
        except OSError as error:
            self._sock.close()
            raise SharedMemoryError(f"the shard can't be reached through shared memory: {error}", hint=_HINT) from error
        except SharedMemoryError:
            self._sock.close()
            raise
        self._shared = sides
        same = device.type == "cpu"
        self.gradient = self._shared_gradient if same else torch.zeros(layout.numel, dtype=torch.float32, device=device)
        self.weights = sides if same else (sides[0].to(device), sides[1].to(device))
        self._opened = Header(Kind.GRADIENT)
        self._offered: float | None = None
        self._contributed = 0

    def _join(self, signature: bytes) -> tuple[Tensor, tuple[Tensor, Tensor], int]:
        numel = self._layout.numel
        descriptor, gradient = memory.allocate(numel)
        try:
            messages.send(self._sock, Header(Kind.HELLO), signature, (descriptor,))
        finally:
            os.close(descriptor)
        header, _, descriptors = messages.receive(self._sock)
        try:
            if header.kind is not Kind.WELCOME or len(descriptors) != 2:
                raise SharedMemoryError("the shard refused this worker")
            even, odd = (memory.attach(each, numel) for each in descriptors)
        finally:
            messages.close(descriptors)
        return gradient, (even, odd), header.step

    def begin(self, step: int, slices: int, samples: int, options: bytes = b"") -> None:
        """Open ``step``, the one after :attr:`step`, with the slices and samples of all workers."""
        if step != self.step + 1:
            raise SharedMemoryError(f"step {step} can't begin: step {self.step} is the last one that is whole here")
        self._opened = Header(Kind.GRADIENT, step=step, slices=slices, samples=samples, options=options)
        self._offered, self._contributed = None, 0

    def contribute(self, index: int, weight: float | None = None, part: Part = WHOLE) -> None:
        """Contribute slice ``index`` of the step from :attr:`gradient`, which must not change until the step ends."""
        assert not part.of, "a shard in shared memory counts slices"
        if self.gradient is not self._shared_gradient:
            self._shared_gradient.copy_(self.gradient)
        self._offered = time.monotonic()
        self._send(index, weight)

    def spare(self) -> Tensor:
        """Memory for the gradient of a slice that another worker has lost."""
        return torch.empty(self._layout.numel, dtype=torch.float32, device=self.gradient.device)

    def contribute_spare(self, index: int, gradient: Tensor, weight: float | None = None, part: Part = WHOLE) -> None:
        """Contribute slice ``index`` of the step from ``gradient``, which :meth:`spare` returned."""
        assert not part.of, "a shard in shared memory counts slices"
        descriptor, shared = memory.allocate(self._layout.numel)
        try:
            shared.copy_(gradient)
            self._send(index, weight, (descriptor,))
        except OSError as error:
            raise SharedMemoryError(
                f"there is no shared memory for another slice: {error}", hint="free memory"
            ) from error
        finally:
            os.close(descriptor)

    def ready(self) -> bool:
        """Whether a message of the shard has arrived, for which :meth:`finish` waits."""
        return bool(select.select([self._sock], [], [], 0.0)[0])

    def finish(self, deadline: float) -> Timings:
        """Wait until all weights of the step are in ``weights[step % 2]``.

        Raises:
            SharedMemoryError: the shard is gone, or has failed.
            StepIncomplete: it was not complete within ``deadline`` seconds; the step stays open for another wait.
        """
        waiting = time.monotonic()
        step = self._opened.step
        self._sock.settimeout(deadline)
        while self.step < step:
            try:
                header, payload, descriptors = messages.receive(self._sock)
            except TimeoutError:
                raise StepIncomplete(f"step {step} was not whole within {deadline:g} s", hint=_HINT) from None
            except OSError as error:
                raise SharedMemoryError(f"the shard is gone: {error}", hint=_HINT) from error
            messages.close(descriptors)
            if header.kind is Kind.FAILURE:
                raise SharedMemoryError(payload.decode(errors="replace"), hint=_HINT)
            if header.kind is Kind.WEIGHTS:
                self.step = header.step
        if self.weights is not self._shared:
            self.weights[step % 2].copy_(self._shared[step % 2])
        now, size = time.monotonic(), 4 * self._layout.numel
        sent_at = self._offered or waiting
        return Timings(push_s=0.0, pull_s=now - sent_at, bytes_out=self._contributed * size, bytes_in=size)

    def abandon(self) -> None:
        """Wake a thread that waits in :meth:`finish`, from any thread; the run continues with other shards."""
        with contextlib.suppress(OSError):  # the shard may have left first
            self._sock.shutdown(socket.SHUT_RDWR)

    def fetch(self) -> None:
        """Do nothing: the shared memory always has the newest weights."""

    def fetched(self, newest: Tensor) -> None:
        """Never called, since :meth:`fetch` returns nothing."""

    def close(self) -> None:
        self._sock.close()

    def _send(self, index: int, weight: float | None, descriptors: tuple[int, ...] = ()) -> None:
        opened = self._opened
        weight = equal_weight(opened.samples, opened.slices) if weight is None else weight
        header = dataclasses.replace(opened, slice=index, weight=weight)
        try:
            messages.send(self._sock, header, descriptors=descriptors)
        except OSError as error:
            raise SharedMemoryError(f"the shard is gone: {error}", hint=_HINT) from error
        self._contributed += 1
