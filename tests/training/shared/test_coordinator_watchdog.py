"""An actor that no coordinator asks any more ends, and no sooner."""

from __future__ import annotations

import multiprocessing
import time
from types import SimpleNamespace

import pytest

from remote_agent.training.shared import coordinator_watchdog
from tests.simulation.kernel import Kernel, installed

ALONE_S = 0.5


def live() -> None:
    """Wait to be ended, unheard of."""
    coordinator_watchdog.ORPHAN_S, coordinator_watchdog.UNHEARD_S = ALONE_S, 2 * ALONE_S
    coordinator_watchdog.CoordinatorWatchdog()
    time.sleep(60.0)


def test_a_process_that_is_never_heard_of_ends_itself_and_no_sooner_than_it_may() -> None:
    process = multiprocessing.get_context("fork").Process(target=live)
    began = time.monotonic()
    process.start()
    process.join(30.0)
    lived = time.monotonic() - began
    if process.is_alive():
        process.kill()
        pytest.fail("it lives on")
    assert process.exitcode == 0
    assert lived >= 2 * ALONE_S


def test_it_lives_while_it_is_heard_of_and_ends_when_it_no_longer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a simulated clock: a busy computer could keep the one that pings from it for long."""
    kernel, ended = Kernel(0), list[float]()
    monkeypatch.setattr(coordinator_watchdog, "os", SimpleNamespace(_exit=lambda _: ended.append(kernel.now)))
    with installed(kernel, (coordinator_watchdog.__name__,)):
        actor = coordinator_watchdog.CoordinatorWatchdog()
        for _ in range(20):
            kernel.wait(kernel.now + 0.9 * coordinator_watchdog.ORPHAN_S)
            actor.heard()
        heard = kernel.now
        kernel.wait(heard + 2 * coordinator_watchdog.ORPHAN_S)
    kernel.close()
    assert ended == [pytest.approx(heard + coordinator_watchdog.ORPHAN_S)]
