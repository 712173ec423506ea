"""Two workers on one host, on a real cluster: gradients are added up there, and one that is killed leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.coordinator.recovery.test_faults import job, stop_and_check

pytestmark = pytest.mark.ray

SETTINGS: dict[str, Any] = {"strategy": "sync", "batch_size": 30, "stream": "network", "shards": 2}

DIES = """

def dies_while_it_sends(folder):
    try:
        os.close(os.open(f"{folder}/dies", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return  # the other worker of the host does
    from remote_agent.training.wire.steps import Contribution

    frame, sent = Contribution.frame, []

    def sends(contribution, number):
        sent.append(number)
        if len(sent) == 4:
            os.kill(os.getpid(), 9)
        return frame(contribution, number)

    Contribution.frame = sends
"""


def test_a_worker_that_is_killed_while_its_host_adds_gradients_up_does_not_show(launch: Any, tmp_path: Path) -> None:
    body = f"os.environ['TEST_HOST'] == 'b' and step == 11 and dies_while_it_sends({str(tmp_path)!r})"
    source = job(tmp_path, body).replace("0.008", "0.002") + DIES  # the measurement calls it many times
    run = launch(source, "abb", num_iterations=100_000, **SETTINGS)
    run.until("worker_lost")
    run.until("step", len(run.of_kind("step")) + 20)
    (lost,) = run.of_kind("worker_lost")
    assert lost["worker"] in ("b/cpu", "b/cpu#2")
    assert any("b's 2 devices add up their gradients" in reason for reason in run.of_kind("plan")[0]["reasons"])
    to = {event["to"] for event in run.of_kind("slice_reissued")}
    assert to == {"b/cpu", "b/cpu#2"} - {lost["worker"]}, "a part of its host's slice is done on that host"
    stop_and_check(run, source, SETTINGS)
