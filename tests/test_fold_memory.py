"""What the app keeps of a long run does not grow with its steps."""

import gc
import tracemalloc

import pytest

from hetero_tui import events
from hetero_tui.fold import apply
from hetero_tui.state import State, initial
from remote_agent import protocol
from tests.specs import run_step

HOSTS, STEPS = ("mercer", "nas", "studio"), 10_000


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
    step = run_step(number, seq=2 * number, loss=1.0 / number, samples=24, bytes_pushed=number, workers=workers)
    return events.RunProgressed(run="text-1", event=step)


def lost(number: int) -> events.RunProgressed:
    host = HOSTS[number % len(HOSTS)]
    event = protocol.WorkerLost(
        seq=2 * number + 1, time=float(number), worker=f"{host}/cpu", host=host, device="cpu", step=number, cause="x"
    )
    return events.RunProgressed(run="text-1", event=event)


@pytest.mark.long
def test_ten_thousand_steps_take_no_more_memory_than_four_thousand() -> None:
    state: State = initial("lab", tuple((host, "10.0.0.1") for host in HOSTS))
    peaks = {4_000: 0, STEPS: 0}
    tracemalloc.start()
    try:
        for number in range(1, STEPS + 1):
            state = apply(state, happened(number))
            if not number % 5:
                state = apply(state, lost(number))
            if not number % 500:
                gc.collect()
                half = min(limit for limit in peaks if number <= limit)
                peaks[half] = max(peaks[half], tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert state.run is not None
    assert (state.run.step, state.run.samples) == (STEPS, 24 * STEPS)
    assert peaks[STEPS] < 1.05 * peaks[4_000] < 1_000_000
