"""A row of ``benchmarks.scaling`` says what it is compared with, and what that is worth."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.lab import Outcome
from benchmarks.ours import OurWay
from benchmarks.scaling_rows import Setting, allowed, row_of
from benchmarks.solo import Alone, Beside, Solo
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.training.worker.device.simulation import HEADROOM

SPEEDS = (1.0, 0.4, 0.2)
REFERENCE = DeviceProfile(12.0, 0.0)
WITHOUT_OPTIMIZER = Solo(SPEEDS, 24, (Alone(2.0, 0.0),) * 3)
"""The gradient takes this computer as long as the reference says: a simulated device has time for it."""

SUM = sum(SPEEDS) * 12.0 / HEADROOM
SETTING = Setting(rate_mbit=1000.0, batch=24, parameters=1000, reference=REFERENCE)
OUTCOME = Outcome(
    name="one", about="", seconds=20.0, steps=4, samples=96, samples_per_second=4.8, sent=(8000, 4000, 4000)
)


def with_optimizer(seconds: float) -> Solo:
    return dataclasses.replace(WITHOUT_OPTIMIZER, hosts=(Alone(2.0, seconds),) * 3)


def test_the_sum_is_that_of_the_simulated_devices_each_with_its_whole_batch_and_its_own_optimizer() -> None:
    assert WITHOUT_OPTIMIZER.total(REFERENCE) == pytest.approx(SUM)
    assert with_optimizer(0.5).total(REFERENCE) == pytest.approx(24 / 8.5 + 24 / 20.5 + 24 / 40.5)


def test_a_host_alone_is_no_faster_than_the_computer_that_it_is_simulated_on() -> None:
    slow = Solo(SPEEDS, 24, (Alone(16.0, 0.0), Alone(2.0, 0.0), Alone(2.0, 0.0)))
    assert slow.total(REFERENCE) == pytest.approx(SUM - 3 + 24 / 16)


def test_the_rate_alone_follows_from_the_reference_of_the_run_that_it_is_compared_with() -> None:
    own = DeviceProfile(6.0, 0.0)
    row = row_of(
        dataclasses.replace(OUTCOME, reference=own),
        SETTING,
        Beside(WITHOUT_OPTIMIZER, WITHOUT_OPTIMIZER),
        None,
        None,
    )
    assert row.solo_sum == pytest.approx(SUM / 2)
    assert row.efficiency == pytest.approx(4.8 / (SUM / 2))
    assert row.of_ceiling is None
    assert row.cut is None


def test_a_row_is_compared_with_the_mean_of_before_and_after_and_tells_how_far_they_lie_apart() -> None:
    after = Solo(SPEEDS, 24, (Alone(3.0, 0.5),) * 3)
    beside = Beside(WITHOUT_OPTIMIZER, after)
    row = row_of(OUTCOME, SETTING, beside, 0.8, None)
    there = after.total(REFERENCE)
    assert row.solo_sum == pytest.approx((SUM + there) / 2)
    assert row.solo_spread == pytest.approx((SUM - there) / row.solo_sum)
    assert row.pace_spread == pytest.approx((12 - 8) / 10)
    assert row.of_ceiling == pytest.approx(row.efficiency / 0.8)
    assert (row.bytes_all_hosts, row.bytes_busiest_host) == pytest.approx((4.0, 2.0))


def test_parts_that_fit_the_speeds_leave_the_whole_sum_where_a_slice_costs_nothing_beside_its_samples() -> None:
    even = Solo((1.0, 0.5, 0.5), 24, (Alone(2.0, 0.0),) * 3)
    assert allowed(OurWay("sync", {}), even, REFERENCE) == pytest.approx(1.0)


@pytest.mark.parametrize("strategy", ["sync", "allreduce", "local_sgd"])
def test_what_a_slice_costs_beside_its_samples_takes_less_of_the_sum_the_larger_the_batch(strategy: str) -> None:
    reference, way = DeviceProfile(13.0, 0.037), OurWay(strategy, {})
    small = Solo(SPEEDS, 24, (Alone(1.9, 0.07),) * 3)
    large = Solo(SPEEDS, 96, (Alone(7.5, 0.07),) * 3)
    assert 0.9 < allowed(way, small, reference) < 0.97
    assert allowed(way, small, reference) + 0.02 < allowed(way, large, reference) < 1
