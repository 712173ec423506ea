"""A host that is away when a coordinator starts again takes part once its node is back, as one that is added does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.coordinator.recovery.test_faults import (
    BACK_S,
    job,
    opening,
    samples_of,
    seen,
    stop_and_check,
    until,
)
from tests.training.loopback import Cluster

pytestmark = pytest.mark.ray


@pytest.fixture
def bring_back(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Starts the node of host d, which is away until then."""

    def start() -> None:
        cluster.start("d", "127.0.0.9")

    yield start
    if "d" in cluster.nodes:
        cluster.stop_node("d")


@pytest.mark.long
def test_a_host_that_was_away_when_the_run_was_resumed_takes_part_once_it_is_back(
    launch: Any, tmp_path: Path, bring_back: Callable[[], None], cluster: Cluster
) -> None:
    source, settings = job(tmp_path), {"strategy": "sync", "batch_size": 30, "stream": "network"}
    first = launch(source, "ab", num_iterations=100_000, checkpoint_every=5, **settings)
    first.until("checkpoint_saved")
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.communicate()
    run = launch(source, "abd", resume=first, num_iterations=100_000, **settings)
    run.until("plan", 2)
    plan = run.of_kind("plan")[-1]
    assert {share["host"] for share in plan["shares"]} == {"a", "b"}
    assert "d: away now; takes part once it is back" in plan["reasons"]
    run.until("step", len(run.of_kind("step")) + 10)
    bring_back()
    cluster.wait()
    there = time.time()
    until(run, "worker_joined", 1, "d/cpu")
    joined = seen(run, "worker_joined", "d/cpu")[0]["time"]
    run.until("step", len(run.of_kind("step")) + 20)
    assert samples_of(run, "d/cpu", joined) > 0
    assert not seen(run, "worker_lost", "d/cpu")
    stop_and_check(run, source, settings)
    assert joined - there < BACK_S + opening(run)
