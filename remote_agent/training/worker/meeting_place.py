"""Lets the members of a group find each other: a small store of the coordinator, protected by a secret.

torch's own store (``TCPStore``) takes reads and writes of anyone who can connect to it. Here each side first proves
that it knows the secret, as on all connections of the exchange (:mod:`remote_agent.training.wire.handshake`); the
workers have it from the coordinator's calls, which Ray keeps from others. Then, in big-endian numbers::

    member                                                    coordinator
      JOIN, group, rank, size          ───────────────────▸
                                 ◂───  verdict, once all have joined or the group was given up
      PUT, group, key, value           ───────────────────▸
                                 ◂───  nothing
      GET, group, key                  ───────────────────▸
                                 ◂───  value, once there is one
"""

from __future__ import annotations

import logging
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Self

from remote_agent.training.deadlines import GROUP_S
from remote_agent.training.shared.messages import GroupMembership
from remote_agent.training.wire import handshake
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.deadlines import ACCEPT_PAUSE_S
from remote_agent.training.wire.errors import ConnectionBroken, ExchangeError, MalformedFrame

COMPLETE, GIVEN_UP = b"complete", b"given up"
"""The verdict on a group: all members have come, or one was lost before."""

_BACKLOG = 128
_MOST = 1 << 20  # bytes of a key or a value
_JOIN, _PUT, _GET = range(3)
_REQUEST = struct.Struct("!BQII")  # what, group, bytes of the key, bytes of the value
_ANSWER = struct.Struct("!?I")  # whether there is one, bytes of the value
_MEMBER = struct.Struct("!II")  # rank, size
_KEPT_GROUPS = 2  # a late member of the group before may still ask


class MeetingPlace:
    """The coordinator's end.

    Args:
        address: of the coordinator's node.

    Raises:
        OSError: it can't listen there.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        self._address, self._port = address, int(self._listener.getsockname()[1])
        self._secret, self._number = secrets.token_bytes(32), 0
        self._changed = threading.Condition()
        self._present: dict[int, set[int]] = {}
        self._values: dict[tuple[int, bytes], bytes] = {}
        self._verdicts: dict[int, bytes] = {}
        self._strangers = handshake.Strangers()
        threading.Thread(target=self._accept, name="meeting-place", daemon=True).start()

    def invite(self, hosts: Sequence[str]) -> tuple[GroupMembership, ...]:
        """A new group of a member on each of these hosts: what each of them must know."""
        with self._changed:
            self._number += 1
            oldest = self._number - _KEPT_GROUPS
            self._present = {number: there for number, there in self._present.items() if number > oldest}
            self._values = {key: value for key, value in self._values.items() if key[0] > oldest}
            self._verdicts = {number: word for number, word in self._verdicts.items() if number > oldest}
        return tuple(
            GroupMembership(
                number=self._number,
                secret=self._secret,
                address=self._address,
                port=self._port,
                rank=rank,
                hosts=tuple(hosts),
            )
            for rank in range(len(hosts))
        )

    def give_up(self, membership: GroupMembership) -> None:
        """Threads that still wait for the group's other members stop waiting."""
        with self._changed:
            self._verdicts.setdefault(membership.number, GIVEN_UP)
            self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except OSError:  # the caller hung up before, or no descriptor is left, and none may be for long
                threading.Event().wait(ACCEPT_PAUSE_S)
                continue
            connection = Connection(sock, f"{peer[0]}:{peer[1]}")
            self._strangers.admit(connection)
            threading.Thread(target=self._serve, args=(connection,), name="meeting-place", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection:
            try:
                with self._strangers.meeting(connection):
                    handshake.accept(connection, self._secret)
                connection.limit(GROUP_S)
                while True:
                    self._answer(connection)
            except ConnectionBroken:
                pass
            except ExchangeError as error:
                logging.getLogger(__name__).info("meeting place: %s", error)

    def _answer(self, connection: Connection) -> None:
        request = bytearray(_REQUEST.size)
        connection.receive_into(request)
        what, number, key_bytes, value_bytes = _REQUEST.unpack(request)
        if max(key_bytes, value_bytes) > _MOST:
            raise MalformedFrame(f"{connection.peer} sent a request that is too long")
        key, value = bytearray(key_bytes), bytearray(value_bytes)
        connection.receive_into(key)
        connection.receive_into(value)
        found: bytes | None = b""
        if what == _JOIN:
            self._join(number, *_MEMBER.unpack(key))
            found = self._await(lambda: self._verdicts.get(number))
        elif what == _PUT:
            with self._changed:
                self._values[number, bytes(key)] = bytes(value)
                self._changed.notify_all()
        else:
            found = self._await(lambda: self._values.get((number, bytes(key))))
        connection.send(_ANSWER.pack(found is not None, len(found or b"")), found or b"")

    def _join(self, number: int, rank: int, size: int) -> None:
        with self._changed:
            there = self._present.setdefault(number, set())
            there.add(rank)
            if len(there) == size:
                self._verdicts.setdefault(number, COMPLETE)
                self._changed.notify_all()

    def _await(self, look: Callable[[], bytes | None]) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: look() is not None, GROUP_S)
            return look()


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

    def join(self) -> bytes:
        """The verdict on the group, once there is one.

        Raises:
            ExchangeError: there was none within :data:`GROUP_S`, or the coordinator is gone.
        """
        return self._ask(_JOIN, _MEMBER.pack(self._membership.rank, len(self._membership.hosts)))

    def swap(self, own: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        """What the members with these ranks have to say to each other, in their order; ``own`` is what this one has.

        Raises:
            ExchangeError: as :meth:`join`.
        """
        self._ask(_PUT, f"{self._membership.rank} of {ranks}".encode(), own)
        return [self._ask(_GET, f"{rank} of {ranks}".encode()) for rank in ranks]

    def _ask(self, what: int, key: bytes, value: bytes = b"") -> bytes:
        self._connection.send(_REQUEST.pack(what, self._membership.number, len(key), len(value)), key + value)
        answer = bytearray(_ANSWER.size)
        self._connection.receive_into(answer)
        is_there, length = _ANSWER.unpack(answer)
        found = bytearray(length)
        self._connection.receive_into(found)
        if not is_there:
            raise ConnectionBroken(f"nothing came from the other workers within {GROUP_S:g} s")
        return bytes(found)
