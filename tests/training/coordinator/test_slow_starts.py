"""A device or a link that is slow is waited for, and what hangs is named; on a real cluster, with short deadlines."""

from __future__ import annotations

import pytest

from tests.training.conftest import Launch

pytestmark = [pytest.mark.ray]

JOB = """
    import threading, time
    import torch
    from torch import nn
    from remote_agent.training.coordinator.processes import measure
    from remote_agent.training.coordinator.processes import actors

    measure.MEASURE_S = 1.0
    actors.HANGS_S = actors.PLACEMENT_S = actors.OPEN_S = {open_s}
    actors.PING_S = 60.0  # until a process has loaded its libraries, on a busy computer

    class Net(nn.Linear):
        def forward(self, x):
            {forward}
            return super().forward(x)

    class Job:
        def create_model(self):
            time.sleep({build_s})
            return Net(4, 2)

        def create_data(self):
            return [(torch.randn(4), n % 2) for n in range(32)]
"""


def job(*, forward: str = "pass", build_s: float = 0.0, open_s: float = 60.0) -> str:
    return JOB.format(forward=forward, build_s=build_s, open_s=open_s)


def test_a_device_whose_measurement_takes_longer_than_a_call_may_is_measured(launch: Launch) -> None:
    run = launch(job(forward="time.sleep(0.02 * len(x))"), "ab", num_iterations=2, batch_size=8, slice_deadline_s=1)
    code, errors = run.finish()
    assert code == 0, errors
    assert len(run.of_kind("step")) == 2


def test_a_call_that_does_not_return_while_its_device_is_measured_is_named(launch: Launch) -> None:
    run = launch(job(forward="threading.Event().wait()"), "ab", num_iterations=2, batch_size=8, slice_deadline_s=1)
    code, errors = run.finish()
    assert code == 1, errors
    (failed,) = run.of_kind("run_failed")
    assert "no return for" in failed["cause"]
    assert "Net" in failed["cause"]


def test_a_worker_that_builds_its_model_longer_than_it_may_be_silent_is_waited_for(launch: Launch) -> None:
    run = launch(job(build_s=4.0, open_s=1.0), "ab", num_iterations=2, batch_size=8)
    code, errors = run.finish()
    assert code == 0, errors
    assert len(run.of_kind("step")) == 2
