"""Which changes of the devices' speeds a pipeline is cut anew for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from remote_agent.planning import cuts
from remote_agent.planning.blocks import BlockCost, DeviceBlocks
from remote_agent.planning.cuts import Links
from remote_agent.planning.self_check import WORTH
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan.balance import LASTING_STEPS, SETTLE_STEPS
from remote_agent.training.coordinator.strategies.pipeline_check import PipelineCheck
from remote_agent.training.coordinator.strategies.pipeline_plan import PipelinePlan

BATCH, MICRO_BATCHES, BLOCKS = 24, 8, 12
CONFIG = TrainingConfig(strategy="pipeline", batch_size=BATCH)
NAMES = ("a/cpu", "b/cpu", "c/cpu")
ENDLESS = 1e9


def _check(slowness: Sequence[float] = (1, 1, 1)) -> PipelineCheck:
    """Of a plan for devices that take so many times 10 ms for a block."""
    devices = tuple(
        DeviceBlocks(
            blocks=(BlockCost(forward_s=each / 300, backward_s=each / 150, weights=8, trained=0, held=8, boundary=0),)
            * BLOCKS,
            room=1e6,
            host=name,
        )
        for each, name in zip(slowness, "abc", strict=True)
    )
    cut = cuts.cut(devices, MICRO_BATCHES)
    assert [stage.device for stage in cut.stages] in ([0, 1, 2], [0, 1])
    plan = PipelinePlan(cut=cut, micro_batches=MICRO_BATCHES, devices=devices, pace=devices[0])
    return PipelineCheck.of(plan, BATCH)


def _after(check: PipelineCheck, steps: int, *times: float, samples: int = BATCH) -> PipelineCheck:
    """After steps in which each stage took so many times what was planned."""
    for _ in range(steps):
        planned = [stage.seconds * MICRO_BATCHES * samples / BATCH for stage in check.plan.cut.stages]
        check = check.after(samples, [each * seconds for each, seconds in zip(times, planned, strict=True)])
    return check


def _better(check: PipelineCheck, steps_left: float = ENDLESS, pause_s: float = 5.0) -> dict[str, int] | None:
    """Blocks of each device in a better cut."""
    found = check.better(CONFIG, Links(), steps_left, pause_s)
    return None if found is None else {"abc"[stage.device]: stage.last - stage.first for stage in found.stages}


def _steps_until_open(check: PipelineCheck, *times: float) -> int:
    for step in range(1, 100):
        check = _after(check, 1, *times)
        if check.is_open:
            return step
    raise AssertionError("it never was")


@pytest.mark.parametrize("times", [4.0, 1.5])
def test_a_stage_that_becomes_slower_gets_fewer_blocks_within_8_steps(times: float) -> None:
    calm = _after(_check(), 30, 1, 1, 1)
    assert not calm.is_open
    assert _steps_until_open(calm, 1, times, 1) <= LASTING_STEPS
    slow = _after(calm, LASTING_STEPS, 1, times, 1)
    assert slow.ratios == pytest.approx((1, times, 1))
    found = _better(slow)
    assert found is not None
    assert found.get("b", 0) < BLOCKS // 3
    assert sum(found.values()) == BLOCKS


def test_a_few_long_steps_are_no_change() -> None:
    check = _after(_check(), 30, 1, 1, 1)
    for _ in range(5):
        check = _after(check, 2, 1, 9, 1)
        assert not check.is_open
        check = _after(check, 12, 1, 1, 1)
        assert not check.is_open


def test_a_change_of_less_than_three_tenths_is_none() -> None:
    check = _after(_check(), 30, 1, 1, 1)
    assert not _after(check, 60, 1, 1.35, 1).is_open


def test_stages_are_compared_with_their_own_first_steps_and_not_with_the_measurement() -> None:
    check = _check()
    for _ in range(60):
        check = _after(check, 1, 2.0, 1.3, 0.5)
        assert not check.is_open
    assert check.ratios == pytest.approx((1, 1, 1))
    assert _after(check, LASTING_STEPS, 2.0, 5.2, 0.5).ratios == pytest.approx((1, 4, 1))


def test_a_shorter_batch_is_no_change() -> None:
    check = _after(_check(), 30, 1, 1, 1)
    assert not _after(check, 30, 1, 1, 1, samples=5).is_open


def test_nothing_is_known_before_the_stages_have_settled() -> None:
    check = _after(_check(), SETTLE_STEPS - 1, 1, 1, 1)
    assert not check.usual
    assert not check.is_open
    assert check.ratios == (1, 1, 1)
    assert _after(check, 1, 1, 1, 1).usual == (1, 1, 1)


def test_it_is_said_once_that_a_device_became_slow_and_once_that_it_is_back() -> None:
    check, said = _after(_check(), 30, 1, 1, 1), list[tuple[int, float]]()
    for times in (*(4.0,) * 20, *(1.25,) * 20, *(1.0,) * 60):
        before, check = check, _after(check, 1, 1, times, 1)
        said += check.became(before)
        if times > 1:
            assert len(said) < 2, "it is not back at four fifths of its speed"
    assert said == [(1, pytest.approx(0.25)), (1, 1.0)]


def test_a_device_that_is_back_before_the_model_was_cut_anew_keeps_its_blocks() -> None:
    slow = _after(_after(_check(), 30, 1, 1, 1), LASTING_STEPS, 1, 4, 1).closed()
    assert not slow.is_open
    back = _after(slow, LASTING_STEPS, 1, 1, 1)
    assert back.is_open
    assert _better(back) is None
    assert back.changes(NAMES) == []


def test_a_device_that_was_slow_when_the_model_was_cut_gets_more_blocks_once_it_is_fast_again() -> None:
    calm = _after(_check((1, 3, 1)), 30, 1, 1, 1)
    (slow,) = [place for place, stage in enumerate(calm.plan.cut.stages) if stage.device == 1]
    times = [1 / 3 if place == slow else 1 for place in range(3)]
    fast, said = calm, list[tuple[int, float]]()
    for _ in range(20):
        before, fast = fast, _after(fast, 1, *times)
        said += fast.became(before)
    assert said == [(slow, 1.0)]
    assert fast.is_open
    assert fast.changes(NAMES) == [f"{NAMES[slow]} runs at 3 times its predicted speed"]
    assert _better(fast) == {"a": 4, "b": 4, "c": 4}


def test_a_device_without_blocks_gets_some_once_another_is_slow() -> None:
    calm = _after(_check((1, 1, 7)), 30, 1, 1)
    assert len(calm.plan.cut.stages) == 2
    assert _better(_after(calm, LASTING_STEPS, 1, 4)) == {"a": 9, "b": 2, "c": 1}


def test_a_change_that_another_cut_does_not_help_against_is_looked_at_once() -> None:
    slow = _after(_after(_check(), 30, 1, 1, 1), LASTING_STEPS, 2, 2, 2)
    assert slow.is_open
    assert _better(slow) is None
    closed = slow.closed()
    assert not _after(closed, 50, 2, 2, 2).is_open
    assert _after(closed, 20, 2, 6, 2).is_open


def test_the_rest_of_the_run_has_to_gain_twice_what_the_cut_costs() -> None:
    slow = _after(_after(_check(), 30, 1, 1, 1), LASTING_STEPS, 1, 4, 1)
    found = slow.better(CONFIG, Links(), ENDLESS, 5.0)
    assert found is not None
    order, cut = tuple(stage.device for stage in slow.plan.cut.stages), slow.plan.cut
    devices = [each.slower(4.0 if place == order[1] else 1.0) for place, each in enumerate(slow.plan.devices)]
    now_s = cuts.seconds_of(devices, MICRO_BATCHES, Links(), order, cut.bounds, cut.codec, cut.in_flight)
    saved_s = now_s - found.seconds
    assert saved_s > 0.3 * now_s
    assert _better(slow, 100, 100 * saved_s / WORTH * 0.99) is not None
    assert _better(slow, 100, 100 * saved_s / WORTH * 1.01) is None
    assert _better(slow, 0, 0.0) is None


def test_where_no_cut_fits_by_what_is_known_the_present_one_stays() -> None:
    slow = _after(_after(_check(), 30, 1, 1, 1), LASTING_STEPS, 1, 4, 1)
    full = tuple(dataclasses.replace(each, room=1.0) for each in slow.plan.devices)
    assert _better(dataclasses.replace(slow, plan=dataclasses.replace(slow.plan, devices=full))) is None


def test_what_is_said_names_the_devices_that_changed() -> None:
    slow = _after(_after(_check(), 30, 1, 1, 1), LASTING_STEPS, 1, 4, 1)
    assert slow.changes(NAMES) == ["b/cpu runs at 25% of its predicted speed"]
