"""A cluster that lost its head is formed anew: a machine leaves the older one, and never goes back to it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote_agent.host import layout, node, processes
from remote_agent.host.ray_node import NodeError
from remote_agent.protocol import HeadReport, NodeReport, NodeSpec, decode, encode
from tests.specs import give_certificate, node_spec

Agent = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def spec(tmp_path: Path) -> NodeSpec:
    folder = tmp_path / "cluster"
    folder.mkdir(mode=0o700)
    processes.write_private(layout.token_path(folder), "secret")
    addresses = {"node_address": "127.0.0.3", "head_address": "127.0.0.1", "gcs_port": 1}
    spec = node_spec("crosby", "worker", folder=str(folder), epoch=5, **addresses)
    give_certificate(spec)
    return spec


@pytest.fixture
def listening(spec: NodeSpec) -> Iterator[int]:
    """The port of a head that accepts the machine's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(layout.tls_path(Path(spec.folder)))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):  # the test is over
                while True:
                    context.wrap_socket(server.accept()[0], server_side=True).close()

        threading.Thread(target=accept, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


def in_force(spec: NodeSpec) -> Path:
    processes.write_private(layout.spec_path(Path(spec.folder)), encode(spec) + "\n")
    return Path(spec.folder)


def ask(agent: Agent, folder: Path) -> HeadReport:
    return decode(HeadReport, agent("host.node", "head", "--folder", str(folder)).stdout)


def test_a_machine_says_whether_it_reaches_its_head(agent: Agent, spec: NodeSpec, listening: int) -> None:
    assert ask(agent, Path(spec.folder)).epoch is None
    folder = in_force(replace(spec, gcs_port=listening))
    assert ask(agent, folder) == HeadReport(answers=True, epoch=5)
    in_force(spec)
    assert ask(agent, folder) == HeadReport(answers=False, silence="Connection refused", epoch=5)


def test_a_machine_that_is_being_taken_down_is_no_witness(agent: Agent, spec: NodeSpec) -> None:
    folder = in_force(spec)
    layout.stop_flag(folder).touch()
    assert ask(agent, folder).epoch is None


def test_a_start_for_an_older_cluster_is_refused(agent: Agent, spec: NodeSpec) -> None:
    folder = in_force(spec)
    report = decode(NodeReport, agent("host.node", "start", stdin=encode(replace(spec, epoch=4)) + "\n").stdout)
    assert report.state == "failed"
    assert "newer cluster" in report.cause
    assert layout.read_spec(folder) == spec


def test_what_a_replaced_cluster_left_on_a_machine_is_ended_its_runs_too(
    spec: NodeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = in_force(replace(spec, role="head"))
    names = [layout.RAY, layout.SUPERVISOR, f"{layout.RUN_PREFIX}digits-1"]
    sleep = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"]
    for name in names:
        processes.launch(folder, name, sleep, folder / "log")

    def stopped(*_: object) -> None:
        raise NodeError("far enough")

    monkeypatch.setattr(node, "_await_head", stopped)
    report = node.start(replace(spec, epoch=6))
    assert report.cause == "far enough"
    assert [name for name in names if processes.find_named(folder, name) is not None] == []
