"""How the workers train together; each strategy is one file behind one small interface.

A strategy turns a :class:`~remote_agent.training.session.Session` into a sequence of applied steps. It writes the
events of its own decisions (who was lost, what was issued again, how shares moved); the engine writes the steps,
checkpoints and the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from remote_agent.training.session import Session, StepReport
from remote_agent.training.strategies.sync import Sync


class Strategy(Protocol):
    """The interface."""

    def steps(self, session: Session) -> Iterator[StepReport]:
        """Train until the configured number of steps is applied, or ``session.stopping()`` says to end early.

        Raises:
            TrainingError: the run can't go on.
        """
        ...


def create(name: str) -> Strategy:
    """The strategy of that name; :class:`TrainingConfig` has checked that it exists."""
    return {"sync": Sync}[name]()
