"""A real Ray cluster of several nodes on loopback, and runs of the real coordinator on it."""

from __future__ import annotations

import json
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from remote_agent.protocol import DeviceSpec, RunSpec, encode
from remote_agent.training.user_code import job_code
from tests.training import loopback, workers
from tests.training.coordinators import Coordinator, Coordinators
from tests.training.loopback import Cluster

RUN_S = 120.0


@pytest.fixture(autouse=True)
def _no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that imports a job's file in this process leaves its objects to be sent by value, as a script's."""
    monkeypatch.setattr(job_code, "_source", None)
    monkeypatch.setattr(job_code, "_root", None)


@contextmanager
def _forking() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ht", dir="/tmp") as folder, workers.forking(Path(folder)) as made:
        yield made


@pytest.fixture(scope="module")
def stub() -> Iterator[Path]:
    """The Python of a script whose Ray's workers are forks."""
    with _forking() as made:
        yield made


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Hosts a (head), b and c."""
    with _forking() as made, loopback.running("abc", stub=made) as started:
        yield started


@pytest.fixture
def unforked() -> Iterator[Cluster]:
    """Hosts a, b and c of a cluster of its own, whose workers have the memory of those that Ray starts."""
    with loopback.running("abc") as started:
        yield started


@pytest.fixture(scope="session")
def simulated(cluster: Cluster) -> Cluster:
    """The same cluster with hosts x and y of simulated speeds 1 and 0.5 beside the others."""
    for host, address, speed in (("x", "127.0.0.5", 1.0), ("y", "127.0.0.6", 0.5)):
        cluster.start(host, address, speed)
    cluster.wait()
    return cluster


@pytest.fixture(scope="session")
def coordinators(cluster: Cluster) -> Iterator[Coordinators]:
    """For runs on that cluster."""
    with Coordinators(cluster.folder, cluster.environment) as started:
        yield started


@dataclass
class Run:
    """A coordinator process and its folder."""

    folder: Path
    process: Coordinator
    _events: list[dict[str, Any]] = field(default_factory=list)
    _last: bytes = b""  # of the lines that are in it, and where it ends in the file
    _end: int = 0

    def events(self) -> list[dict[str, Any]]:
        """So far. What is new in the file is read; all of it where a run that went on took back its final event."""
        path = self.folder / "events.jsonl"
        if not path.is_file():
            return []
        with path.open("rb") as file:
            file.seek(self._end - len(self._last))
            found = file.read()
            if not found.startswith(self._last):
                self._events, self._last, self._end = [], b"", 0
                file.seek(0)
                found = file.read()
        new = found[len(self._last) : found.rfind(b"\n") + 1].splitlines(keepends=True)
        if new:
            self._events += map(json.loads, new)
            self._last, self._end = new[-1], self._end + sum(map(len, new))
        return list(self._events)

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
def launch(cluster: Cluster, coordinators: Coordinators, tmp_path: Path) -> Iterator[Launch]:
    """Starts a run: `launch(source, hosts, **config)`; source is a ready job's name or the text of a job file.

    With `resume=run` it goes on in that run's folder, from its newest checkpoint.
    """
    runs: list[Run] = []

    def start(
        source: str, hosts: str = "abc", device: str = "cpu", server: str = "a", address: str = "", **config: Any
    ) -> Run:
        limits: dict[str, int] = config.pop("limits", {})
        devices: dict[str, str] = config.pop("devices", {})
        earlier: Run | None = config.pop("resume", None)
        folder = earlier.folder if earlier is not None else tmp_path / f"run{len(runs)}"
        folder.mkdir(exist_ok=True)
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
                DeviceSpec(host=host, device=devices.get(host, device), name="test", max_batch=limits.get(host))
                for host in hosts
            ),
            server_host=server,
            config=config if "strategy=" in source else {"strategy": "sync", **config},
            resume=str(folder) if earlier is not None else "",
        )
        (folder / "run.json").write_text(encode(spec))
        runs.append(Run(folder, coordinators.start(folder)))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
