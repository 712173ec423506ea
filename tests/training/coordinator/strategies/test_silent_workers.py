"""Code that holds Python's lock keeps a worker from answering for seconds; the run goes on. On a real cluster."""

from __future__ import annotations

import pytest

from tests.training.conftest import Launch

pytestmark = [pytest.mark.ray]

JOB = """
    import ctypes, functools
    import torch
    from torch import nn

    @functools.cache
    def hold_the_lock():
        ctypes.PyDLL(None).sleep(4)

    class Job:
        def create_model(self):
            return nn.Linear(4, 2)

        def create_data(self):
            return [(torch.randn(4), n % 2) for n in range(64)]

        def loss(self, model, batch):
            from remote_agent.current_call import HERE
            place = HERE.now()
            if place and place[0].step == 3:
                hold_the_lock()
            return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_workers_that_are_all_silent_at_once_are_waited_for(launch: Launch, strategy: str) -> None:
    run = launch(JOB, "ab", num_iterations=6, batch_size=16, strategy=strategy)
    code, errors = run.finish()
    assert code == 0, errors
    assert [step["step"] for step in run.of_kind("step")] == [*range(1, 7)]
    assert run.of_kind("run_resumed") == [], "it went back to no checkpoint"
