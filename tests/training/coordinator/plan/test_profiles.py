"""What was measured is kept for later plans, unless something else had a part of the machines meanwhile."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_agent import protocol
from remote_agent.host import process_table, processes
from remote_agent.planning.survey import Survey, Work
from remote_agent.training.coordinator.plan import profiles

FOUND = Survey(job="digits", work=Work(parameters=10, batch=4), hosts=(), time=1.0)


def test_a_checkpoint_carries_what_was_measured_and_what_can_not_be_written_is_measured_anew() -> None:
    assert profiles.decoded(profiles.encoded(FOUND)) == FOUND
    endless = Survey(job="digits", work=Work(parameters=10, batch=4), hosts=(), call_s=math.inf)
    assert profiles.decoded(profiles.encoded(endless)) is None


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that lives."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def record(folder: Path, name: str, process: subprocess.Popen[bytes], started: float = 0.0) -> None:
    """Write down that this process runs under the name."""
    found = process_table.find(process.pid)
    assert found is not None
    about = protocol.ProcessRecord(name=name, pid=process.pid, started=found.started + started, log="")
    processes.write_private(processes.record_path(folder, name), protocol.encode(about))


@pytest.mark.parametrize(
    ("name", "later", "is_kept"),
    [
        ("run-digits-1", 0.0, True),  # itself
        ("run-text-7", 0.0, False),
        ("run-sweep-digits-2", 0.0, False),
        ("run-text-7", 1.0, True),  # the process id belongs to another process by now
        ("ray", 0.0, True),
    ],
)
def test_what_was_measured_beside_another_run_is_not_kept(
    tmp_path: Path, process: subprocess.Popen[bytes], name: str, later: float, is_kept: bool
) -> None:
    record(tmp_path, name, process, later)
    place = profiles.place(tmp_path / "runs" / "digits-1", "x")
    profiles.keep(place, FOUND)
    assert profiles.read(place) == (FOUND if is_kept else None)


def test_what_was_kept_before_stays_while_another_run_is_beside_and_is_replaced_after_it(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    place = profiles.place(tmp_path / "plans" / "plan-1", "x")
    profiles.keep(place, FOUND)
    record(tmp_path, "run-text-7", process)
    newer = Survey(job="digits", work=Work(parameters=10, batch=4), hosts=(), time=2.0)
    profiles.keep(place, newer)
    assert profiles.read(place) == FOUND
    process.kill()
    process.wait()
    profiles.keep(place, newer)
    assert profiles.read(place) == newer
