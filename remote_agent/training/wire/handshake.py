"""Authenticates a connection: both sides prove that they know the cluster's token, which is never sent.

::

    worker                                         shard
      magic, version, random number w  ─────────▸
                          ◂─────────  random number s, HMAC(token, "shard" | version | w | s)
      HMAC(token, "worker" | version | w | s)  ──▸

The proof is HMAC-SHA256 over both sides' random numbers (challenge and response, ISO/IEC 9798-4). It contains the role,
so that no answer can be reflected to its author. With ``security: tls`` the whole connection uses TLS 1.3
(:mod:`remote_agent.tls`). Otherwise the data after the handshake is neither encrypted nor signed, and needs a trusted
network.
"""

from __future__ import annotations

import hmac
import secrets
import socket

from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.deadlines import CONNECT_S, FRAME_S, HANDSHAKE_S
from remote_agent.training.wire.errors import ConnectionBroken, ConnectionRefused
from remote_agent.training.wire.frames import VERSION

_OPENING = b"HTXG" + bytes([VERSION])
_RANDOM = 32
_MAC = 32


def connect(address: tuple[str, int], token: bytes) -> Connection:
    """Connect to the shard at ``address`` (host, port) and authenticate both sides, within :data:`CONNECT_S`.

    Raises:
        ConnectionBroken: no process listens there, or the connection ended (as after a wrong token).
        ConnectionRefused: the process there does not know the token, or has no certificate of this cluster.
    """
    peer = f"{address[0]}:{address[1]}"
    try:
        sock = socket.create_connection(address, timeout=CONNECT_S)
    except OSError as error:
        raise ConnectionBroken(f"nothing answers at {peer}: {error.strerror or error}") from error
    connection = Connection(sock, peer)
    try:
        connection.limit(CONNECT_S)
        connection.encrypt(server=False, address=address[0])
        own = secrets.token_bytes(_RANDOM)
        connection.send(_OPENING + own)
        answer = bytearray(_RANDOM + _MAC)
        connection.receive_into(answer)
        theirs, mac = bytes(answer[:_RANDOM]), bytes(answer[_RANDOM:])
        if not hmac.compare_digest(mac, _mac(token, b"shard", own, theirs)):
            raise ConnectionRefused(
                f"the process that listens at {peer} does not know this cluster's token",
                hint="another cluster's shard may use that port; bring the cluster down and up again",
            )
        connection.send(_mac(token, b"worker", own, theirs))
        connection.limit(FRAME_S)
    except BaseException:
        connection.close()
        sock.close()
        raise
    return connection


def accept(connection: Connection, token: bytes) -> None:
    """Make the shard's side of the handshake, within :data:`HANDSHAKE_S` for each message.

    Raises:
        ConnectionBroken: the other side ended the connection or took too long.
        ConnectionRefused: it uses another protocol, or does not know the token.
    """
    connection.limit(HANDSHAKE_S)
    connection.encrypt(server=True)
    opening = bytearray(len(_OPENING) + _RANDOM)
    connection.receive_into(opening)
    if opening[: len(_OPENING)] != _OPENING:
        raise ConnectionRefused(f"{connection.peer} does not speak version {VERSION} of the exchange")
    theirs, own = bytes(opening[len(_OPENING) :]), secrets.token_bytes(_RANDOM)
    connection.send(own + _mac(token, b"shard", theirs, own))
    mac = bytearray(_MAC)
    connection.receive_into(mac)
    if not hmac.compare_digest(bytes(mac), _mac(token, b"worker", theirs, own)):
        raise ConnectionRefused(f"{connection.peer} does not know this cluster's token")
    connection.limit(FRAME_S)


def _mac(token: bytes, role: bytes, worker: bytes, shard: bytes) -> bytes:
    return hmac.digest(token, b"|".join((b"hetero-tui exchange", role, _OPENING, worker, shard)), "sha256")
