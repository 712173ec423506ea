"""What coordinator, workers and server tell each other: small frozen values; tensors travel beside them as refs.

Failures of the user's code come back as a value, :class:`Failed`, so that what reaches the coordinator as an exception
is always the machinery's: a dead process, a lost object.
"""

from __future__ import annotations

from dataclasses import dataclass

from remote_agent.training.dataplane import Usage
from remote_agent.training.errors import JobError, LossNotFinite, TrainingError
from remote_agent.training.order import Indices


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Something that the user can do something about went wrong in the actor."""

    cause: str
    hint: str = ""
    detail: str = ""
    kind: type[TrainingError] = JobError

    @classmethod
    def of(cls, error: TrainingError) -> Failed:
        """The failure that ``error`` describes."""
        kind = LossNotFinite if isinstance(error, LossNotFinite) else JobError
        return cls(cause=error.cause, hint=error.hint, detail=error.detail, kind=kind)

    def error(self, host: str) -> TrainingError:
        """The failure as an error of ``host``."""
        return self.kind(self.cause, hint=self.hint, host=host, detail=self.detail)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A worker is ready: ``machine`` names the physical computer, ``simulated_speed`` labels a simulated device."""

    machine: str
    device: str
    simulated_speed: float | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measured ``(samples, seconds)``, and what the model did with its parameters and buffers."""

    points: tuple[tuple[int, float], ...]
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class SliceTask:
    """One slice: the samples of ``step`` at ``indices``; ``index`` numbers the step's slices."""

    step: int
    index: int
    indices: Indices


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """When a call was entered and left, on the monotonic clock of the process that handled it, in seconds."""

    entered: float = 0.0
    left: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SliceResult:
    """A slice's outcome; its gradient travels beside it.

    Attributes:
        step: as in the task.
        index: as in the task.
        samples: how many the gradient is summed over.
        loss: mean over these samples.
        load_s: copying the weights into the model.
        compute_s: fetching the samples, forward, backward.
        pack_s: copying the gradient into the flat buffer.
        unused: positions of trained parameters that got no gradient.
        stamps: of the call.
    """

    step: int
    index: int
    samples: int
    loss: float
    load_s: float
    compute_s: float
    pack_s: float
    unused: tuple[int, ...]
    stamps: Stamps


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The samples at ``indices``; ``index`` numbers the step's slices."""

    index: int
    indices: Indices


@dataclass(frozen=True, kw_only=True)
class StreamedTask:
    """A worker's part in a streamed step that has ``slices`` slices of ``samples`` samples together.

    ``own`` is what the worker computes; None: it only takes the new weights. In a round of local SGD ``local_batch`` is
    how many of its samples the worker uses in each of its own steps; 0: the slice is one gradient.
    """

    step: int
    slices: int
    samples: int
    own: Slice | None
    local_batch: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamedResult:
    """A worker's part in a streamed step is done; the new weights are with it.

    Attributes:
        step: as in the task.
        loss: mean over the slice's samples; 0 without a slice.
        compute_s: fetching the samples, forward, backward.
        pushed: when the gradient was on its way, on the worker's monotonic clock, in seconds.
        bytes_out: of gradients, sent or handed over.
        bytes_in: of weights.
        stamps: from the beginning until all weights were here.
    """

    step: int
    loss: float
    compute_s: float
    pushed: float
    bytes_out: int
    bytes_in: int
    stamps: Stamps


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A slice that was to be repaired had been counted before its worker was lost."""


@dataclass(frozen=True, kw_only=True)
class Unlinked:
    """The worker can't exchange gradients and weights with a shard."""

    cause: str


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """There were no weights to compute with: the step before was not complete."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """Step ``step`` is applied; ``sum_s`` is how long the gradients' addition took."""

    step: int
    sum_s: float
    stamps: Stamps


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A slice failed, its loss is not finite, or it is not this step's turn; the weights are as they were."""

    step: int
