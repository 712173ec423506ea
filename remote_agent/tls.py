"""TLS 1.3 between a cluster's machines: each side shows a certificate that the cluster's own authority has signed.

The laptop makes the authority and a certificate for each host. A host has them in one file: its private key, its
certificate, the authority's. Ray's gRPC always uses that file, by :func:`variables`, which are in the environment of
every process of the cluster; our own connections do so with ``security: tls``. Needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remote_agent.protocol import EXCHANGE

_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
_READ = 1 << 18
_WRITE = 1 << 18
"""Bytes that are encrypted at a time, so that the wire has something to do meanwhile."""

DISTRUST = "the two sides do not accept each other's certificates"
"""What :class:`CertificateRejected` begins with."""


class CertificateRejected(OSError):
    """One side does not accept the other's certificate, or has none, or speaks no TLS."""

    def __init__(self, error: ssl.SSLError) -> None:
        detail = getattr(error, "verify_message", "") or (error.reason or str(error)).lower().replace("_", " ")
        super().__init__(f"{DISTRUST} ({detail})")


def variables(bundle: Path, *, encrypted: bool) -> dict[str, str]:
    """The environment in which Ray uses the file, and, if ``encrypted``, our own connections too."""
    return {"RAY_USE_TLS": "1", EXCHANGE: "tls" if encrypted else "clear"} | dict.fromkeys(_FILES, str(bundle))


def enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process's own connections to other machines have to be encrypted, and not Ray's alone."""
    of_ray = environment.get("RAY_USE_TLS", "0").lower() in ("1", "true")  # as Ray itself reads it
    return of_ray and environment.get(EXCHANGE) != "clear"


def _context(certificate: str, key: str, authority: str, *, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    return context


def meet(sock: socket.socket, bundle: Path, address: str) -> None:
    """Whether the gRPC server (Ray's) at the other end and this machine accept each other; takes the socket over.

    Raises:
        CertificateRejected: they do not.
        OSError: the connection ended, the server did not speak in time, or the file can't be read.
    """
    try:
        context = _context(*[str(bundle)] * 3, server=False)
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(sock, server_hostname=address) as secured:
            secured.recv(1)  # a server looks at our certificate once the handshake is over for us, and then says so
    except ssl.SSLError as error:
        raise CertificateRejected(error) from error


class Secured:
    """TLS over a connected socket, with those of a socket's methods that :mod:`remote_agent.training.wire` uses.

    One thread may send while another receives. ``ssl.SSLSocket`` does not allow that: here the lock is held while bytes
    are encrypted or decrypted, and not while they are awaited. The kernel's own limits of time apply.

    Args:
        sock: connected; it is taken over.
        server: this side accepted the connection.
        address: of the other side, which its certificate has to name; it is not looked at by a server.

    Raises:
        CertificateRejected: the other side has no certificate of this cluster's, or speaks no TLS.
        OSError: the connection ended, or brought nothing in time.
    """

    def __init__(self, sock: socket.socket, *, server: bool, address: str = "") -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._buffer = memoryview(bytearray(_READ))
        context = _context(*(os.environ[name] for name in _FILES), server=server)
        name = None if server else address
        # Any: what is read into a buffer is counted, which typeshed does not know.
        self._tls: Any = context.wrap_bio(self._incoming, self._outgoing, server_side=server, server_hostname=name)
        self._shake_hands()
        self.setsockopt, self.settimeout = sock.setsockopt, sock.settimeout
        self.shutdown, self.close = sock.shutdown, sock.close

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        """Send the beginning of the parts; returns how many bytes."""
        room = _WRITE
        with self._lock:
            for part in parts:
                if len(part) and room:
                    room -= self._tls.write(part[:room])
            encrypted = self._outgoing.read()
        self._socket.sendall(encrypted)
        return _WRITE - room

    def recv_into(self, view: memoryview, count: int = 0, flags: int = 0) -> int:
        """Receive some bytes; 0: the other side closed the connection."""
        del count, flags
        while True:
            received = 0
            with self._lock:
                try:
                    while received < len(view):
                        received += self._tls.read(len(view) - received, view[received:])
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    return received
                except ssl.SSLError as error:
                    raise _explained(error) from error
            if received:
                return received
            if not self._take_in():
                return 0

    def _take_in(self) -> int:
        count = self._socket.recv_into(self._buffer)
        with self._lock:
            self._incoming.write(self._buffer[:count])
        return count

    def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError as error:
                with contextlib.suppress(OSError):  # why: the other side may say it to its user, if it still listens
                    self._socket.sendall(self._outgoing.read())
                raise CertificateRejected(error) from error
            self._socket.sendall(self._outgoing.read())
            if done:
                return
            if not self._take_in():
                raise ConnectionResetError("it closed the connection during the TLS handshake")


def _explained(error: ssl.SSLError) -> OSError:
    """A server refuses our certificate after the handshake, as we see it; other errors are the connection's."""
    reason = error.reason or ""
    return (
        CertificateRejected(error) if "CERT" in reason or "UNKNOWN_CA" in reason else OSError(f"TLS: {reason.lower()}")
    )
