"""Helpers for tests of what runs on a machine: the real commands, as a laptop calls them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from remote_agent.host import processes
from remote_agent.host.processes import AGENT_PATH

Run = Callable[..., subprocess.CompletedProcess[str]]
Wait = Callable[[Callable[[], object], float], None]


@pytest.fixture
def agent_environment() -> dict[str, str]:
    """The environment of a command that a laptop starts: without any mark or setting of Ray's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "HETERO_"))}
    return kept | {"PYTHONPATH": str(AGENT_PATH)}


@pytest.fixture
def agent(agent_environment: dict[str, str]) -> Run:
    """Run one of the agent's modules to its end."""

    def run(module: str, *arguments: str, stdin: str = "", seconds: float = 100) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", f"remote_agent.{module}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=agent_environment,
            check=False,
        )

    return run


@pytest.fixture
def agent_stream(agent_environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start one of the agent's modules that prints until it is left; its stdin stays open."""
    started: list[subprocess.Popen[bytes]] = []

    def start(module: str, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", f"remote_agent.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=agent_environment | more,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A cluster's folder; nothing of it lives on after the test, however the test ends."""
    path = tmp_path / "cluster"
    path.mkdir(mode=0o700)
    yield path
    processes.stop_marked(path, 0.5)


@pytest.fixture
def launched(folder: Path) -> Callable[..., processes.ProcessRecord]:
    """Start a Python program as a process of ours."""

    def launch(name: str, program: str, arguments: Sequence[str] = ()) -> processes.ProcessRecord:
        argv = [sys.executable, "-c", program, *arguments]
        return processes.launch(folder, name, argv, folder / "logs" / f"{name}.log")

    return launch


@pytest.fixture
def wait_until() -> Wait:
    """Wait for something to become true, and fail when it does not."""

    def wait(condition: Callable[[], object], seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends, "it did not happen in time"
            time.sleep(0.02)

    return wait
