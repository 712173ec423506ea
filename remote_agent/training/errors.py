"""Defines the errors that end a run, as one tree; each says which host, what happened and what to do next.

::

    TrainingError
    ├── ConfigError          the settings are not valid (all mistakes at once)
    ├── JobError             the user's own code: import, factory, data, loss, evaluation
    │   ├── UsageChanged     the model uses other parameters than in the measurement
    │   ├── StateChanged     the model's code changes other state than in the measurement
    │   └── TooLarge         the model does not fit into the memory of its devices
    ├── PlacementError       a requested host or device is missing, or did not start in time
    │   ├── DeviceMissing    torch does not find the device on its host
    │   └── LostAtStart      a host or device was lost before the first step
    ├── ClusterUnreachable   Ray can't be reached from the coordinator
    ├── LossNotFinite        NaN or infinite loss
    ├── ServerGone           the parameter server died or stopped answering
    │   └── ShardLeaves      a shard has to leave a host that is drained
    ├── WorkersGone          no worker is left to train on
    │   └── WeightsGone      no process has the weights either: the run continues from a checkpoint
    │       └── StageLost    a pipeline lost a stage, and with it a part of the weights
    └── StorageError         events or a checkpoint can't be written
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from remote_agent.errors import ConfigError as ConfigError
from remote_agent.errors import JobError as JobError
from remote_agent.errors import TrainingError as TrainingError
from remote_agent.protocol import DeviceSpec

CUT_HINT = "strategy=pipeline cuts a model over several machines; else a smaller model, or more memory"
"""What to do with a model that is too large."""

_MAX_SAMPLES = 5
"""Of a slice that are named in a message."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C of the user; not an error of the job, as a ``KeyboardInterrupt`` that the job's own code raises is."""


class UsageChanged(JobError):
    """A parameter has a gradient in some steps only, unlike in the measurement, so it can't be streamed."""


class StateChanged(JobError):
    """The model's code changes a buffer or frozen parameter that it left alone in the measurement."""


class DeviceUnfit(TrainingError):
    """Devices can't take part, which others may do without them.

    Attributes:
        specs: these devices; empty: it is about the coordinator's host, or a server's.
    """

    specs: tuple[DeviceSpec, ...] = ()

    @classmethod
    def together(cls, errors: Sequence[Self]) -> Self:
        """The error of several devices as one."""
        causes = dict.fromkeys(f"{error.host}: {error.cause}" if len(errors) > 1 else error.cause for error in errors)
        first = errors[0]
        one = cls("; ".join(causes), hint=first.hint, host=first.host if len(errors) == 1 else "", detail=first.detail)
        one.specs = tuple(spec for error in errors for spec in error.specs)
        return one


class TooLarge(JobError, DeviceUnfit):
    """The model does not fit into the memory of its devices or hosts."""


class PlacementError(TrainingError):
    """A worker or a server can't start on the host or device that was requested."""


class DeviceMissing(PlacementError, DeviceUnfit):
    """A device is not there when its worker starts: torch is not built for it, or its driver failed."""


class LostAtStart(PlacementError):
    """A worker or the server was lost before the first step."""


class ClusterUnreachable(TrainingError):
    """Ray can't be reached from the coordinator."""


class LossNotFinite(TrainingError):
    """A slice's loss is NaN or infinite."""

    @classmethod
    def of(cls, loss: float, at: str, indices: Sequence[int], *, weights: bool) -> LossNotFinite:
        """The error for a slice.

        Args:
            at: which step, in words.
            weights: the weights that it was computed with are finite.
        """
        first = ", ".join(str(index) for index in indices[:_MAX_SAMPLES])
        more = ", ..." if len(indices) > _MAX_SAMPLES else ""
        where = f"{at} ({len(indices)} samples: {first}{more})"
        if weights:
            return cls(
                f"the loss is {loss} in {where}; the weights are finite",
                hint="lower the learning rate, or look for a division by zero, a logarithm of zero or a mean over"
                " nothing in the loss: a device has a part of the batch, in which none may count; return (sum, weight)",
            )
        return cls(
            f"the weights are not finite: a gradient of the step before was not; the loss is {loss} in {where}",
            hint="lower the learning rate, set clip_norm, or look for what has no gradient at zero, as a square root",
        )


class ServerGone(TrainingError):
    """The parameter server died or stopped answering.

    Attributes:
        known: the hosts whose shards are known to be lost, so that these are not asked; empty: it is not known.
    """

    known: Collection[str] = ()


class ShardLeaves(ServerGone):
    """A host is drained, and its shard goes to another host, before the user switches it off."""


class WorkersGone(TrainingError):
    """No worker is left."""


class WeightsGone(WorkersGone):
    """No worker is left, and only workers had the newest weights.

    Attributes:
        fleet: the run's devices from now on, including those that are away; empty: unchanged.
        commands: the position up to which the user's commands were read; the next start reads those after it.
    """

    fleet: tuple[DeviceSpec, ...] = ()
    commands: int | None = None


class StageLost(WeightsGone):
    """A stage of a pipeline is lost, or its devices changed, so the model is cut again.

    Attributes:
        unmeasured: no stage is lost, but a host was added whose links are not measured.
    """

    unmeasured = False


class StorageError(TrainingError):
    """A file of the run can't be written."""

    @classmethod
    def of(cls, path: Path, error: OSError, what: str = "write") -> StorageError:
        """The error for a file that something can't be done with."""
        hint = f"free space or correct the rights of {path.parent}"
        return cls(f"can't {what} {path.name}: {error.strerror or error}", hint=hint)
