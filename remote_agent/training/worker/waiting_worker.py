"""A worker that is started while a run without streams is on: it waits until it is let in, and nothing has to reach it.

In an all-reduce no server could send it the weights of a step that it had no part in: it copies them from another
worker at the beginning of a step, and is let in with that step (``recovery.state_transfer``).
"""

from __future__ import annotations

import threading

from remote_agent.training.deadlines import EXCHANGE_S


class WaitingWorker:
    """Waits; :meth:`follow` by the thread that makes the steps, :meth:`enter` by another.

    Attributes:
        following: it waits to be let in.
    """

    def __init__(self) -> None:
        self.following = False
        self._entered = threading.Event()

    def follow(self) -> None:
        """Take no part until :meth:`enter`."""
        self._entered.clear()
        self.following = True
        self._entered.wait(EXCHANGE_S)
        self.following = False

    def enter(self) -> None:
        """What is given out from now on is for this worker too."""
        self._entered.set()
