"""A real Ray cluster on this computer: each node a `ray start --block` of its own, on a loopback address of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hetero_tui.fleet import authority
from remote_agent import tls
from remote_agent.host import layout
from remote_agent.protocol import SIMULATED_SPEED
from tests.training import workers

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0

STOP_S = 5.0
"""A node whose cluster holds detached actors, as Ray Data leaves them, waits for longer than that until it ends."""

HEAD_ADDRESS = "127.0.0.2"


@contextmanager
def running(
    hosts: Sequence[str], *, cpus: int = 1, stub: Path | None = None, encrypted: bool = False
) -> Iterator[Cluster]:
    """A cluster with a node for each host, the head first; gone at the end.

    Hosts get the addresses 127.0.0.2, 127.0.0.3 and so on (Linux only: macOS has no such addresses). Each takes itself
    to have so many ``cpus``. With the ``stub`` of :mod:`tests.training.workers` their workers start at once. Clusters
    that are ``encrypted`` use certificates, as the product's do; others are like a user's own.
    """
    folder = Path(tempfile.mkdtemp(prefix="ht", dir="/tmp"))
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    environment = os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_enable_metrics_collection": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_ENABLE_AUTO_CONNECT": "0",  # as the coordinator has it: those of the tests load Ray earlier
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("RAY_ADDRESS", None)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # with it every process of the cluster would compile the engine
    if encrypted:
        bundle = layout.tls_path(folder)
        own = [f"127.0.0.{number}" for number, _ in enumerate(hosts, start=2)]
        bundle.write_text(authority.certificate(authority.create("test"), hosts[0], own))
        environment |= tls.variables(bundle, encrypted=False)
    started = Cluster(folder, environment, f"{HEAD_ADDRESS}:{free_port()}", cpus)
    if stub is not None:
        started.ray = workers.ray(stub)
    try:
        for number, host in enumerate(hosts, start=2):
            started.start(host, f"127.0.0.{number}")
            if number == 2:
                _listening(started.address)
        started.wait()
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """A port outside the range that Ray gives to its workers."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", 0))
            port: int = probe.getsockname()[1]
        if not 10002 <= port <= 19999:
            return port


@dataclass
class Cluster:
    """Nodes of ours: each a `ray start --block` in its own session."""

    folder: Path
    environment: dict[str, str]
    address: str
    cpus: int = 1
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    ray: list[str] = field(default_factory=lambda: [str(Path(sys.executable).with_name("ray"))])

    def start(self, host: str, address: str, speed: float | None = None) -> None:
        port = self.address.rpartition(":")[2]
        where = ["--address", self.address] if self.nodes else ["--head", f"--port={port}", "--include-dashboard=false"]
        command = [*self.ray, "start", *where, "--block", "--disable-usage-stats"]
        command += [f"--node-ip-address={address}", f"--labels=hetero-host={host}", f"--num-cpus={self.cpus}"]
        command += [f"--temp-dir={self.folder}/{host}", "--object-store-memory=300000000"]
        command += ["--include-log-monitor=false"]  # as on the product's nodes
        environment = self.environment | {"TEST_HOST": host} | ({SIMULATED_SPEED: str(speed)} if speed else {})
        log = (self.folder / f"{host}.log").open("wb")
        self.nodes[host] = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        self.addresses[host] = address

    def wait(self) -> None:
        """Until the head knows all nodes; names count: one that was stopped may still be alive to it."""
        code = (
            "import ray,sys,time,logging;"
            f"ray.init({self.address!r},_node_ip_address='127.0.0.2',log_to_driver=False,logging_level=logging.ERROR);"
            f"end=time.time()+{START_S / 2}\n"
            f"while not {set(self.nodes)!r}<={{n['Labels'].get('hetero-host') for n in ray.nodes() if n['Alive']}}:\n"
            " time.sleep(0.1)\n"
            " assert time.time()<end"
        )
        end = time.monotonic() + START_S
        while True:
            done = subprocess.run([sys.executable, "-c", code], env=self.environment, capture_output=True, check=False)
            if done.returncode == 0:
                return
            logs = {host: (self.folder / f"{host}.log").read_text()[-1500:] for host in self.nodes}
            assert time.monotonic() < end, logs
            assert all(process.poll() is None for process in self.nodes.values()), logs

    def stop(self) -> None:
        for process in reversed(self.nodes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self.nodes.values():
            _ended(process)

    def stop_node(self, host: str) -> None:
        """Take a host's node down; it is none of the cluster's any more."""
        process = self.nodes.pop(host)
        process.send_signal(signal.SIGTERM)
        _ended(process)


def _ended(node: subprocess.Popen[bytes]) -> None:
    """Wait for a node that was told to end; it is made to if it takes too long."""
    try:
        node.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def _listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    end = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            assert time.monotonic() < end, f"nothing listens on {address}"
            time.sleep(0.1)
        else:
            return
