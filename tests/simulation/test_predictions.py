"""What the planner foresees is what the product's own exchange takes, where links and devices are as measured."""

from __future__ import annotations

from typing import Any

import pytest

from remote_agent.planning.ways import COMPUTE
from tests.agent.planning.fleets import LINK_1G, LINK_10M, LINK_100M
from tests.simulation.predictions import compared, tried
from tests.simulation.world import many

EQUAL, UNEQUAL, ONE_FAST = (1.0, 1.0, 1.0), (1.0, 0.4, 0.2), (1.0, 0.1, 0.1)
SMALL, MIDDLE, LARGE = 100_000, 3_000_000, 17_000_000


@pytest.mark.parametrize(
    ("settings", "parameters", "rate", "speeds", "most_off"),
    [
        ({"strategy": "sync"}, SMALL, LINK_10M, UNEQUAL, 0.03),
        ({"strategy": "sync"}, MIDDLE, LINK_100M, EQUAL, 0.03),
        ({"strategy": "sync"}, LARGE, LINK_100M, ONE_FAST, 0.03),
        ({"strategy": "sync"}, LARGE, LINK_1G, ONE_FAST, 0.05),
        ({"strategy": "local_sgd", "local_steps": 5, "local_batch": 8}, MIDDLE, LINK_100M, UNEQUAL, 0.03),
    ],
)
def test_a_step_is_as_predicted(
    settings: dict[str, Any], parameters: int, rate: float, speeds: tuple[float, ...], most_off: float
) -> None:
    with many():
        found = compared(settings, parameters, rate, speeds)
    assert abs(found.off) <= most_off, found


def test_a_plan_is_corrected_by_the_steps_that_are_tried_where_these_are_short() -> None:
    short = tried((20.0, 10.0, 10.0), slower=1.5, rate=1e6)
    assert short.told == ["trying steps of sync with all of them"]
    assert short.found is not None
    assert short.found.ratios[COMPUTE] == pytest.approx(1.5, rel=0.05)
    long = tried((1.0, 0.1, 0.1), slower=1.5, rate=1e6)
    assert not long.told
    assert long.found is not None
    assert not long.found.ratios
