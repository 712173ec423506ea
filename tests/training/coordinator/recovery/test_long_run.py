"""A run's memory does not grow with its steps: the short form of ``python -m benchmarks.long_run``."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import long_run
from tests.training.loopback import Cluster

STEPS = 1200
ALLOWED = 0.05
"""What a process may grow over the last half: after so few steps pools (torch's, Ray's, the allocator's) still fill."""


@pytest.mark.long
@pytest.mark.ray
def test_the_memory_of_everything_that_serves_a_run_stays_flat(
    unforked: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_run, "EVERY_S", 0.1)  # so few steps are over soon
    series = long_run.measure("sync", STEPS, unforked, tmp_path)
    named = {each.name for each in series}
    assert {"coordinator", "server a", "Ray's head a", "worker a", "worker b", "worker c", "raylet c"} <= named
    assert all(len(each.times) > 8 for each in series), "it was over too soon to say anything"
    assert {each.name: round(each.growth, 3) for each in series if each.growth > ALLOWED} == {}
