"""Defines the interface of a strategy to the rest of the coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from remote_agent.planning import units
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.shares import split, step_seconds
from remote_agent.protocol import SliceReissued
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan.run_plan import FirstCut
from remote_agent.training.coordinator.session import Session, StepReport


def report_reissued(session: Session, step: int, lost_by: str, to: WorkerHandle, samples: int, stall_s: float) -> None:
    """Write that another worker computed a lost slice; ``stall_s`` is the time since that worker got it."""
    session.journal.write(
        SliceReissued, step=step, worker=lost_by, to=to.name, samples=samples, stall_s=max(0.0, stall_s)
    )


class Strategy(ABC):
    """Turns a :class:`~remote_agent.training.coordinator.session.Session` into a sequence of applied steps.

    It writes the events of its own decisions (workers lost, slices reissued, shares changed); the loop writes those of
    steps and checkpoints, and the final one.
    """

    @abstractmethod
    def steps(self, session: Session) -> Iterator[StepReport]:
        """Train until the configured number of steps is applied, or ``session.stopping()`` returns True.

        Raises:
            TrainingError: the run can't go on.
        """

    @classmethod
    def fixed(cls, config: TrainingConfig, devices: int) -> TrainingConfig:
        """See :meth:`~remote_agent.training.coordinator.plan.run_plan.Planned.fixed`."""
        del devices
        return config

    @classmethod
    def first_cut(cls, config: TrainingConfig, profiles: Sequence[DeviceProfile], least: int) -> FirstCut:
        """See :meth:`~remote_agent.training.coordinator.plan.run_plan.Planned.first_cut`."""
        cut = split(config.batch_size, profiles, least)
        if config.unit:
            cut = units.aligned(cut, config.unit)
        return FirstCut(samples=cut, seconds=step_seconds(cut, profiles))
