"""SIGTERM and SIGINT end the tests, also those in lanes: clusters and labs are taken down, and nothing goes on.

A lane is a process of pytest-xdist. Told to end by the main process, it goes on for five seconds before it is
interrupted, and is killed five seconds later, in the middle of a teardown that takes longer. So the main process
interrupts its lanes itself, and waits for each to end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import psutil
import pytest

LANES_S = 60.0
"""Until the lanes must have taken down what they started."""

_interrupted = False


def pytest_configure(config: pytest.Config) -> None:
    def interrupt(*_: object) -> None:
        global _interrupted
        _interrupted = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # a second one would come in the middle of a teardown
        if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
            lanes = psutil.Process().children()
            for lane in lanes:
                lane.terminate()
            psutil.wait_procs(lanes, LANES_S)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_unconfigure(config: pytest.Config) -> Generator[None, object, object]:
    result = yield
    if _interrupted and hasattr(config, "workerinput"):
        os._exit(pytest.ExitCode.INTERRUPTED)  # else it waits for the main process, which waits for its end
    return result
