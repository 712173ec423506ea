"""Real shards and workers over loopback, in threads of the test's process, and a cable between them that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.wire import codecs
from remote_agent.training.wire.client import ExchangeClient
from remote_agent.training.wire.codecs import Codecs
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.steps import Timings

TOKEN = b"the cluster's token"
DEADLINE = 120.0
MakeOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


def push_pull(
    client: ExchangeClient, step: int, index: int, slices: int, samples: int, gradient: Tensor, *buffers: Tensor
) -> Timings:
    """A whole step's exchange of one slice that is ready; ``buffers`` are the weights and where the new ones go."""
    exchanging = client.begin(step, slices, samples, *buffers)
    exchanging.contribute(index, gradient).offer(0, len(gradient))
    return exchanging.finish()


@dataclass
class Fleet:
    """Shards that serve; `connect` makes workers. All of it ends with the test."""

    layout: Layout
    codecs: Codecs
    servers: list[ShardServer]
    stack: contextlib.ExitStack
    cables: list[Cable] = field(default_factory=list)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [server.address for server in self.servers]

    def connect(self, addresses: Sequence[tuple[str, int]] | None = None, token: bytes = TOKEN) -> ExchangeClient:
        client = ExchangeClient(self.layout, addresses or self.addresses, token, self.codecs)
        return self.stack.enter_context(client)

    def join(self) -> WorkerHandle:
        """A worker with the whole weights."""
        member = WorkerHandle(self.connect(), torch.empty(self.layout.numel), torch.empty(self.layout.numel))
        member.client.fetch(member.weights, DEADLINE)
        return member

    def cable(self, shard: int) -> Cable:
        """A way to the shard that can be cut."""
        return self.stack.enter_context(contextlib.closing(Cable(self.servers[shard].address)))


@dataclass
class WorkerHandle:
    """A worker and its two buffers."""

    client: ExchangeClient
    weights: Tensor
    new: Tensor

    def step(self, step: int, slices: Sequence[tuple[int, Tensor]], count: int, samples: int) -> None:
        """Contribute these (slice, gradient) of `count`, and take the new weights."""
        exchanging = self.client.begin(step, count, samples, self.weights, self.new)
        for index, gradient in slices:
            exchanging.contribute(index, gradient).offer(0, len(gradient))
        exchanging.finish(DEADLINE)
        self.weights, self.new = self.new, self.weights


class Cable:
    """Forwards connections to an address; after `cut`, or after a number of bytes in one direction, they break."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._sockets: list[socket.socket] = []
        self._limit: int | None = None
        self._limited, self._for_good = True, False
        self.broken = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def break_after(self, count: int, *, to_shard: bool = True, for_good: bool = False) -> None:
        """Break every connection once `count` more bytes went that way; connections made later are whole.

        `for_good`: none is made later.
        """
        self.broken.clear()
        self._limit, self._limited, self._for_good = count, to_shard, for_good

    def cut(self) -> None:
        self._limit = None
        self.broken.set()  # before anybody can notice
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [near, far]
            threading.Thread(target=self._forward, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._forward, args=(far, near, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, to_shard: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if to_shard == self._limited and self._limit is not None:
                    self._limit -= len(data)
                    if self._limit < 0:
                        (self.close if self._for_good else self.cut)()
                        return
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def until(condition: Callable[[], object]) -> None:
    """Wait for what shards do in their own threads."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def fleet() -> Iterator[Callable[..., Fleet]]:
    """Makes shards for a layout: `fleet(layout, weights, make_optimizer, codec=..., most_norm=...)`."""
    with contextlib.ExitStack() as stack:

        def make(
            layout: Layout,
            weights: Tensor,
            make_optimizer: MakeOptimizer,
            codec: str = "fp32",
            most_norm: float | None = None,
        ) -> Fleet:
            pair = Codecs(codecs.create(codec), codecs.create(codec))
            servers = []
            for number in range(layout.shards):
                update = OptimizerUpdate(layout, lambda _group, parameter: make_optimizer([parameter]))
                shard = Shard(layout, number, weights, update, pair, most_norm=most_norm)
                servers.append(stack.enter_context(ShardServer(shard, TOKEN, "127.0.0.1")))
            return Fleet(layout, pair, servers, stack)

        yield make


@pytest.fixture
def together() -> Callable[..., None]:
    """Runs functions at the same time, each in its thread, and raises what any of them raised."""

    def run(*functions: Callable[[], object]) -> None:
        errors: list[BaseException] = []

        def guarded(function: Callable[[], object]) -> None:
            try:
                function()
            except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * DEADLINE)
            assert not thread.is_alive(), "a worker hangs"
        if errors:
            raise errors[0]

    return run
