"""Lets the members of a group find each other: a small store of the coordinator, protected by a secret.

torch's own store (``TCPStore``) takes reads and writes of anyone who can connect to it. Here each side first proves
that it knows the secret, as on all connections of the exchange (:mod:`remote_agent.training.wire.handshake`); the
workers have it from the coordinator's calls, which Ray keeps from others. Then some members of a group, or all, swap
what they have to say, in big-endian numbers::

    member                                                             coordinator
      group, what about, rank, a bit for each member that swaps, words  ──▸
                 ◂──  the words of each, once all have come; or that they will not
"""

from __future__ import annotations

import contextlib
import secrets
import struct
import threading
from collections.abc import Sequence
from typing import Self

from remote_agent.training.deadlines import GROUP_S
from remote_agent.training.shared.messages import GroupMembership
from remote_agent.training.wire import frames, handshake
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.deadlines import ACCEPT_PAUSE_S
from remote_agent.training.wire.errors import ConnectionBroken, MalformedFrame
from remote_agent.training.wire.listener import Listener

_MOST = 1 << 20  # bytes of a member's words
_REQUEST = struct.Struct("!QBIII")  # group, what about, rank, workers in the group, bytes of bits and words
_ANSWER = struct.Struct("!?I")  # whether all have come, bytes of one's words
_PRESENCE, _ADDRESSES = range(2)  # what it is about
_KEPT_GROUPS = 2  # a late member of the group before may still ask


class Rendezvous:
    """The coordinator's end.

    Args:
        address: of the coordinator's node.

    Raises:
        OSError: it can't listen there.
    """

    def __init__(self, address: str) -> None:
        self._secret, self._number = secrets.token_bytes(32), 0
        self._changed = threading.Condition()
        self._words: dict[tuple[int, int, bytes], dict[int, bytes]] = {}
        self._given_up = 0
        self._listener = Listener(address, self._secret, self._serve, "rendezvous")
        self._listener.start()

    def invite(self, hosts: Sequence[str]) -> tuple[GroupMembership, ...]:
        """A new group of a member on each of these hosts: what each of them must know."""
        with self._changed:
            self._number += 1
            self._words = {key: words for key, words in self._words.items() if key[0] > self._number - _KEPT_GROUPS}
        return tuple(
            GroupMembership(
                number=self._number,
                secret=self._secret,
                address=self._listener.address[0],
                port=self._listener.address[1],
                rank=rank,
                hosts=tuple(hosts),
            )
            for rank in range(len(hosts))
        )

    def give_up(self, membership: GroupMembership) -> None:
        """Threads that still wait for the other members of this group, or of one before it, stop waiting."""
        with self._changed:
            self._given_up = max(self._given_up, membership.number)
            self._changed.notify_all()

    def _serve(self, connection: Connection) -> None:
        connection.limit(GROUP_S)
        with contextlib.suppress(ConnectionBroken):  # a member has what it asked for, or was lost
            while True:
                self._answer(connection)

    def _answer(self, connection: Connection) -> None:
        number, about, rank, size, length = _REQUEST.unpack(_received(connection, _REQUEST.size))
        if not 0 < size <= 8 * length <= 8 * _MOST:
            raise MalformedFrame(f"{connection.peer} sent a request that is too long, or none")
        said = _received(connection, length)
        bits, own = said[: -(-size // 8)], said[-(-size // 8) :]
        ranks = [each for each, swaps in enumerate(frames.unpack_bits(bits, size)) if swaps]
        with self._changed:
            words = self._words.setdefault((number, about, bits), {})
            words[rank] = own
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(words) == len(ranks) or number <= self._given_up, GROUP_S)
            found = [words.get(each) for each in ranks]
        if None in found:
            connection.send(_ANSWER.pack(False, 0))
            return
        for each in found:
            connection.send(_ANSWER.pack(True, len(each or b"")), each or b"")


class Member:
    """A member's end.

    Args:
        membership: where the coordinator's end is.

    Raises:
        ExchangeError: it can't be reached, or does not know the secret.
    """

    def __init__(self, membership: GroupMembership) -> None:
        self._membership = membership
        self._connection = handshake.connect((membership.address, membership.port), membership.secret)
        self._connection.limit(GROUP_S + ACCEPT_PAUSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.__exit__(None, None, None)

    def join(self) -> None:
        """Wait until all members of the group are there.

        Raises:
            ExchangeError: not all of them came within :data:`GROUP_S`, or the coordinator is gone.
        """
        self._swap(_PRESENCE, b"", range(len(self._membership.hosts)))

    def swap(self, own: bytes, ranks: Sequence[int]) -> list[bytes]:
        """The addresses of the members with these ranks, by rank; ``own`` is this one's. Raises as :meth:`join`."""
        return self._swap(_ADDRESSES, own, ranks)

    def _swap(self, about: int, own: bytes, ranks: Sequence[int]) -> list[bytes]:
        membership, size = self._membership, len(self._membership.hosts)
        said = frames.pack_bits(each in ranks for each in range(size)) + own
        self._connection.send(_REQUEST.pack(membership.number, about, membership.rank, size, len(said)), said)
        return [self._next() for _ in ranks]

    def _next(self) -> bytes:
        is_there, length = _ANSWER.unpack(_received(self._connection, _ANSWER.size))
        if not is_there:
            raise ConnectionBroken("a worker was lost, or did not come, while the group was formed")
        return _received(self._connection, length)


def _received(connection: Connection, size: int) -> bytes:
    buffer = bytearray(size)
    connection.receive_into(buffer)
    return bytes(buffer)
