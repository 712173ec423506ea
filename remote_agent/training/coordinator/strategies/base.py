"""What every strategy is to the rest of the coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan.shares import split, step_seconds
from remote_agent.training.coordinator.session import Session, StepReport
from remote_agent.training.shared import units
from remote_agent.training.shared.device_profile import DeviceProfile


@dataclass(frozen=True, kw_only=True)
class FirstCut:
    """The first step, for the plan: samples of each device, its predicted seconds, and what else is to be said."""

    samples: tuple[int, ...]
    seconds: float
    about: tuple[str, ...] = ()


class Strategy(ABC):
    """Turns a :class:`~remote_agent.training.coordinator.session.Session` into a sequence of applied steps.

    It writes the events of its own decisions (who was lost, what was issued again, how shares moved); the loop writes
    the steps, checkpoints and the end.
    """

    @abstractmethod
    def steps(self, session: Session) -> Iterator[StepReport]:
        """Train until the configured number of steps is applied, or ``session.stopping()`` says to end early.

        Raises:
            TrainingError: the run can't go on.
        """

    @classmethod
    def fixed(cls, config: TrainingConfig, devices: int) -> TrainingConfig:
        """``config`` with what stays as it is at the run's beginning, however many ``devices`` there are later."""
        del devices
        return config

    @classmethod
    def first_cut(cls, config: TrainingConfig, profiles: Sequence[DeviceProfile], least: int) -> FirstCut:
        """How the first step is cut. Pure.

        Args:
            config: the run's.
            profiles: of the devices.
            least: samples of a slice that is not empty.

        Raises:
            ValueError: the batch does not fit into the devices' memory.
        """
        cut = split(config.batch_size, profiles, least)
        if config.unit:
            cut = units.aligned(cut, config.unit)
        return FirstCut(samples=cut, seconds=step_seconds(cut, profiles))
