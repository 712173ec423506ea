"""A real Ray cluster of several nodes on loopback, and runs of the real coordinator on it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from remote_agent.protocol import SIMULATED_SPEED, DeviceSpec, RunSpec, encode

ROOT = Path(__file__).resolve().parents[2]
START_S, RUN_S, STOP_S = 60.0, 120.0, 20.0


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
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def start(self, host: str, address: str, speed: float | None = None) -> None:
        port = self.address.rpartition(":")[2]
        where = ["--address", self.address] if self.nodes else ["--head", f"--port={port}", "--include-dashboard=false"]
        command = [str(Path(sys.executable).with_name("ray")), "start", *where, "--block", "--disable-usage-stats"]
        command += [f"--node-ip-address={address}", f"--labels=hetero-host={host}", "--num-cpus=1"]
        command += [f"--temp-dir={self.folder}/{host}", "--object-store-memory=300000000"]
        environment = self.environment | {"TEST_HOST": host} | ({SIMULATED_SPEED: str(speed)} if speed else {})
        log = (self.folder / f"{host}.log").open("wb")
        self.nodes[host] = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        self.addresses[host] = address

    def wait(self, count: int) -> None:
        """Until `count` nodes are known to the head."""
        code = (
            "import ray,sys,time,logging;"
            f"ray.init({self.address!r},_node_ip_address='127.0.0.2',log_to_driver=False,logging_level=logging.ERROR);"
            f"end=time.time()+{START_S / 2}\n"
            f"while sum(n['Alive'] for n in ray.nodes())<{count}:\n"
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
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Hosts a (head), b and c."""
    folder = Path(tempfile.mkdtemp(prefix="ht", dir="/tmp"))
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    environment = os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_enable_metrics_collection": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("RAY_ADDRESS", None)
    started = Cluster(folder, environment, f"127.0.0.2:{free_port()}")
    try:
        for host, address in (("a", "127.0.0.2"), ("b", "127.0.0.3"), ("c", "127.0.0.4")):
            started.start(host, address)
            if host == "a":
                _listening(started.address)
        started.wait(3)
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def simulated(cluster: Cluster) -> Cluster:
    """The same cluster with hosts x, y and z of simulated speeds 1, 0.5 and 0.25 beside the others."""
    for host, address, speed in (("x", "127.0.0.5", 1.0), ("y", "127.0.0.6", 0.5), ("z", "127.0.0.7", 0.25)):
        cluster.start(host, address, speed)
    cluster.wait(len(cluster.nodes))
    return cluster


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


@dataclass
class Run:
    """A coordinator process and its folder."""

    folder: Path
    process: subprocess.Popen[str]

    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["kind"] == kind]

    def until(self, kind: str, count: int = 1) -> None:
        """Wait until `count` events of a kind are there."""
        end = time.monotonic() + RUN_S
        while len(self.of_kind(kind)) < count:
            assert self.process.poll() is None, self.finish()
            assert time.monotonic() < end, self.events()[-3:]
            time.sleep(0.02)

    def finish(self) -> tuple[int, str]:
        """Exit code and stderr."""
        _, errors = self.process.communicate(timeout=RUN_S)
        return self.process.returncode, errors


Launch = Callable[..., Run]


@pytest.fixture
def launch(cluster: Cluster, tmp_path: Path) -> Iterator[Launch]:
    """Starts a run: `launch(source, hosts, **config)`; source is a ready job's name or the text of a job file."""
    runs: list[Run] = []

    def start(
        source: str, hosts: str = "abc", device: str = "cpu", server: str = "a", address: str = "", **config: Any
    ) -> Run:
        limits: dict[str, int] = config.pop("limits", {})
        folder = tmp_path / f"run{len(runs)}"
        folder.mkdir()
        name = source
        if "\n" in source:
            (folder / "job.py").write_text(textwrap.dedent(source))
            name = "job.py:Job"
        spec = RunSpec(
            run=folder.name,
            job=name,
            cluster="test",
            host="a",
            ray_address=address or cluster.address,
            node_address="127.0.0.2",
            devices=tuple(
                DeviceSpec(host=host, device=device, name="test", max_batch=limits.get(host)) for host in hosts
            ),
            server_host=server,
            config=config,
        )
        (folder / "run.json").write_text(encode(spec))
        process = subprocess.Popen(
            [sys.executable, "-m", "remote_agent.training.run", str(folder)],
            env=cluster.environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        runs.append(Run(folder, process))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
