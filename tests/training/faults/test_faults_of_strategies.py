"""Without whole steps (ssp, async) and without a server (allreduce), workers fail as they do in sync, and are as soon
done without."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from remote_agent.protocol import RunCommand
from tests.training.faults.test_faults import (
    NOISE_S,
    PROCESS_S,
    SILENCE_S,
    job,
    process,
    samples_of,
    seen,
    stall,
    stop_and_check,
    tell,
    until,
)

pytestmark = pytest.mark.ray

SETTINGS: dict[str, dict[str, Any]] = {
    "ssp": {"strategy": "ssp", "staleness": 2, "batch_size": 30},
    "async": {"strategy": "async", "batch_size": 30},
    "allreduce": {"strategy": "allreduce", "batch_size": 30},
}


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_a_silent_and_then_a_killed_worker_hold_up_the_others_for_a_moment(
    launch: Any, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, settings = job(tmp_path), SETTINGS[kind]
    run = launch(source, "abc", num_iterations=100_000, **settings)
    run.until("step", 20)
    stopped, silent = process(tmp_path, "b"), time.time()
    os.kill(stopped, signal.SIGSTOP)
    try:
        until(run, "worker_lost", 1)
        run.until("step", len(run.of_kind("step")) + 10)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert "no answer" in seen(run, "worker_lost")[0]["cause"]
    until(run, "worker_joined", 2)
    time_back = time.time()
    run.until("step", len(run.of_kind("step")) + 20)
    assert samples_of(run, "b/cpu", time_back) > 0
    # Without a server, who has missed a step has other weights than the others: a new process took its place.
    assert (process(tmp_path, "b") == stopped) is (kind != "allreduce")
    held_by_silence, noise = stall(run, silent)
    time.sleep(max(0.0, silent + 6.5 - time.time()))  # what is long from now on is the second fault's
    killed = time.time()
    os.kill(process(tmp_path, "c"), signal.SIGKILL)
    until(run, "worker_lost", 1, "c/cpu")
    until(run, "worker_joined", 2, "c/cpu")
    run.until("step", len(run.of_kind("step")) + 20)
    held, _ = stall(run, killed)
    with capsys.disabled():
        print(f"\n{kind}: worker silent: stall {held_by_silence:.2f} s, killed: {held:.2f} s (noise {noise:.2f})")
    assert {event["worker"] for event in run.of_kind("slice_reissued")} == {"b/cpu", "c/cpu"}
    # So that the weights at the end are those of workers that were lost and came back.
    before = len(seen(run, "worker_lost", "a/cpu"))
    tell(run, RunCommand(command="drain", host="a"))
    until(run, "worker_lost", before + 1, "a/cpu")
    assert seen(run, "worker_lost", "a/cpu")[-1]["cause"] == "drained"
    run.until("step", len(run.of_kind("step")) + 5)
    stop_and_check(run, source, settings)
    assert held_by_silence < SILENCE_S + noise + NOISE_S
    assert held < PROCESS_S + noise + NOISE_S


@pytest.mark.parametrize("kind", ["ssp", "allreduce"])
def test_a_worker_that_hangs_is_done_without(
    launch: Any, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "if os.environ['TEST_HOST'] == 'b' and Job.calls == 30 and not (pathlib.Path(FOLDER) / 'hung').exists():"
        " (pathlib.Path(FOLDER) / 'hung').touch(); time.sleep(600)"
    ).replace("FOLDER", repr(str(tmp_path)))
    source, settings = job(tmp_path, body), SETTINGS[kind]
    # In a group nobody can go on beside a worker that is late: it is given up after five deadlines.
    run = launch(source, "abc", num_iterations=100_000, slice_deadline_s=60.0 if kind == "ssp" else 0.5, **settings)
    run.until("slice_reissued")
    run.until("step", len(run.of_kind("step")) + 20)
    held, noise = stall(run, (tmp_path / "hung").stat().st_mtime)
    with capsys.disabled():
        print(f"\n{kind}: worker hangs: stall {held:.2f} s (noise {noise:.2f})")
    assert {event["worker"] for event in run.of_kind("slice_reissued")} == {"b/cpu"}
    if kind == "allreduce":
        assert "though its process answers" in seen(run, "worker_lost")[0]["cause"]
    stop_and_check(run, source, settings)
    assert held < SILENCE_S + noise + NOISE_S
