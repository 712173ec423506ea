"""What the app keeps of a long run does not grow with its steps."""

import gc
import tracemalloc

import pytest

from hetero_tui import events, fold
from hetero_tui.fold import apply
from hetero_tui.state import LOG_LINES, State, initial
from remote_agent import protocol

HOSTS = ("mercer", "nas", "studio")
FULL, STEPS = 1_000, 2_500
"""Steps after which all that is kept is full, and those of the whole run."""

POINTS = FULL // 2
"""Of the loss curve: a quarter of what the app keeps, so that a quarter of the steps fills it and thins it twice."""


def happened(number: int) -> events.RunProgressed:
    """A step with all that it carries: nothing of it is an object that another step has too."""
    workers = tuple(
        protocol.WorkerStep(
            worker=f"{host}/cpu",
            host=host,
            device="cpu",
            samples=8,
            compute_s=0.01 * number,
            push_s=0.1,
            pull_s=0.1,
            wait_s=0.0,
        )
        for host in HOSTS
    )
    step = protocol.Step(
        seq=2 * number,
        time=float(number),
        step=number,
        loss=1.0 / number,
        samples=24,
        seconds=1.0,
        bytes_pushed=number,
        bytes_pulled=number,
        workers=workers,
    )
    return events.RunProgressed(run="text-1", event=step)


def lost(number: int) -> events.RunProgressed:
    host = HOSTS[number % len(HOSTS)]
    event = protocol.WorkerLost(
        seq=2 * number + 1, time=float(number), worker=f"{host}/cpu", host=host, device="cpu", step=number, cause="x"
    )
    return events.RunProgressed(run="text-1", event=event)


def kept() -> int:
    """Bytes that the fold, its events and this file have allocated; threads of other tests allocate meanwhile, too."""
    ours = [tracemalloc.Filter(True, pattern) for pattern in ("*/hetero_tui/*", "*/remote_agent/*", __file__)]
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(ours).traces)


def test_all_steps_take_no_more_memory_than_those_after_which_all_that_is_kept_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold, "LOSS_POINTS", POINTS)
    state: State = initial("lab", tuple((host, "10.0.0.1") for host in HOSTS))
    peaks = {FULL: 0, STEPS: 0}
    tracemalloc.start()
    try:
        for number in range(1, STEPS + 1):
            state = apply(state, happened(number))
            if not number % 2:
                state = apply(state, lost(number))
            if not number % 50:
                gc.collect()
                half = min(limit for limit in peaks if number <= limit)
                peaks[half] = max(peaks[half], kept())
    finally:
        tracemalloc.stop()
    assert state.run is not None
    assert (state.run.step, state.run.samples) == (STEPS, 24 * STEPS)
    assert len(state.log) == LOG_LINES
    assert state.run.losses[0][0] == 1 < POINTS // 2 <= len(state.run.losses) <= POINTS
    assert peaks[STEPS] < 1.05 * peaks[FULL] < 1_000_000
