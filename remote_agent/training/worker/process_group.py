"""A group of workers that sum tensors among themselves: gloo, made explicitly for one membership.

Workers on one host are one peer to the others: they add up among themselves first, the first of them does so with those
of the other hosts, and gives the sums to the rest. So a host's link carries as much as with one worker, and numbers
that were summed have the same bits everywhere. Gloo has a group of its own for each of the two levels
(:func:`levels`); a level with one member has none, so that hosts with a worker each are one ring, and workers of one
host another.

A group never changes. When a worker is lost, the group is given up and the living form a new one, under a new number.
No state of ``torch.distributed`` is left behind: a group is an object, not the process's default group.

Gloo has no way to end an operation whose peer has fallen silent: it would wait for its timeout. So no thread waits in
gloo itself. An operation runs on gloo's own threads, and a waiting thread wakes up when it ends or when the group is
given up, whichever is first (:meth:`ProcessGroup.give_up`, from any thread). The tensors of an operation that was given
up must not be used again: gloo may still write into them.

Members meet at the coordinator's store (:mod:`remote_agent.training.worker.rendezvous`), which knows a secret.
Gloo's own connections know none, and who connects first takes a member's place. So each two members prove to each other
that they know the secret before anything else goes over their connection: a stranger in a member's place breaks the
group as it forms, and gets no data. What is sent later is neither encrypted nor signed: torch's gloo is built without
TLS. Where connections have to be encrypted it listens on the loopback only: members on other hosts can't be reached.
"""

from __future__ import annotations

import contextlib
import hmac
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_distributed
from torch import Tensor
from torch.distributed import HashStore, ReduceOp  # type: ignore[attr-defined]  # torch's stubs lack one

from remote_agent import tls
from remote_agent.errors import first_line
from remote_agent.training.deadlines import GROUP_S, REDUCE_S
from remote_agent.training.shared.messages import GroupMembership
from remote_agent.training.wire.errors import ExchangeError
from remote_agent.training.worker.rendezvous import Member

PIECE = 1 << 20
"""Elements that are summed at a time; two pieces are under way at once, so that the wire never rests."""

GLOO_THREADS = 2

_PROOF_BYTES = 32  # of HMAC-SHA256

_HOST, _LEADERS = 0, 1  # as in levels()

_GLOO: Any = torch_distributed.ProcessGroupGloo  # torch's stubs know few of its methods


class GroupBroken(Exception):
    """The group can't go on: a worker was lost, or can't be reached. The others have to form a new one."""


def levels(membership: GroupMembership) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ranks of the members on this member's host, and of the leaders: each host's first member."""
    hosts = membership.hosts
    here = tuple(rank for rank, host in enumerate(hosts) if host == hosts[membership.rank])
    return here, tuple(hosts.index(host) for host in dict.fromkeys(hosts))


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
        self._is_split = len(set(membership.hosts)) > 1
        self._groups: list[Any] = []  # of each level; None: this worker has nobody to talk to there
        try:
            with Member(membership) as member:
                # All are alive a moment before gloo, whose waiting can't be ended, connects them.
                member.join()
                for ranks in levels(membership):
                    takes_part = membership.rank in ranks and len(ranks) > 1
                    self._groups.append(_connected(member, membership, ranks, address) if takes_part else None)
                    if takes_part:
                        prove(self._groups[-1], membership, ranks)
        except (RuntimeError, ExchangeError) as error:
            raise GroupBroken(f"the workers can't connect to each other: {_first_line(error)}") from error

    def give_up(self) -> None:
        """A thread that waits for an operation of the group gets :class:`GroupBroken`, now and from now on."""
        self._given_up = True
        self._wake.set()

    def close(self) -> None:
        """Leave the group. Gloo ends its operations first, which may take it :data:`REDUCE_S`: not on our time."""
        self.give_up()
        groups, self._groups = self._groups, []
        threading.Thread(target=groups.clear, name="leave-group", daemon=True).start()

    def sum(self, tensors: Sequence[Tensor], moved: Callable[[], None]) -> None:
        """Replace each tensor (CPU, shape ``(numel,)``) by its sum over all members, the same bits on each of them.

        Args:
            tensors: of dtypes that gloo knows, and of the same sizes everywhere; a small one does not wait for a
                large one before it.
            moved: called after each piece.

        Raises:
            GroupBroken: the contents of ``tensors`` are lost.
        """
        self._reduce(tensors, ReduceOp.SUM, moved)

    def largest(self, tensor: Tensor) -> None:
        """Replace ``tensor`` (CPU) by the largest of all members, element by element; raises as :meth:`sum`."""
        self._reduce([tensor], ReduceOp.MAX, lambda: None)

    def from_first(self, tensor: Tensor, moved: Callable[[], None]) -> None:
        """Replace ``tensor`` (CPU, shape ``(numel,)``) by that of the first member; raises as :meth:`sum`."""
        self._in_pieces([tensor], [(_LEADERS, _first()), (_HOST, _first())], moved)

    def _reduce(self, tensors: Sequence[Tensor], operation: ReduceOp.RedOpType, moved: Callable[[], None]) -> None:
        options = torch_distributed.AllreduceOptions()
        options.reduceOp = ReduceOp(operation)
        steps: list[tuple[int, Any]] = [(_HOST, options), (_LEADERS, options)]
        if self._is_split:
            steps.append((_HOST, _first()))
        self._in_pieces(tensors, steps, moved)

    def _in_pieces(self, tensors: Sequence[Tensor], steps: list[tuple[int, Any]], moved: Callable[[], None]) -> None:
        """Take each piece through the steps (level, options); the next ones are under way before one has ended.

        All members of a level begin its operations in the same order, also those without a part in a step between.
        """
        pieces = (piece for tensor in tensors for piece in torch.split(tensor, PIECE))
        on_their_way = [self._through(piece, steps, moved) for piece in pieces]
        for turn in range(len(on_their_way) + len(steps)):
            for piece in reversed(on_their_way[max(0, turn - len(steps)) : turn + 1]):
                next(piece, None)

    def _through(self, piece: Tensor, steps: list[tuple[int, Any]], moved: Callable[[], None]) -> Iterator[None]:
        for level, options in steps:
            work = self._start(level, piece, options)
            yield
            if work is not None:
                self._finish(work)
        moved()

    def _start(self, level: int, tensor: Tensor, options: Any) -> Any:
        """Begin an operation; None: this worker has no part in it."""
        if self._given_up:
            raise GroupBroken("the group was given up")
        # No variable may hold gloo's group: what lets go of it last waits for its operations (see close).
        if self._groups[level] is None:
            return None
        try:
            if isinstance(options, torch_distributed.BroadcastOptions):
                return self._groups[level].broadcast([tensor], options)
            return self._groups[level].allreduce([tensor], options)
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


def _first() -> Any:
    """For an operation that gives all members what the first one has."""
    options = torch_distributed.BroadcastOptions()
    options.rootRank = 0
    return options


def _connected(member: Member, membership: GroupMembership, ranks: tuple[int, ...], address: str) -> Any:
    """Gloo's group of the members with these ranks, in their order.

    It puts its addresses into a store and waits there for the others'. The store is this process's own, and what is in
    it is swapped beside: one written in Python, which gloo would call from its threads, ends the process now and then.
    """
    store = HashStore()
    store.set_timeout(timedelta(seconds=GROUP_S))
    own = ranks.index(membership.rank)

    def swap() -> None:
        with contextlib.suppress(RuntimeError, ExchangeError):  # gloo then waits in vain, and says so
            for place, said in enumerate(member.swap(store.get(_key(own)), ranks)):
                if place != own:
                    store.set(_key(place), said)  # type: ignore[arg-type]  # bytes are right

    options = _GLOO._Options()  # noqa: SLF001 - there is no public name
    options._devices = [_GLOO.create_device(hostname="127.0.0.1" if tls.enabled() else address)]  # noqa: SLF001
    options._timeout = timedelta(seconds=REDUCE_S)  # noqa: SLF001
    options._threads = GLOO_THREADS  # noqa: SLF001
    swapping = threading.Thread(target=swap, name="swap-addresses", daemon=True)
    swapping.start()
    group = _GLOO(store, own, len(ranks), options)
    swapping.join()
    return group


def prove(group: Any, membership: GroupMembership, ranks: tuple[int, ...]) -> None:
    """Have each other one of these members prove that it knows the secret.

    A proof is good for one group, pair and direction; no pair is in both levels of a group.

    Raises:
        GroupBroken: one does not know it, or did not answer within :data:`GROUP_S`.
    """
    own, limit = membership.rank, timedelta(seconds=GROUP_S)
    others = [rank for rank in ranks if rank != own]
    # Gloo writes into these, and reads them, until it has ended an operation.
    said = {rank: _proof(membership, own, rank) for rank in others}
    heard = {rank: torch.zeros(_PROOF_BYTES, dtype=torch.uint8) for rank in others}
    pending = [group.recv([heard[rank]], ranks.index(rank), 0) for rank in others]
    pending += [group.send([said[rank]], ranks.index(rank), 0) for rank in others]
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


def _key(place: int) -> str:
    """Under which torch's gloo, with one device, keeps a member's addresses."""
    return f"0/{place}"


def _first_line(error: Exception) -> str:
    text = first_line(error)
    with contextlib.suppress(ValueError):
        text = text[text.index("] ") + 2 :] if text.startswith("[/") else text
    return text[:200]
