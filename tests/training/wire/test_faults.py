"""Broken connections, dead workers, strangers and nonsense: what still holds, and what is said."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.wire import codecs, handshake, link
from remote_agent.training.wire.client import ExchangeClient
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.deadlines import ACCEPT_PAUSE_S
from remote_agent.training.wire.errors import (
    ConnectionBroken,
    ConnectionRefused,
    ExchangeError,
    FellBehind,
    ShardUnreachable,
    StepIncomplete,
)
from remote_agent.training.wire.frames import HEADER_BYTES, VERSION, Header, Kind, Reason, unpack_failure
from remote_agent.training.wire.layout import plan_layout
from tests.training.wire.conftest import push_pull, until

NUMBERS, DEADLINE = 200_000, 20.0
TOKEN = b"the cluster's token"
CUT = plan_layout([NUMBERS], [1, 1], 10_000)
ADAMW = partial(torch.optim.AdamW, lr=0.01)


def start() -> Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))


def gradient(step: int, index: int) -> Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(100 * step + index))


def counted_of(servers: Sequence[ShardServer], step: int, index: int) -> int:
    """Chunks of a slice that these shards have."""
    return sum(sum(server.shard.counted(Header(Kind.ASK, step=step, slice=index))) for server in servers)


def undisturbed(fleet, together, steps: int, codec: str = "fp32") -> Tensor:
    """The weights that two workers arrive at when nothing goes wrong."""
    members = [shards.join() for shards in [fleet(CUT, start(), ADAMW, codec)] for _ in range(2)]
    for step in range(1, steps + 1):
        together(*(partial(one.step, step, [(n, gradient(step, n))], 2, 10) for n, one in enumerate(members)))
    return members[0].weights


def test_a_worker_dies_halfway_through_its_push_and_another_sends_the_slice_again(fleet, together) -> None:
    shards = fleet(CUT, start(), ADAMW)
    living = shards.join()
    cables = [shards.cable(shard) for shard in range(2)]
    dying = shards.connect([cable.address for cable in cables])
    buffers = torch.empty(NUMBERS), torch.empty(NUMBERS)
    dying.fetch(buffers[0], DEADLINE)
    for cable in cables:
        cable.break_after(150_000, for_good=True)
    dying.begin(1, 2, 10, *buffers).contribute(1, gradient(1, 1)).offer(0, NUMBERS)
    assert all(cable.broken.wait(DEADLINE) for cable in cables)
    until(lambda: counted_of(shards.servers, 1, 1))
    assert counted_of(shards.servers, 1, 1) < len(CUT.chunks)

    exchanging = living.client.begin(1, 2, 10, living.weights, living.new)
    exchanging.contribute(0, gradient(1, 0)).offer(0, NUMBERS)
    with pytest.raises(StepIncomplete, match="chunks of step 1 are not here"):
        exchanging.finish(0.3)
    exchanging.contribute(1, gradient(1, 1), feedback=False).offer(0, NUMBERS)
    exchanging.finish(DEADLINE)
    assert torch.equal(living.new, undisturbed(fleet, together, 1))


@pytest.mark.parametrize("direction", ["gradients", "weights"])
@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_a_connection_that_breaks_is_made_again_and_nothing_counts_twice(
    fleet, together, codec: str, direction: str
) -> None:
    shards = fleet(CUT, start(), ADAMW, codec)
    steady = shards.join()
    cables = [shards.cable(shard) for shard in range(2)]
    shaky = shards.connect([cable.address for cable in cables])
    weights, new = torch.empty(NUMBERS), torch.empty(NUMBERS)
    shaky.fetch(weights, DEADLINE)
    for step in range(1, 5):
        for cable in cables:
            size = codecs.create(codec).size(NUMBERS // 2)
            cable.break_after(size * step // 5, to_shard=direction == "gradients")
        together(
            partial(steady.step, step, [(0, gradient(step, 0))], 2, 10),
            partial(push_pull, shaky, step, 1, 2, 10, gradient(step, 1), weights, new),
        )
        weights, new = new, weights
        assert any(cable.broken.is_set() for cable in cables)
        assert torch.equal(weights, steady.weights)
    assert torch.equal(weights, undisturbed(fleet, together, 4, codec))


def test_what_comes_twice_or_late_is_dropped(fleet, together) -> None:
    shards = fleet(CUT, start(), ADAMW)
    one, other = shards.join(), shards.join()
    both = [(n, gradient(1, n)) for n in range(2)]
    together(partial(one.step, 1, both, 2, 10), partial(other.step, 1, both, 2, 10))
    with greeted(shards.servers[0]) as late:
        late.send(Header(Kind.GRADIENT, 1, 0, 2, 10, CUT.by_shard[0][0], 0, 40_000), bytes(40_000))
        together(*(partial(who.step, 2, [(n, gradient(2, n))], 2, 10) for n, who in enumerate((one, other))))
        late.send(Header(Kind.ASK, step=2, slice=1))
        assert late.receive_header().kind is Kind.COUNTED, "a late gradient is no offence"
    assert torch.equal(one.weights, other.weights)
    assert torch.equal(one.weights, undisturbed(fleet, together, 2))


def test_a_worker_joins_while_the_others_go_on(fleet) -> None:
    for codec in ("fp32", "int8"):
        shards = fleet(CUT, start(), ADAMW, codec)
        working, go_on = shards.join(), threading.Event()
        reached = 0

        def work(member=working, stop=go_on) -> None:
            nonlocal reached
            while not stop.is_set():
                reached += 1
                member.step(reached, [(0, gradient(reached, 0))], 1, 10)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        client = shards.connect()
        joined = torch.empty(NUMBERS)
        step = client.fetch(joined, DEADLINE)
        go_on.set()
        thread.join(DEADLINE)
        assert 0 <= step <= reached
        replayed = fleet(CUT, start(), ADAMW, codec).join()
        for again in range(1, step + 1):
            replayed.step(again, [(0, gradient(again, 0))], 1, 10)
        assert torch.equal(joined, replayed.weights)


def test_a_worker_that_missed_steps_is_told_and_can_fetch(fleet) -> None:
    shards = fleet(CUT, start(), ADAMW, "int8")
    working, away = shards.join(), shards.join()
    for step in range(1, 5):
        working.step(step, [(0, gradient(step, 0))], 1, 10)
    until(lambda: away.client.step is None)
    with pytest.raises(FellBehind, match="fetch"):
        away.client.begin(1, 1, 10, away.weights, away.new)
    assert away.client.fetch(away.weights, DEADLINE) == 4
    assert torch.equal(away.weights, working.weights)
    away.step(5, [(0, gradient(5, 0))], 1, 10)


def test_a_shard_that_stays_away_is_reported_with_its_host(fleet, monkeypatch) -> None:
    monkeypatch.setattr(link, "RECONNECT_S", 0.3)
    shards = fleet(CUT, start(), ADAMW)
    member = shards.join()
    exchanging = member.client.begin(1, 2, 10, member.weights, member.new)
    shards.servers[1].close()
    with pytest.raises(ShardUnreachable, match=r"127\.0\.0\.1: shard 1 did not come back") as caught:
        exchanging.finish(DEADLINE)
    assert caught.value.hint


def test_an_optimizer_that_fails_is_reported_and_not_a_hang(fleet) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ZeroDivisionError("no luck")

    member = fleet(CUT, start(), Failing).join()
    with pytest.raises(ExchangeError, match=r"optimizer's step 1 failed.*no luck"):
        member.step(1, [(0, gradient(1, 0))], 1, 10)


# --- Strangers -------------------------------------------------------------------------------------------------------


def greeted(server: ShardServer) -> Connection:
    """A connection of someone who knows the token and says HELLO, but then does as it likes."""
    connection = handshake.connect(server.address, TOKEN)
    hello = server.shard.codecs.signature(server.shard.layout)
    connection.send(Header(Kind.HELLO, length=len(hello)), hello)
    assert connection.receive_header().kind is Kind.WELCOME
    return connection


def test_a_worker_with_another_token_is_refused_by_name_of_the_cause(fleet) -> None:
    shards = fleet(CUT, start(), ADAMW)
    client = shards.connect(token=b"another token")
    with pytest.raises(ConnectionRefused, match="does not know this cluster's token"):
        client.fetch(torch.empty(NUMBERS), DEADLINE)


def test_who_can_only_repeat_what_the_shard_says_is_not_let_in(fleet) -> None:
    server = fleet(CUT, start(), ADAMW).servers[0]
    with socket.create_connection(server.address, DEADLINE) as stranger:
        stranger.sendall(b"HTXG\x01" + bytes(32))
        answer = stranger.recv(64, socket.MSG_WAITALL)
        assert TOKEN not in answer
        stranger.sendall(answer[32:])
        assert stranger.recv(1) == b""


def test_a_worker_of_another_layout_is_refused(fleet) -> None:
    shards = fleet(CUT, start(), ADAMW)
    other = plan_layout([NUMBERS], [1, 1], 9000)
    with (
        ExchangeClient(other, shards.addresses, TOKEN, shards.codecs) as client,
        pytest.raises(ExchangeError, match="another cut of the buffer"),
    ):
        client.fetch(torch.empty(NUMBERS), DEADLINE)


def nonsense(version: int, kind: int) -> bytes:
    """A header of nothing."""
    return struct.pack("!HBB", 0x4854, version, kind) + bytes(HEADER_BYTES - 4)


NONSENSE: dict[str, Callable[[Connection], None]] = {
    "not a frame": lambda connection: connection.send(
        b"GET / HTTP/1.1\r\nHost: mercer.local:7000\r\nAccept: */*\r\n\r\n"
    ),
    "version 9": lambda connection: connection.send(nonsense(9, 3)),
    "unknown kind": lambda connection: connection.send(nonsense(VERSION, 99)),
    "does not hold chunk": lambda connection: connection.send(Header(Kind.GRADIENT, 1, 0, 1, 1, 1, 0, 40_000)),
    "bytes for a chunk": lambda connection: connection.send(Header(Kind.GRADIENT, 1, 0, 1, 1, 0, 0, 4)),
    "codec": lambda connection: connection.send(Header(Kind.GRADIENT, 1, 0, 1, 1, 0, 2, 40_000)),
    "before step 1": lambda connection: connection.send(Header(Kind.GRADIENT, 2, 0, 1, 1, 0, 0, 40_000), bytes(40_000)),
    "slice 3 of 2": lambda connection: connection.send(Header(Kind.GRADIENT, 1, 3, 2, 1, 0, 0, 40_000), bytes(40_000)),
    "of 4294967295 bytes": lambda connection: connection.send(Header(Kind.ASK, length=2**32 - 1)),
    "WEIGHTS": lambda connection: connection.send(Header(Kind.WEIGHTS)),
    "not clip": lambda connection: connection.send(Header(Kind.NORM_TOTAL, step=1, length=8), bytes(8)),
    "a number of 3 bytes": lambda connection: connection.send(Header(Kind.NORM_TOTAL, step=1, length=3), bytes(3)),
}


@pytest.mark.parametrize("words", NONSENSE)
def test_a_frame_that_makes_no_sense_ends_its_connection_with_the_reason_and_no_other(fleet, words: str) -> None:
    shards = fleet(CUT, start(), ADAMW)
    member = shards.join()
    with greeted(shards.servers[0]) as connection:
        NONSENSE[words](connection)
        header = connection.receive_header()
        assert header.kind is Kind.FAILURE
        reason, text = unpack_failure(connection.receive_control(header))
        assert reason is Reason.OTHER
        assert words in text
        with pytest.raises(ConnectionBroken):
            connection.receive_header()
    member.step(1, [(0, gradient(1, 0))], 1, 10)


def test_workers_that_disagree_about_a_step_are_told(fleet) -> None:
    shards = fleet(CUT, start(), ADAMW)
    one, other = shards.join(), shards.join()
    first = one.client.begin(1, 2, 10, one.weights, one.new)
    first.contribute(0, gradient(1, 0)).offer(0, NUMBERS)
    until(lambda: counted_of(shards.servers, 1, 0) == len(CUT.chunks))
    second = other.client.begin(1, 2, 11, other.weights, other.new)
    second.contribute(1, gradient(1, 1)).offer(0, NUMBERS)
    with pytest.raises(ExchangeError, match=r"10.*for another|11.*for one"):
        second.finish(DEADLINE)


class OutOfDescriptors:
    """A listener that can't accept, until it can again."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self.tried, self.free = listener, 0, threading.Event()

    def accept(self) -> tuple[socket.socket, object]:
        if not self.free.is_set():
            self.tried += 1
            raise OSError(errno.EMFILE, "too many open files")
        return self._listener.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listener, name)


def test_a_shard_that_is_out_of_descriptors_waits_for_one_without_keeping_a_core_busy(fleet) -> None:
    shards = fleet(CUT, start(), ADAMW)
    server = shards.servers[0]
    listener = OutOfDescriptors(server._listener._socket)
    server._listener._socket = listener
    socket.create_connection(server.address, DEADLINE).close()  # what the thread waits for; then it has the other
    until(lambda: listener.tried >= 3)
    began, tried = time.monotonic(), listener.tried  # in this order: a pause between them makes it longer
    until(lambda: listener.tried >= tried + 5)
    assert time.monotonic() - began > 4 * ACCEPT_PAUSE_S
    listener.free.set()
    shards.join()
