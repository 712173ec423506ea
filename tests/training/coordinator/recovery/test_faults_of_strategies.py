"""Whatever the strategy and the way of the gradients: a worker that is lost holds up the others for a moment only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from remote_agent.protocol import RunCommand
from remote_agent.states import ControlCommand
from tests.training.coordinator.recovery import test_faults
from tests.training.coordinator.recovery.test_faults import (
    AFTER_S,
    BACK_S,
    NOISE_S,
    PROCESS_S,
    SILENCE_S,
    job,
    opening,
    process,
    samples_of,
    seen,
    stall,
    stop_and_check,
    tell,
    until,
)

pytestmark = pytest.mark.ray

# Through shared memory, who reads nothing or leaves: wire/test_shared_memory.
# The other strategies wait for their workers with the same driver: tests/simulation.
SETTINGS: dict[str, dict[str, Any]] = {kind: test_faults.SETTINGS[kind] for kind in ("sync", "allreduce")}


@pytest.mark.parametrize("kind", ["sync", pytest.param("allreduce", marks=pytest.mark.long)])
@pytest.mark.long
def test_a_silent_and_then_a_killed_worker_hold_up_the_others_for_a_moment_and_come_back(
    launch: Any, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, settings = job(tmp_path), SETTINGS[kind]
    run = launch(source, "abc", num_iterations=100_000, **settings)
    run.until("step", 20)

    stopped, silent = process(tmp_path, "b"), time.time()
    lost = len(seen(run, "worker_lost"))
    os.kill(stopped, signal.SIGSTOP)
    try:
        until(run, "worker_lost", lost + 1)
        run.until("step", len(run.of_kind("step")) + 30)  # the others go on, far enough for it to miss weights
    finally:
        woken = time.time()
        with contextlib.suppress(ProcessLookupError):  # where it was replaced it may have been ended already
            os.kill(stopped, signal.SIGCONT)
    silence = seen(run, "worker_lost")[lost]
    assert "no answer" in silence["cause"]
    joined = sum(event["time"] < silence["time"] for event in seen(run, "worker_joined"))
    until(run, "worker_joined", joined + 1)
    awake = seen(run, "worker_joined")[joined]["time"]
    run.until("step", len(run.of_kind("step")) + 20)
    assert samples_of(run, "b/cpu", awake) > 0
    # Without a stream a worker that has missed a step can't get up to date: a new process takes its place at once.
    replaced = kind == "allreduce"
    end = time.monotonic() + BACK_S
    while replaced and process(tmp_path, "b") == stopped and time.monotonic() < end:
        run.until("step", len(run.of_kind("step")) + 1)  # it writes its PID some slices after it was measured
    assert (process(tmp_path, "b") != stopped) is replaced
    took = awake - (silence["time"] if replaced else woken)
    while time.time() < silent + AFTER_S:  # what is long from then on is the second fault's
        run.until("step", len(run.of_kind("step")) + 1)
    held_by_silence, noise = stall(run, silent)

    joined, lost, killed = len(seen(run, "worker_joined", "c/cpu")), len(seen(run, "worker_lost", "c/cpu")), time.time()
    os.kill(process(tmp_path, "c"), signal.SIGKILL)
    until(run, "worker_lost", lost + 1, "c/cpu")
    until(run, "worker_joined", joined + 1, "c/cpu")
    back = seen(run, "worker_joined", "c/cpu")[-1]["time"]
    run.until("step", len(run.of_kind("step")) + 20)
    assert any(event["time"] >= killed and "ended" in event["cause"] for event in seen(run, "worker_lost", "c/cpu"))
    assert samples_of(run, "c/cpu", back) > 0
    held, _ = stall(run, killed)
    with capsys.disabled():
        print(
            f"\n{kind}: worker silent: stall {held_by_silence:.2f} s, back after {took:.1f} s;"
            f" killed: stall {held:.2f} s, back after {back - killed:.1f} s (noise {noise:.2f})"
        )
    assert {event["worker"] for event in run.of_kind("slice_reissued")} >= {"b/cpu", "c/cpu"}

    # So that the weights at the end are those of workers that were lost and came back.
    before = len(seen(run, "worker_lost", "a/cpu"))
    tell(run, RunCommand(command=ControlCommand.DRAIN, host="a"))
    until(run, "worker_lost", before + 1, "a/cpu")
    assert seen(run, "worker_lost", "a/cpu")[-1]["cause"] == "drained"
    run.until("step", len(run.of_kind("step")) + 5)
    stop_and_check(run, source, settings)
    assert held_by_silence < SILENCE_S + noise + NOISE_S
    assert held < PROCESS_S + noise + NOISE_S
    assert took < BACK_S + (opening(run) if replaced else 0.0)
    assert back - killed < BACK_S + opening(run)
