"""An actor that no coordinator asks any more ends, and no sooner."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from remote_agent.training.shared import coordinator_watchdog

ALONE_S = 0.5


def live(heard_s: float, unheard_s: float) -> None:
    """Be heard of for so long, and then wait to be ended."""
    coordinator_watchdog.ORPHAN_S, coordinator_watchdog.UNHEARD_S = ALONE_S, unheard_s
    actor = coordinator_watchdog.CoordinatorWatchdog()
    end = time.monotonic() + heard_s
    while time.monotonic() < end:
        actor.heard()
        time.sleep(ALONE_S / 10)
    time.sleep(60.0)


@pytest.mark.parametrize(("heard_s", "unheard_s"), [(3 * ALONE_S, 60.0), (0.0, 2 * ALONE_S)])
def test_it_lives_while_it_is_heard_of_and_ends_when_it_no_longer_is(heard_s: float, unheard_s: float) -> None:
    process = multiprocessing.get_context("fork").Process(target=live, args=(heard_s, unheard_s))
    began = time.monotonic()
    process.start()
    process.join(30.0)
    lived = time.monotonic() - began
    if process.is_alive():
        process.kill()
        pytest.fail("it lives on")
    assert process.exitcode == 0
    assert lived >= (heard_s + 0.8 * ALONE_S if heard_s else unheard_s)
