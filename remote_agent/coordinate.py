"""Starts a run's coordinator: ``python -m remote_agent.coordinate RUN_DIR``; see ``coordinator.main``.

Loading torch takes seconds, and a run may be stopped meanwhile: the signal is blocked until its handler is there.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Carry out the run in the folder named by the one argument, and end with its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))  # until there is an overseer
    from remote_agent.training.coordinator.main import main as coordinate
    from remote_agent.training.coordinator.overseer import leave

    leave(coordinate(sys.argv[1:]))


if __name__ == "__main__":
    main()
