from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.training.data.order import SampleOrder
from remote_agent.training.shared.clock import ClockOffset


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
