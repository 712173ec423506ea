"""A group of workers that sum tensors among themselves: gloo, made explicitly for one membership.

A group never changes. When a worker is lost, the group is given up and the living form a new one, under a new number.
No state of ``torch.distributed`` is left behind: a group is an object, not the process's default group.

Gloo has no way to end an operation whose peer has fallen silent: it would wait for its timeout. So no thread waits in
gloo itself. An operation runs on gloo's own threads, and a waiting thread wakes up when it ends or when the group is
given up, whichever is first (:meth:`ProcessGroup.give_up`, from any thread). The tensors of an operation that was given
up must not be used again: gloo may still write into them.

Members meet at the coordinator's store (:mod:`remote_agent.training.worker.meeting_place`), which knows a secret.
Gloo's own connections know none, and who connects first takes a member's place. So each two members prove to each other
that they know the secret before anything else goes over their connection: a stranger in a member's place breaks the
group as it forms, and gets no data. What is sent later is neither encrypted nor signed: torch's gloo is built without
TLS. Where connections have to be encrypted it listens on the loopback only: members on other hosts can't be reached.
"""

from __future__ import annotations

import contextlib
import hmac
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_distributed
from torch import Tensor
from torch.distributed import HashStore, ReduceOp  # type: ignore[attr-defined]  # torch's stubs lack one

from remote_agent import tls
from remote_agent.training.deadlines import GROUP_S, REDUCE_S
from remote_agent.training.shared.messages import GroupMembership
from remote_agent.training.wire.errors import ExchangeError
from remote_agent.training.worker.meeting_place import COMPLETE, Member

PIECE = 1 << 20
"""Elements that are summed at a time; two pieces are under way at once, so that the wire never rests."""

GLOO_THREADS = 2

_PROOF_BYTES = 32  # of HMAC-SHA256

_GLOO: Any = torch_distributed.ProcessGroupGloo  # torch's stubs know few of its methods


class GroupBroken(Exception):
    """The group can't go on: a worker was lost, or can't be reached. The others have to form a new one."""


class ProcessGroup:
    """This worker's membership of one group.

    Args:
        address: this node's own, where gloo listens. Names are of no use: they often resolve to 127.0.1.1.

    Raises:
        GroupBroken: not all members came, or one can't be reached.
    """

    def __init__(self, membership: GroupMembership, address: str) -> None:
        self.membership = membership
        self._given_up = False
        self._wake = threading.Event()
        try:
            with Member(membership) as member:
                # All are alive a moment before gloo, whose waiting can't be ended, connects them.
                if member.join() != COMPLETE:
                    raise GroupBroken("a worker was lost while the group was formed")
                self._group = _connected(member, membership, address)
            prove(self._group, membership)
        except (RuntimeError, ExchangeError) as error:
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
        future, wake = work.get_future(), self._wake
        # Gloo's thread frees the callback. With the group in it, it could free that too: it would wait for itself, and
        # end the process.
        future.add_done_callback(lambda _: wake.set())
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


def _connected(member: Member, membership: GroupMembership, address: str) -> Any:
    """Gloo's group. It puts its addresses into a store and waits there for the others'.

    The store is this process's own, and what is in it is swapped beside: one written in Python, which gloo would call
    from its threads, ends the process now and then.
    """
    store = HashStore()
    store.set_timeout(timedelta(seconds=GROUP_S))

    def swap() -> None:
        with contextlib.suppress(RuntimeError, ExchangeError):  # gloo then waits in vain, and says so
            for rank, said in enumerate(member.swap(store.get(_key(membership.rank)))):
                if rank != membership.rank:
                    store.set(_key(rank), said)  # type: ignore[arg-type]  # bytes are right

    options = _GLOO._Options()  # noqa: SLF001 - there is no public name
    options._devices = [_GLOO.create_device(hostname="127.0.0.1" if tls.enabled() else address)]  # noqa: SLF001
    options._timeout = timedelta(seconds=REDUCE_S)  # noqa: SLF001
    options._threads = GLOO_THREADS  # noqa: SLF001
    swapping = threading.Thread(target=swap, name="swap-addresses", daemon=True)
    swapping.start()
    group = _GLOO(store, membership.rank, membership.size, options)
    swapping.join()
    return group


def prove(group: Any, membership: GroupMembership) -> None:
    """Have each other member prove that it knows the secret; a proof is good for one group, pair and direction.

    Raises:
        GroupBroken: one does not know it, or did not answer within :data:`GROUP_S`.
    """
    own, limit = membership.rank, timedelta(seconds=GROUP_S)
    others = [rank for rank in range(membership.size) if rank != own]
    # Gloo writes into these, and reads them, until it has ended an operation.
    said = {rank: _proof(membership, own, rank) for rank in others}
    heard = {rank: torch.zeros(_PROOF_BYTES, dtype=torch.uint8) for rank in others}
    pending = [group.recv([heard[rank]], rank, 0) for rank in others]
    pending += [group.send([said[rank]], rank, 0) for rank in others]
    try:
        for work in pending:
            work.wait(limit)
    except RuntimeError as error:
        cause = (
            f"a worker, or a stranger in its place, did not prove that it knows the run's secret: {_first_line(error)}"
        )
        raise GroupBroken(cause) from error
    strange = [rank for rank in others if not torch.equal(heard[rank], _proof(membership, rank, own))]
    if strange:
        raise GroupBroken("a stranger took a worker's place while the group was formed")


def _proof(membership: GroupMembership, source: int, target: int) -> Tensor:
    text = f"gloo {membership.number} {source} {target}".encode()
    return torch.frombuffer(bytearray(hmac.digest(membership.secret, text, "sha256")), dtype=torch.uint8)


def _key(rank: int) -> str:
    """Under which torch's gloo, with one device, keeps a member's addresses."""
    return f"0/{rank}"


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    with contextlib.suppress(ValueError):
        text = text[text.index("] ") + 2 :] if text.startswith("[/") else text
    return text[:200]
