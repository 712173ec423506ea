from __future__ import annotations

from remote_agent.training.shared.clock import ClockOffset


def test_clocks_of_one_computer_need_no_offset() -> None:
    clock = ClockOffset()
    clock.bound(submitted=1.0, entered=1.1, left=1.5, seen=1.6)
    assert clock.here(7.0) == 7.0


def test_another_computers_clock_is_bounded_by_what_was_seen_and_its_drift_is_followed() -> None:
    clock = ClockOffset()
    for now, offset in ((1.0, 500.0), (2000.0, 500.4)):
        clock.bound(submitted=now, entered=now + 0.01 + offset, left=now + 0.5 + offset, seen=now + 0.51)
        assert abs(clock.here(now + offset) - now) <= 0.011
