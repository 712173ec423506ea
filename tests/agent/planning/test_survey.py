"""What was found out about a fleet."""

from __future__ import annotations

import math

import pytest

from remote_agent.planning.survey import Host


@pytest.mark.parametrize(
    ("up", "down", "both", "rate"),
    [
        (0.0, 0.0, 0.0, math.inf),
        (3.0, 0.0, 0.0, 3.0),
        (0.0, 3.0, 0.0, 3.0),
        (3.0, 5.0, 0.0, 3.0),
        (5.0, 3.0, 0.0, 3.0),
        (5.0, 5.0, 4.0, 2.0),
    ],
)
def test_a_link_carries_each_way_what_its_slower_direction_does_or_half_of_both_together(
    up: float, down: float, both: float, rate: float
) -> None:
    assert Host(name="a", devices=(), up=up, down=down, both=both).rate == rate
