"""Groups of workers sum exactly, over their nodes' own addresses, and nobody waits for a member that is gone."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed

from remote_agent.training.shared.messages import GroupMembership
from remote_agent.training.wire import handshake
from remote_agent.training.wire.errors import ExchangeError
from remote_agent.training.worker import process_group
from remote_agent.training.worker.process_group import PIECE, GroupBroken, ProcessGroup
from remote_agent.training.worker.rendezvous import Rendezvous

ADDRESS, WAIT_S, SOON_S = "127.0.0.1", 60.0, 10.0
"""Who is not freed waits for :data:`GROUP_S` or :data:`REDUCE_S`, which are far longer than ``SOON_S``."""


@pytest.fixture
def meeting() -> Rendezvous:
    return Rendezvous(ADDRESS)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def together(pool: ThreadPoolExecutor, action: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `action` gives for each member, all at the same time."""
    calls: list[Future[Any]] = [pool.submit(action, *each) for each in zip(*arguments, strict=True)]
    return [call.result(WAIT_S) for call in calls]


def formed(pool: ThreadPoolExecutor, invited: tuple[GroupMembership, ...]) -> list[ProcessGroup]:
    return together(pool, lambda each: ProcessGroup(each, ADDRESS), invited)


def summed(group: ProcessGroup, tensor: torch.Tensor) -> torch.Tensor:
    group.sum([tensor], lambda: None)
    return tensor


@pytest.mark.parametrize(
    ("hosts", "here", "leaders"),
    [
        ("abc", [[0], [1], [2]], [0, 1, 2]),
        ("aaa", [[0, 1, 2]] * 3, [0]),
        ("babba", [[0, 2, 3], [1, 4], [0, 2, 3], [0, 2, 3], [1, 4]], [0, 1]),
    ],
)
def test_one_member_of_each_host_sums_with_the_others(hosts: str, here: list[list[int]], leaders: list[int]) -> None:
    found = [process_group.levels(membership) for membership in Rendezvous(ADDRESS).invite(hosts)]
    assert found == [(tuple(ranks), tuple(leaders)) for ranks in here]


@pytest.mark.parametrize(
    ("hosts", "numel"),
    [("ab", 5 * PIECE + 17), ("abc", 1), ("abcde", 1000), ("aaa", 1000), ("aab", 1), ("abcbba", 5 * PIECE + 17)],
)
def test_every_member_gets_the_same_bits_of_the_sum(
    meeting: Rendezvous, pool: ThreadPoolExecutor, hosts: str, numel: int
) -> None:
    groups = formed(pool, meeting.invite(hosts))
    tensors = [torch.randn(numel, generator=torch.Generator().manual_seed(each)) for each in range(len(hosts))]
    expected = torch.stack(tensors).double().sum(0)
    results = together(pool, summed, groups, tensors)
    assert all(torch.equal(result, results[0]) for result in results)
    assert torch.allclose(results[0].double(), expected, atol=1e-5)
    for group in groups:
        group.close()
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(("hosts", "told"), [("ab", [True] * 2), ("abc", [True] * 3), ("aab", [True, False, True])])
def test_a_stranger_in_a_members_place_breaks_the_group_before_any_data(
    meeting: Rendezvous, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, hosts: str, told: list[bool]
) -> None:
    """Gloo's own connections are made, as by one who guessed; then one turns out not to know the secret.

    Who talks to it is told; the second worker of the first host does not, and waits for the others.
    """
    right = process_group.prove

    def prove(group: Any, membership: GroupMembership, ranks: tuple[int, ...]) -> None:
        if membership.rank == len(hosts) - 1:
            membership = replace(membership, secret=bytes(32))
        right(group, membership, ranks)

    def join(membership: GroupMembership) -> str:
        try:
            ProcessGroup(membership, ADDRESS)
        except GroupBroken as broken:
            return str(broken)
        return "formed"

    monkeypatch.setattr(process_group, "prove", prove)
    assert ["stranger" in said for said in together(pool, join, meeting.invite(hosts))] == told


@pytest.mark.parametrize("hosts", ["abc", "aaa", "abb"])
def test_the_first_members_numbers_and_the_largest_ones_reach_all(
    meeting: Rendezvous, pool: ThreadPoolExecutor, hosts: str
) -> None:
    groups = formed(pool, meeting.invite(hosts))
    tensors = [torch.arange(4) * (each - 1) for each in range(3)]
    together(pool, ProcessGroup.largest, groups, tensors)
    assert all(torch.equal(tensor, torch.arange(4)) for tensor in tensors)
    copies = [torch.full((PIECE + 3,), float(each)) for each in range(3)]
    together(pool, lambda group, tensor: group.from_first(tensor, lambda: None), groups, copies)
    assert all(not copy.any() for copy in copies)


def test_the_store_listens_on_the_nodes_own_address_only() -> None:
    (place,) = Rendezvous("127.0.0.1").invite("a")
    with pytest.raises(OSError), socket.create_connection((_outside(), place.port), timeout=2):  # noqa: PT011
        pass


def test_strangers_learn_nothing_and_keep_nobody_from_meeting(meeting: Rendezvous, pool: ThreadPoolExecutor) -> None:
    invited = meeting.invite("ab")
    where = (invited[0].address, invited[0].port)
    silent = [socket.create_connection(where) for _ in range(300)]
    try:
        began = time.monotonic()
        for group in formed(pool, invited):
            group.close()
        assert time.monotonic() - began < SOON_S
        assert sum(thread.name == "rendezvous" for thread in threading.enumerate()) < 100
        with pytest.raises(ExchangeError):
            handshake.connect(where, b"another secret")
        with socket.create_connection(where) as stranger:
            stranger.sendall(b"HTXG\x01" + bytes(96))
            stranger.settimeout(SOON_S)
            assert len(stranger.recv(4096)) in (0, 64), "a random number and a proof, or nothing"
    finally:
        for connection in silent:
            connection.close()


def test_who_waits_for_a_member_that_does_not_come_is_freed_at_once(
    meeting: Rendezvous, pool: ThreadPoolExecutor
) -> None:
    first, second, _ = meeting.invite("abc")
    waiting = [pool.submit(ProcessGroup, each, ADDRESS) for each in (first, second)]
    time.sleep(0.2)
    assert not any(call.done() for call in waiting)
    began = time.monotonic()
    meeting.give_up(first)
    for call in waiting:
        with pytest.raises(GroupBroken, match="lost"):
            call.result(WAIT_S)
    assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize(
    ("fault", "hosts"),
    [  # each fault and each layout; the two others join what these show
        (signal.SIGKILL, "abcd"),
        (signal.SIGSTOP, "abcd"),
        (signal.SIGKILL, "aabb"),
        (signal.SIGSTOP, "aaab"),
        pytest.param(signal.SIGSTOP, "aabb", marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, "aaab", marks=pytest.mark.long),
    ],
)
def test_who_waits_for_a_member_that_died_or_fell_silent_is_freed_and_sums_on_with_the_others(
    meeting: Rendezvous, pool: ThreadPoolExecutor, fault: signal.Signals, hosts: str
) -> None:
    """The last of them: one among equals, one that is not its host's first, one that speaks for its host."""
    invited = meeting.invite(hosts)
    with _member_elsewhere(invited[-1]) as other:
        groups = formed(pool, invited[:-1])
        together(pool, summed, groups, [torch.ones(10) for _ in groups])
        os.kill(other.pid, fault)
        calls = [pool.submit(summed, group, torch.ones(10)) for group in groups]
        time.sleep(0.3)
        if fault == signal.SIGSTOP:
            assert not any(call.done() for call in calls)
        began = time.monotonic()
        for group in groups:
            group.give_up()
        for call in calls:
            with pytest.raises(GroupBroken):
                call.result(WAIT_S)
        for group in groups:
            group.close()
        again = formed(pool, meeting.invite(hosts[:-1]))
        results = together(pool, summed, again, [torch.ones(10) for _ in again])
        assert time.monotonic() - began < SOON_S
        assert all(torch.equal(result, torch.full((10,), 3.0)) for result in results)


def test_a_coordinator_that_cannot_be_reached_is_named() -> None:
    with socket.create_server((ADDRESS, 0)) as closed:
        port = closed.getsockname()[1]
    place = GroupMembership(number=1, secret=b"s", address=ADDRESS, port=port, rank=0, hosts=("a", "b"))
    with pytest.raises(GroupBroken, match="connect"):
        ProcessGroup(place, ADDRESS)


@contextlib.contextmanager
def _member_elsewhere(place: GroupMembership) -> Iterator[subprocess.Popen[str]]:
    """A member of the group in a process of its own, which takes part in one sum and in no more."""
    code = (
        "import pickle, torch;"
        "from remote_agent.training.worker.process_group import ProcessGroup;"
        "print(flush=True);"
        f"group = ProcessGroup(pickle.loads({pickle.dumps(place)!r}), {ADDRESS!r});"
        "group.sum([torch.ones(10)], lambda: None); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n", "it has loaded torch, which may take longer than a group may"
        yield process
    finally:
        process.kill()
        process.communicate()


def _outside() -> str:
    """Another address of this computer."""
    return "127.0.0.9" if sys.platform == "linux" else socket.gethostbyname(socket.gethostname())
