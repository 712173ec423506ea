"""TLS between hosts: both directions at once, and nobody without a certificate of the cluster's authority."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hetero_tui.fleet import authority
from remote_agent import tls

HERE = "127.0.0.1"
DEADLINE = 120.0
OURS, FOREIGN = authority.create("lab"), authority.create("lab")


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process's own certificate, as the environment of a cluster's process names it."""
    path = written(tmp_path / "tls.pem", OURS)
    for name, value in tls.variables(path, encrypted=True).items():
        monkeypatch.setenv(name, value)
    return path


def written(path: Path, signer: str, *addresses: str) -> Path:
    path.write_text(authority.certificate(signer, "mercer", addresses))
    return path


@contextlib.contextmanager
def server(work: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """Where one connection is accepted and worked with in a thread, which has to end."""
    with socket.create_server((HERE, 0)) as listener:
        listener.settimeout(DEADLINE)

        def serve() -> None:
            sock, _ = listener.accept()
            sock.settimeout(DEADLINE)
            with sock, contextlib.suppress(OSError):
                work(sock)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[:2]
        thread.join(DEADLINE)
        assert not thread.is_alive()


def connected(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=DEADLINE)


def fill(connection: tls.Secured, size: int) -> bytes:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        assert count, "it was closed"
        view = view[count:]
    return bytes(buffer)


def send(connection: tls.Secured, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[connection.sendmsg([view]) :]


def test_two_threads_of_each_side_send_and_receive_megabytes_at_the_same_time(bundle: Path) -> None:
    there, back = os.urandom(5_000_001), os.urandom(4_000_003)
    got: list[bytes] = []

    def both(connection: tls.Secured, own: bytes, others: bytes) -> None:
        sending = threading.Thread(target=send, args=(connection, own))
        sending.start()
        got.append(fill(connection, len(others)))
        sending.join(DEADLINE)

    with server(lambda sock: both(tls.Secured(sock, server=True), back, there)) as address, connected(address) as sock:
        both(tls.Secured(sock, server=False, address=HERE), there, back)
    assert sorted(got) == sorted([there, back])


def handshake_of_a_server(refusals: list[OSError]) -> Callable[[socket.socket], None]:
    def work(sock: socket.socket) -> None:
        try:
            tls.Secured(sock, server=True)
        except OSError as error:
            refusals.append(error)

    return work


@pytest.mark.parametrize("who", ["a foreign certificate", "no certificate", "an older TLS", "no TLS"])
def test_a_server_refuses(bundle: Path, tmp_path: Path, who: str) -> None:
    refusals: list[OSError] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(bundle)
    if who == "a foreign certificate":
        context.load_cert_chain(written(tmp_path / "foreign.pem", FOREIGN))
    if who == "an older TLS":
        context.load_cert_chain(bundle)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    work = handshake_of_a_server(refusals)
    with server(work) as address, connected(address) as sock, contextlib.suppress(OSError):
        if who == "no TLS":
            sock.sendall(bytes(100))
            sock.recv(100)
        else:
            context.wrap_socket(sock, server_hostname=HERE).recv(1)
    assert [type(each) for each in refusals] == [tls.CertificateRejected]
    assert str(refusals[0]).startswith(tls.DISTRUST)


@pytest.mark.parametrize("who", ["a foreign certificate", "another host's certificate", "no TLS"])
def test_a_client_refuses(bundle: Path, tmp_path: Path, who: str) -> None:
    other = tmp_path / "other.pem"
    other.write_text(authority.certificate(FOREIGN if "foreign" in who else OURS, "crosby", ["10.1.2.3"]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other)

    def work(sock: socket.socket) -> None:
        if who == "no TLS":
            sock.sendall(bytes(100))
        else:
            context.wrap_socket(sock, server_side=True)

    with server(work) as address, connected(address) as sock:
        called = HERE if who != "another host's certificate" else "10.9.9.9"
        with pytest.raises(tls.CertificateRejected):
            tls.Secured(sock, server=False, address=called)


@pytest.mark.parametrize("foreign", [False, True])
def test_a_machine_finds_out_whether_the_head_and_it_accept_each_other(
    bundle: Path, tmp_path: Path, foreign: bool
) -> None:
    """As Ray's gRPC does: the server looks at the certificate after the handshake has ended for the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(bundle)
    context.load_verify_locations(bundle)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    mixed = tmp_path / "mixed.pem"  # it accepts the head, which does not accept it
    mixed.write_text(authority.certificate(FOREIGN, "nas", []) + OURS[OURS.index("-----BEGIN CERT") :])

    def work(sock: socket.socket) -> None:
        context.wrap_socket(sock, server_side=True).sendall(b"settings")

    with server(work) as address:
        if foreign:
            with pytest.raises(tls.CertificateRejected):
                tls.meet(connected(address), mixed, HERE)
        else:
            tls.meet(connected(address), bundle, HERE)


def test_connections_are_encrypted_where_rays_are() -> None:
    assert tls.enabled(tls.variables(Path("tls.pem"), encrypted=True))
    assert tls.enabled({"RAY_USE_TLS": "1"}), "somebody's own cluster"
    assert not tls.enabled({})
    assert not tls.enabled(tls.variables(Path("tls.pem"), encrypted=False)), "only Ray's are"
