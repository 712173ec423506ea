"""What can end a run, as one tree; each error says which host, what happened and what to do next.

::

    TrainingError
    ├── ConfigError          the settings are not valid (all mistakes at once)
    ├── JobError             the user's own code: import, factory, data, loss, evaluation
    ├── PlacementError       a host or device that was asked for is not there, or did not start in time
    │   └── LostAtStart      it was there, and was lost before the first step
    ├── ClusterUnreachable   Ray can't be reached from the coordinator
    ├── LossNotFinite        NaN or infinite loss
    ├── ServerGone           the parameter server died or stopped answering
    ├── WorkersGone          no worker is left to train on
    └── StorageError         events or a checkpoint can't be written
"""

from __future__ import annotations


class TrainingError(Exception):
    """A run can't go on.

    Attributes:
        cause: what happened, in one sentence.
        hint: what the user can do next.
        host: the host it happened on; empty when it concerns no single host.
        detail: last output lines, for example of the user's own exception.
    """

    def __init__(self, cause: str, *, hint: str = "", host: str = "", detail: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.hint = hint
        self.host = host
        self.detail = detail

    def __str__(self) -> str:
        where = f"{self.host}: " if self.host else ""
        advice = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.cause}{advice}"


class ConfigError(TrainingError):
    """Settings that are not valid; ``mistakes`` holds one sentence for each of them."""

    def __init__(self, mistakes: tuple[str, ...]) -> None:
        super().__init__("; ".join(mistakes), hint="correct the settings named here and start the run again")
        self.mistakes = mistakes


class JobError(TrainingError):
    """The job's own code failed."""


class PlacementError(TrainingError):
    """A worker or the server can't be where it was asked to be."""


class LostAtStart(PlacementError):
    """A worker or the server was lost before the first step."""


class ClusterUnreachable(TrainingError):
    """Ray can't be reached from the coordinator."""


class LossNotFinite(TrainingError):
    """A slice's loss is NaN or infinite."""

    @classmethod
    def of(cls, loss: float, samples: int, host: str = "") -> LossNotFinite:
        """The error for a slice of ``samples`` samples."""
        return cls(
            f"the loss is {loss} in a slice of {samples} samples",
            hint="lower the learning rate, or look for a division by zero or a logarithm of zero in the loss",
            host=host,
        )


class ServerGone(TrainingError):
    """The parameter server died or stopped answering."""


class WorkersGone(TrainingError):
    """No worker is left."""


class StorageError(TrainingError):
    """Something of the run can't be written."""
