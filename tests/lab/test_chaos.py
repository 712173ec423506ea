"""One random fault of each kind in 20 s of training: the run goes on, counts every sample once, and ends exactly.

On the lab's hosts with real OpenSSH, and the product as a user has it. Simulated: the devices' speeds, by a sleep; a
slow device is a longer sleep; a cut cable is a port of the switch that is down. ``python -m benchmarks.faults`` has
more kinds of faults, and measures what they cost.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.faulty import ours, stage
from benchmarks.faulty.stage import Stage

pytestmark = [pytest.mark.lab, pytest.mark.ray]

SEED, FAULTS, SECONDS = 20, 3, 21.0
KINDS = ("worker", "cut", "slow")


@pytest.fixture(scope="module")
def fleet(possible: None) -> Iterator[Stage]:
    with stage.opened(3) as opened:
        yield opened


@pytest.mark.long
def test_random_faults_lose_and_double_no_sample_and_leave_no_trace_in_the_weights(fleet: Stage) -> None:
    outcome = ours.carry_out(
        fleet, "sync", seed=SEED, faults=FAULTS, seconds=SECONDS, kinds=KINDS, quiet_s=0, say=lambda text: print(text)
    )
    print("\n".join(ours.lines(outcome)))
    assert {fault.kind for fault in outcome.course.plan} == set(KINDS)
    assert outcome.course.torn == ()
    assert outcome.verdict.wrong == ()
    assert outcome.verdict.error is not None
    assert outcome.verdict.error <= stage.EXACT
