"""A relay over loopback: a host's workers are one to the shards, each part counts once, and a step is as without it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from remote_agent.training.server.relay import Relay, RelayServer
from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.shared.optimizer_options import encoded
from remote_agent.training.shared.slices import Part
from remote_agent.training.wire import codecs as wire_codecs
from remote_agent.training.wire import handshake
from remote_agent.training.wire.codecs import EXACT, Codecs
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.errors import ConnectionBroken, ExchangeError, FellBehind
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import plan_layout
from remote_agent.training.worker.channels import NetworkChannel
from tests.training.wire.conftest import Cable, until

TOKEN, NUMEL, RATE, PATIENCE_S = b"the cluster's token", 4_000, 0.1, 30.0
LAYOUT = plan_layout([NUMEL], [1.0, 1.0], 500)
FIRST, SECOND = Part(0, 2), Part(1, 2)


def sgd(_group: int, part: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD([part], lr=RATE, momentum=0.9)


def gradient(step: int, index: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * step + index))


FIRST_WEIGHTS = gradient(0, 0)


def options(step: int) -> bytes:
    """A rate that falls with the steps; each parameter group has the same, and the first step its own."""
    if step == 1:
        return b""
    return encoded(({"lr": RATE / step},) * (1 + max(chunk.group for chunk in LAYOUT.chunks)))


def plain(steps: int) -> Tensor:
    """After steps whose batch has three slices of ten samples."""
    parameter = nn.Parameter(FIRST_WEIGHTS.clone())
    optimizer = sgd(0, parameter)
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = RATE / step
        parameter.grad = sum(gradient(step, index) for index in range(3)) / 30  # type: ignore[assignment]
        optimizer.step()
    return parameter.detach()


@dataclasses.dataclass
class Fleet:
    """Two shards, a relay to both, and whoever joins."""

    servers: list[ShardServer]
    cables: list[Cable]
    relay: Relay
    server: RelayServer
    codecs: Codecs
    stack: contextlib.ExitStack

    def near(self, step: int | None = 0) -> NetworkChannel:
        """A worker on the relay's host."""
        return self._open(NetworkChannel(LAYOUT.of_one, [self.server.address], TOKEN, FIRST_WEIGHTS, EXACT, step))

    def far(self) -> NetworkChannel:
        """A worker with connections of its own."""
        addresses = [server.address for server in self.servers]
        return self._open(NetworkChannel(LAYOUT, addresses, TOKEN, FIRST_WEIGHTS, self.codecs, 0))

    def _open(self, channel: NetworkChannel) -> NetworkChannel:
        self.stack.callback(channel.close)
        return channel


@pytest.fixture
def fleet() -> Iterator[Callable[..., Fleet]]:
    with contextlib.ExitStack() as stack:

        def make(codec: str = "fp32") -> Fleet:
            chosen = wire_codecs.create(codec)
            agreed = Codecs(chosen, chosen)
            shards = [Shard(LAYOUT, n, FIRST_WEIGHTS, OptimizerUpdate(LAYOUT, sgd), agreed) for n in range(2)]
            servers = [stack.enter_context(ShardServer(shard, TOKEN, "127.0.0.1")) for shard in shards]
            cables = [stack.enter_context(contextlib.closing(Cable(server.address))) for server in servers]
            relay = Relay(LAYOUT, [cable.address for cable in cables], TOKEN, agreed, FIRST_WEIGHTS, 0)
            server = stack.enter_context(RelayServer(relay, TOKEN, "127.0.0.1"))
            return Fleet(servers, cables, relay, server, agreed, stack)

        yield make


def put(channel: NetworkChannel, step: int, index: int) -> NetworkChannel:
    """Begin a step of two slices, with a gradient there."""
    channel.begin(step, 2, 30, options(step))
    channel.gradient.copy_(gradient(step, index))
    return channel


def give(channel: NetworkChannel, step: int, index: int, part: Part | None = None) -> None:
    """A part of slice 0, or slice 1."""
    put(channel, step, index).contribute(0 if part else 1, 20.0 / 2 if part else 10.0, part or Part())


def moved(there: Fleet) -> tuple[int, int]:
    """Bytes that the relay has sent to all shards, and received."""
    assert there.relay._client is not None
    return there.relay._client.bytes_moved()


def ask(step: int, part: Part) -> Header:
    """Which chunks of a part of slice 0 are in?"""
    return Header(Kind.ASK, step=step, part=part.number, parts=part.of)


def whole(*channels: NetworkChannel) -> None:
    threads = [threading.Thread(target=channel.finish, args=(PATIENCE_S,), daemon=True) for channel in channels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


def weights(channel: NetworkChannel) -> Tensor:
    return channel.weights[channel.step % 2]


def test_parts_are_one_slice_to_the_shards_and_all_have_the_same_weights(fleet: Callable[..., Fleet]) -> None:
    there = fleet()
    one, other, far = there.near(), there.near(), there.far()
    for step in range(1, 6):
        give(one, step, 0, FIRST)
        give(other, step, 1, SECOND)
        give(far, step, 2)
        whole(one, other, far)
        assert [channel.step for channel in (one, other, far)] == [step] * 3
    assert torch.equal(weights(one), weights(far))
    assert torch.equal(weights(other), weights(far))
    assert torch.allclose(weights(far), plain(5), rtol=1e-5, atol=1e-6)


def test_the_link_carries_one_gradient_and_the_weights_once(fleet: Callable[..., Fleet]) -> None:
    there = fleet()
    one, other, far = there.near(), there.near(), there.far()
    before = moved(there)
    give(one, 1, 0, FIRST)
    give(other, 1, 1, SECOND)
    give(far, 1, 2)
    whole(one, other, far)
    out, into = (after - start for after, start in zip(moved(there), before, strict=True))
    assert out == pytest.approx(4 * NUMEL, rel=0.05)
    assert into == pytest.approx(4 * NUMEL, rel=0.05)


def test_a_part_that_comes_twice_counts_once_also_when_its_worker_is_gone(fleet: Callable[..., Fleet]) -> None:
    there = fleet()
    one, leaving, far = there.near(), there.near(), there.far()
    offer = put(leaving, 1, 1).offering(0, 10.0, SECOND)
    offer(0, 1_700)  # three chunks and a part of one
    until(lambda: sum(there.relay.counted(ask(1, SECOND))) == 3)
    leaving.close()
    give(one, 1, 0, FIRST)
    one.contribute_spare(0, gradient(1, 1), 10.0, SECOND)
    give(far, 1, 2)
    whole(one, far)
    assert torch.allclose(weights(one), plain(1), rtol=1e-5, atol=1e-6)


def test_a_slice_that_another_worker_does_whole_ends_the_step_and_what_comes_late_is_dropped(
    fleet: Callable[..., Fleet],
) -> None:
    there = fleet()
    one, far = there.near(), there.far()
    give(one, 1, 0, FIRST)  # and its neighbour is lost
    give(far, 1, 2)
    far.contribute_spare(0, gradient(1, 0) + gradient(1, 1), 20.0)
    whole(one, far)
    one.contribute_spare(0, gradient(1, 1), 10.0, SECOND)  # late
    give(one, 2, 0, FIRST)
    one.contribute_spare(0, gradient(2, 1), 10.0, SECOND)
    give(far, 2, 2)
    whole(one, far)
    assert torch.equal(weights(one), weights(far))
    assert torch.allclose(weights(far), plain(2), rtol=1e-5, atol=1e-6)


def test_a_shard_refuses_a_part_of_a_slice(fleet: Callable[..., Fleet]) -> None:
    there = fleet()
    far = there.far()
    give(far, 1, 0, FIRST)
    with pytest.raises(ExchangeError, match="a relay adds parts up"):
        far.finish(PATIENCE_S)


def test_with_error_feedback_the_relay_makes_up_for_what_it_left_out(fleet: Callable[..., Fleet]) -> None:
    there = fleet("int8")
    one, other, far = there.near(), there.near(), there.far()
    for step in range(1, 21):
        give(one, step, 0, FIRST)
        give(other, step, 1, SECOND)
        give(far, step, 2)
        whole(one, other, far)
    assert torch.equal(weights(one), weights(far))
    assert torch.allclose(weights(far), plain(20), atol=0.01)


def test_where_the_relay_missed_steps_its_workers_fetch_the_weights(
    fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = fleet()
    one, far = there.near(), there.far()
    connect, is_cut = handshake.connect, threading.Event()

    def unless_cut(address: tuple[str, int], token: bytes) -> Connection:
        if is_cut.is_set() and address in [cable.address for cable in there.cables]:
            raise ConnectionBroken("the cable is cut")
        return connect(address, token)

    monkeypatch.setattr(handshake, "connect", unless_cut)
    is_cut.set()
    for cable in there.cables:
        cable.cut()
    for step in (1, 2, 3):
        give(far, step, 2)
        far.contribute_spare(0, gradient(step, 0) + gradient(step, 1), 20.0)
        whole(far)
    is_cut.clear()
    one.begin(1, 2, 30)
    with pytest.raises(FellBehind):
        one.finish(PATIENCE_S)
    newest = one.fetch()
    one.fetched(newest)
    assert one.step == 3
    assert torch.equal(weights(one), weights(far))
    give(one, 4, 0, FIRST)
    one.contribute_spare(0, gradient(4, 1), 10.0, SECOND)
    give(far, 4, 2)
    whole(one, far)
    assert torch.equal(weights(one), weights(far))
    assert torch.allclose(weights(far), plain(4), rtol=1e-5, atol=1e-6)
