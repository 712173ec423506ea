from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.training import ConfigError, TrainingConfig
from remote_agent.training.clock import ClockOffset
from remote_agent.training.data.order import SampleOrder


def test_settings_may_be_strings() -> None:
    config = TrainingConfig.from_settings(
        {"num_iterations": "50", "learning_rate": "1e-2", "rebalance": "off", "num_cpu_workers": "none"}
    )
    assert config == TrainingConfig(num_iterations=50, learning_rate=0.01, rebalance=False)


def test_settings_that_are_not_named_keep_the_jobs_own_defaults() -> None:
    assert TrainingConfig.from_settings({"seed": "4"}, TrainingConfig(batch_size=7)) == TrainingConfig(
        batch_size=7, seed=4
    )


def test_every_mistake_is_named_with_the_nearest_valid_setting() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingConfig.from_settings({"batchsize": "8", "seed": "1.5", "learning_rate": "-1", "strategy": "asink"})
    text = "\n".join(caught.value.mistakes)
    assert len(caught.value.mistakes) == 4
    for part in ("'batch_size'", "seed=1.5: expected a whole number", "learning_rate=-1.0", "strategy=asink"):
        assert part in text


def test_a_value_out_of_range_is_refused_in_a_script_too() -> None:
    with pytest.raises(ConfigError, match="num_iterations=0"):
        TrainingConfig(num_iterations=0)


@given(st.integers(0, 99), st.integers(1, 60), st.integers(1, 60))
def test_every_sample_is_used_once_an_epoch(seed: int, size: int, batch: int) -> None:
    order = SampleOrder(seed, size, batch)
    used = np.concatenate([order.step(step) for step in range(1, size + 1)])
    assert np.bincount(used, minlength=size).tolist() == [batch] * size
    for epoch in range(batch):
        assert sorted(used[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_a_steps_samples_do_not_depend_on_the_steps_before() -> None:
    walked = SampleOrder(1, 100, 7)
    steps = [walked.step(step).tolist() for step in range(1, 40)]
    assert SampleOrder(1, 100, 7).step(39).tolist() == steps[-1]
    assert SampleOrder(2, 100, 7).step(39).tolist() != steps[-1]


def test_clocks_of_one_computer_need_no_offset() -> None:
    clock = ClockOffset()
    clock.bound(submitted=1.0, entered=1.1, left=1.5, seen=1.6)
    assert clock.here(7.0) == 7.0


def test_another_computers_clock_is_bounded_by_what_was_seen_and_its_drift_is_followed() -> None:
    clock = ClockOffset()
    for now, offset in ((1.0, 500.0), (2000.0, 500.4)):
        clock.bound(submitted=now, entered=now + 0.01 + offset, left=now + 0.5 + offset, seen=now + 0.51)
        assert abs(clock.here(now + offset) - now) <= 0.011
