"""Runs of the parity check: what a case is, and the driver process that trains one case after the other.

``python -m benchmarks.parity_runs ADDRESS`` joins the Ray cluster whose head is at ADDRESS, reads cases from its input
and writes their rows, as JSON lines. It is the product's own engine, in one process for all cases: starting it
anew for each would take longer than the training.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.lab import last_line
from benchmarks.parity_jobs import KILL_AT, SAMPLES, STEPS, config_of, job_of, plain_loop, relative_error
from remote_agent.protocol import DeviceSpec
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.coordinator import cluster, engine
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.request import Request
from remote_agent.training.errors import TrainingError
from remote_agent.training.job import Job
from tests.training.loopback import HEAD_ADDRESS, Cluster

HOSTS = "abc"
"""The cluster's hosts: the coordinator and the first server are on the first, workers on the others and it in turn."""

PATHS: dict[str, tuple[dict[str, Any], str]] = {
    "network": ({"stream": "network"}, "over network"),  # with a shard on each host
    "memory": ({"stream": "auto"}, "over shared memory"),
    "allreduce": ({"strategy": "allreduce"}, "gloo"),
}
"""Name: its settings, and what the run's plan says of it."""

LIMITS: dict[tuple[int, bool], tuple[int, ...]] = {
    (1, False): (SAMPLES,),
    (3, False): (17, 9, 4),
    (5, False): (11, 8, 6, 4, 1),
    # Enough room for the whole batch without any one of them.
    (3, True): (24, 24, 6),
    (5, True): (24, 24, 6, 4, 2),
}
"""(workers, one is killed): the most samples of a step that each worker takes, which makes the slices unequal."""

CASE_S = 180.0
"""Seconds after which a case has failed."""


@dataclass(frozen=True, order=True)
class Case:
    """One run. ``workers``: 1, 3 or 5; ``killed``: one of them, in the middle of step 7."""

    model: str
    optimizer: str
    workers: int
    path: str
    killed: bool = False

    def __str__(self) -> str:
        killed = ", one killed" if self.killed else ""
        return f"{self.model} {self.optimizer} {self.path} {self.workers} workers{killed}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a case gave: the weights' relative error; ``slices`` of the last step; ``mistake``: what else was wrong."""

    case: Case
    error: float = float("nan")
    slices: tuple[int, ...] = ()
    seconds: float = 0.0
    mistake: str = ""


@functools.cache
def expected(model: str, optimizer: str) -> dict[str, Tensor]:
    """The plain loop's weights."""
    return plain_loop(model, optimizer)


def carry_out(case: Case, folder: Path) -> Row:
    """Train, with this process as the coordinator, and compare. ``folder`` is empty."""
    began = time.monotonic()
    factory = job_of(case.model, case.optimizer, str(folder / "killed") if case.killed else "")
    settings, said = PATHS[case.path]
    limits = LIMITS[case.workers, case.killed]
    hosts = [HOSTS[number % len(HOSTS)] for number in range(1, case.workers + 1)]
    if case.path == "network":
        shards = len({*hosts, HOSTS[0]})
        settings, said = settings | {"shards": shards}, f"parameter server on {shards} hosts"
    if case.path == "allreduce" and case.workers == 1:
        said = "one worker computes all"
    request = Request(
        run=folder.name,
        job=Job(case.model, factory, factory.create_data),
        config=config_of(case.optimizer, **settings),
        devices=tuple(
            DeviceSpec(host=host, device="cpu", name="test", max_batch=limit)
            for host, limit in zip(hosts, limits, strict=True)
        ),
        server_host=HOSTS[0],
        host=HOSTS[0],
        folder=folder,
    )
    journal = Journal(folder / "events.jsonl")
    try:
        outcome = engine.run(request, journal)
    except TrainingError as error:
        return Row(case=case, mistake=f"the run failed: {error}", seconds=time.monotonic() - began)
    finally:
        journal.close()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return Row(
        case=case,
        error=relative_error(checkpoint.load(outcome.checkpoint), expected(case.model, case.optimizer)),
        slices=tuple(worker["samples"] for worker in _of_kind(events, "step")[-1]["workers"]),
        seconds=time.monotonic() - began,
        mistake=mistake_in(case, events, said),
    )


def mistake_in(case: Case, events: list[dict[str, Any]], said: str) -> str:
    """What in a run's events is not as the case wants it: then equal weights would say nothing. "": all is.

    A worker that a busy computer kept from answering is no mistake: the weights have to be equal then, too.
    """
    steps, reasons = _of_kind(events, "step"), _of_kind(events, "plan")[0]["reasons"]
    if [step["samples"] for step in steps] != [SAMPLES] * STEPS:
        return f"the steps' samples are {[step['samples'] for step in steps]}"
    if not any(said in reason for reason in reasons):
        return f"the plan does not say {said!r}: {reasons}"
    lost = [event["step"] for event in _of_kind(events, "worker_lost") if "no answer" not in event["cause"]]
    if case.killed and (len(lost) != 1 or lost[0] not in (KILL_AT - 1, KILL_AT)):
        return f"workers were lost in steps {lost}"
    if not case.killed and (lost or sorted(w["samples"] for w in steps[0]["workers"]) != _sorted_limits(case)):
        return f"workers were lost in {lost}, or the cut is not the planned one: {steps[0]['workers']}"
    return ""


def _sorted_limits(case: Case) -> list[int]:
    return sorted(LIMITS[case.workers, case.killed])


def _of_kind(events: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == kind]


# --- The driver process ----------------------------------------------------------------------------------------------


class Driver:
    """The other end of :func:`main`: gives a case to a driver process, and starts a new one when a run never ends.

    Args:
        where: a cluster with the hosts :data:`HOSTS`.
    """

    def __init__(self, where: Cluster) -> None:
        self._where = where
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._log = where.folder / "parity.log"

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def row(self, case: Case) -> Row:
        """Carry out a case."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        began = time.monotonic()
        try:
            process.stdin.write(json.dumps(dataclasses.asdict(case)) + "\n")
            process.stdin.flush()
            line = self._answers.get(timeout=CASE_S)
        except (queue.Empty, OSError):
            line = ""
        if line:
            values = json.loads(line)
            return Row(**values | {"case": case, "slices": tuple(values["slices"])})
        self._end()
        said = f"no result after {time.monotonic() - began:.0f} s: {last_line(self._log.read_text())}"
        return Row(case=case, mistake=said)

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.parity_runs", self._where.address],
                env=self._where.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._answers = queue.Queue()
        threading.Thread(target=_read, args=(process, self._answers), daemon=True).start()
        return process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _read(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    """Lines as they come, and an empty one for the end."""
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)
    answers.put("")


def main() -> None:
    """Rows for the cases on stdin."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anybody else prints is not a row
    cluster.connect(sys.argv[1], HEAD_ADDRESS)
    with tempfile.TemporaryDirectory(prefix="parity") as folder:
        for number, line in enumerate(sys.stdin):
            place = Path(folder) / f"run{number}"
            place.mkdir()
            row = carry_out(Case(**json.loads(line)), place)
            answers.write(json.dumps(dataclasses.asdict(row)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
