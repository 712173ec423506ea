from __future__ import annotations

from statistics import median
from typing import Any


def test_devices_of_speeds_1_half_and_a_quarter_compute_equally_long_after_ten_steps(
    simulated: Any, launch: Any
) -> None:
    run = launch("text", "xyz", num_iterations=20, batch_size=56, server="a")
    assert run.finish() == (0, "")
    times: dict[str, list[float]] = {}
    for step in run.of_kind("step")[10:]:
        for worker in step["workers"]:
            times.setdefault(worker["host"], []).append(worker["compute_s"])
    medians = [median(values) for values in times.values()]
    assert len(medians) == 3
    assert (max(medians) - min(medians)) / max(medians) <= 0.15
    shares = {share["host"]: share for share in run.of_kind("plan")[0]["shares"]}
    assert [shares[host]["simulated_speed"] for host in "xyz"] == [1.0, 0.5, 0.25]
