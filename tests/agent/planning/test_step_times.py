"""The measured time of a step: of the steps that the workers of now made."""

from __future__ import annotations

from remote_agent import protocol
from remote_agent.planning.step_times import measured_s
from tests.specs import run_step


def step(number: int, seconds: float, workers: str, predicted_s: float | None = 0.1) -> protocol.Step:
    parts = tuple(
        protocol.WorkerStep(
            worker=name, host=name, device="cpu", samples=1, compute_s=0.1, push_s=0.0, pull_s=0.0, wait_s=0.0
        )
        for name in workers
    )
    return run_step(number, seconds=seconds, workers=parts, predicted_s=predicted_s)


def test_steps_from_before_a_worker_came_back_do_not_count() -> None:
    alone = [step(number, 0.3, "a", predicted_s=0.3) for number in range(1, 20)]
    assert measured_s(alone) == 0.3
    assert measured_s([*alone, step(20, 0.1, "ab")]) == 0.1
    assert measured_s([]) is None


def test_a_trial_of_a_device_and_a_corrected_prediction_change_nothing() -> None:
    before = [step(number, 0.3, "a") for number in range(1, 20)]
    assert measured_s([*before, step(20, 0.5, "ab")]) == 0.3
    assert measured_s([*before, step(20, 0.5, "a", predicted_s=0.3)]) == 0.3
