"""A group of workers that sum tensors among themselves: gloo, made explicitly for one membership.

A group never changes. When a worker is lost, the group is given up and the living form a new one, under a new number.
No state of ``torch.distributed`` is left behind: a group is an object, not the process's default group.

Gloo has no way to end an operation whose peer has fallen silent: it would wait for its timeout. So no thread waits in
gloo itself. An operation runs on gloo's own threads, and a waiting thread wakes up when it ends or when the group is
given up, whichever is first (:meth:`ProcessGroup.give_up`, from any thread). The tensors of an operation that was given
up must not be used again: gloo may still write into them.

Neither the coordinator's store nor gloo's connections know a secret. They listen on the node's own address only: a
network with strangers on it needs the encrypted links that Ray itself needs there.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_distributed
from torch import Tensor
from torch.distributed import PrefixStore, ReduceOp, TCPStore  # type: ignore[attr-defined]  # torch's stubs lack two

from remote_agent.training.deadlines import GROUP_S, REDUCE_S
from remote_agent.training.shared.messages import GroupMembership

PIECE = 1 << 20
"""Elements that are summed at a time; two pieces are under way at once, so that the wire never rests."""

GLOO_THREADS = 2

_GLOO: Any = torch_distributed.ProcessGroupGloo  # torch's stubs know few of its methods

_BACKLOG = 128
_VERDICT, _COMPLETE, _GIVEN_UP = "verdict", b"complete", b"given up"


class GroupBroken(Exception):
    """The group can't go on: a worker was lost, or can't be reached. The others have to form a new one."""


class MeetingPlace:
    """Where the members of a group find each other: a key-value store of the coordinator's.

    Args:
        address: of the coordinator's node.

    Raises:
        OSError: it can't listen there.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        # A socket of our own: the store's would listen on every address of the host.
        listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        self._address, self._port = address, int(listener.getsockname()[1])
        self._store = TCPStore(
            address, self._port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self._run, self._number = secrets.token_hex(8), 0

    def invite(self, size: int) -> tuple[GroupMembership, ...]:
        """A new group of ``size`` members: what each of them must know."""
        self._number += 1
        return tuple(
            GroupMembership(
                number=self._number, run=self._run, address=self._address, port=self._port, rank=rank, size=size
            )
            for rank in range(size)
        )

    def give_up(self, membership: GroupMembership) -> None:
        """Threads that still wait for the group's other members stop waiting."""
        _keys(self._store, membership).compare_set(_VERDICT, "", _GIVEN_UP.decode())


class ProcessGroup:
    """This worker's membership of one group.

    Args:
        membership: which group.
        address: this node's own, where gloo listens. Names are of no use: they often resolve to 127.0.1.1.

    Raises:
        GroupBroken: not all members came, or one can't be reached.
    """

    def __init__(self, membership: GroupMembership, address: str) -> None:
        self.membership = membership
        self._given_up = False
        self._wake = threading.Event()
        wait = timedelta(seconds=GROUP_S)
        try:
            store = TCPStore(membership.address, membership.port, is_master=False, wait_for_workers=False, timeout=wait)
            keys = _keys(store, membership)
            if keys.add("present", 1) == membership.size:
                keys.compare_set(_VERDICT, "", _COMPLETE.decode())
            # All are alive a moment before gloo, whose waiting can't be ended, connects them.
            if keys.get(_VERDICT) != _COMPLETE:
                raise GroupBroken("a worker was lost while the group was formed")
            options = _GLOO._Options()  # noqa: SLF001 - there is no public name
            options._devices = [_GLOO.create_device(hostname=address)]  # noqa: SLF001
            options._timeout = timedelta(seconds=REDUCE_S)  # noqa: SLF001
            options._threads = GLOO_THREADS  # noqa: SLF001
            keys.set_timeout(wait)
            self._group = _GLOO(keys, membership.rank, membership.size, options)
        except RuntimeError as error:
            raise GroupBroken(f"the workers can't connect to each other: {_first_line(error)}") from error

    def give_up(self) -> None:
        """A thread that waits for an operation of the group gets :class:`GroupBroken`, now and from now on."""
        self._given_up = True
        self._wake.set()

    def close(self) -> None:
        """Leave the group. Gloo ends its operations first, which may take it :data:`REDUCE_S`: not on our time."""
        self.give_up()
        group = [self._group]
        del self._group
        threading.Thread(target=group.clear, name="leave-group", daemon=True).start()

    def sum(self, tensor: Tensor, moved: Callable[[], None]) -> None:
        """Replace ``tensor`` (CPU, shape ``(numel,)``) by its sum over all members, the same bits on each of them.

        Args:
            tensor: of a dtype that gloo knows, and of the same size everywhere.
            moved: called after each piece.

        Raises:
            GroupBroken: the contents of ``tensor`` are lost.
        """
        ahead: Callable[[], None] | None = None
        for piece in torch.split(tensor, PIECE):
            finish = self._start(piece, ReduceOp.SUM)
            if ahead is not None:
                ahead()
                moved()
            ahead = finish
        if ahead is not None:
            ahead()
            moved()

    def largest(self, tensor: Tensor) -> None:
        """Replace ``tensor`` (CPU) by the largest of all members, element by element; raises as :meth:`sum`."""
        self._start(tensor, ReduceOp.MAX)()

    def from_first(self, tensor: Tensor, moved: Callable[[], None]) -> None:
        """Replace ``tensor`` (CPU, shape ``(numel,)``) by that of the first member; raises as :meth:`sum`."""
        options = torch_distributed.BroadcastOptions()
        options.rootRank = 0
        for piece in torch.split(tensor, PIECE):
            self._finish(self._ask(self._group.broadcast, piece, options))
            moved()

    def _start(self, tensor: Tensor, operation: ReduceOp.RedOpType) -> Callable[[], None]:
        """Begin an operation; the result finishes it."""
        options = torch_distributed.AllreduceOptions()
        options.reduceOp = ReduceOp(operation)
        work = self._ask(self._group.allreduce, tensor, options)
        return lambda: self._finish(work)

    def _ask(self, operation: Callable[[list[Tensor], Any], Any], tensor: Tensor, options: Any) -> Any:
        if self._given_up:
            raise GroupBroken("the group was given up")
        try:
            return operation([tensor], options)
        except RuntimeError as error:
            raise GroupBroken(_first_line(error)) from error

    def _finish(self, work: Any) -> None:
        future = work.get_future()
        future.add_done_callback(lambda _: self._wake.set())
        # An operation before this one, or one after it, may wake us as well.
        while not future.done():
            if self._given_up:
                raise GroupBroken("the group was given up")
            if not self._wake.wait(REDUCE_S):
                raise GroupBroken(f"nothing arrived within {REDUCE_S:g} s")
            if not self._given_up:
                self._wake.clear()
        try:
            future.value()
        except RuntimeError as error:
            raise GroupBroken(_first_line(error)) from error


def _keys(store: TCPStore, membership: GroupMembership) -> PrefixStore:
    """The group's own part of the store."""
    return PrefixStore(f"{membership.run}/{membership.number}", store)


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    with contextlib.suppress(ValueError):
        text = text[text.index("] ") + 2 :] if text.startswith("[/") else text
    return text[:200]
