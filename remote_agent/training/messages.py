"""What coordinator, workers and server tell each other: small frozen values; tensors travel beside them as refs.

Failures of the user's code come back as a value, :class:`Failed`, so that what reaches the coordinator as an exception
is always the machinery's: a dead process, a lost object.
"""

from __future__ import annotations

from dataclasses import dataclass

from remote_agent.training.data.order import Indices
from remote_agent.training.data.record import SliceSpan
from remote_agent.training.dataplane import Usage
from remote_agent.training.errors import JobError, LossNotFinite, TrainingError


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
    """A worker is ready: ``machine`` names the physical computer, ``simulated_speed`` labels a simulated device.

    ``notes`` say how the device computes, for the plan.
    """

    machine: str
    device: str
    simulated_speed: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measured ``(samples, seconds)``, what the model did with its parameters and buffers, and notes for the plan."""

    points: tuple[tuple[int, float], ...]
    usage: Usage
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SliceTask:
    """One slice: the samples of ``step`` at ``indices``; ``index`` numbers the step's slices.

    ``begin`` is the position of its first sample in the run's global order.
    """

    step: int
    index: int
    indices: Indices
    begin: int = 0


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
        at_most: samples that the device computes at a time from now on, since its memory was full; 0: as before.
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
    at_most: int = 0


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The samples at ``indices``; ``index`` numbers the step's slices.

    ``begin`` is the position of its first sample in the run's global order.
    """

    index: int
    indices: Indices
    begin: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamedTask:
    """A worker's part in a streamed step whose batch is cut into ``spans``, in the order of the slices' numbers.

    ``own`` is what the worker computes; None: it only takes the new weights. In a round of local SGD ``local_batch`` is
    how many of its samples the worker uses in each of its own steps; 0: the slice is one gradient. The new weights of a
    ``delayed`` round are waited for in the next one. ``coordinator`` is who says so: a worker heeds one at a time.
    """

    step: int
    spans: tuple[SliceSpan, ...]
    own: Slice | None
    local_batch: int = 0
    delayed: bool = False
    coordinator: str = ""

    @property
    def slices(self) -> int:
        """How many slices the step has."""
        return len(self.spans)

    @property
    def samples(self) -> int:
        """How many samples they have together."""
        return sum(span.end - span.begin for span in self.spans)


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
        at_most: samples that the device computes at a time from now on, since its memory was full; 0: as before.
    """

    step: int
    loss: float
    compute_s: float
    pushed: float
    bytes_out: int
    bytes_in: int
    stamps: Stamps
    at_most: int = 0

    @property
    def push_s(self) -> float:
        """From the gradient's computation until it was on its way."""
        return max(0.0, self.pushed - self.stamps.entered - self.compute_s)


@dataclass(frozen=True, kw_only=True)
class StaleTask:
    """A slice that waits for no others; ``own.index`` is its number in the run, from 1.

    Weights that hold all slices up to ``needs`` are fresh enough for it, and so are any that are fetched after it was
    issued (see ``strategies.pacing``). It is issued ``again`` if another worker may have sent a part of its gradient.
    """

    own: Slice
    needs: int = 0
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class StaleResult:
    """A slice that waited for no others is applied on all shards.

    Attributes:
        number: of the slice.
        loss: mean over its samples.
        compute_s: fetching the samples, forward, backward.
        push_s: until its gradient was on its way.
        pull_s: from then until all fresh weights were here, and before it, where it had to wait for fresher weights.
        bytes_out: sent since the result before.
        bytes_in: received since then.
        stamps: from the beginning until all fresh weights were here.
        at_most: as in :class:`SliceResult`.
    """

    number: int
    loss: float
    compute_s: float
    push_s: float
    pull_s: float
    bytes_out: int
    bytes_in: int
    stamps: Stamps
    at_most: int = 0


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A slice that was to be repaired had been counted before its worker was lost."""


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """A worker lives.

    Attributes:
        done: the last streamed step that it has done its part of.
        following: it takes no part, and has the newest weights: it may enter with any step from now on.
    """

    done: int = 0
    following: bool = False


@dataclass(frozen=True, kw_only=True)
class Unlinked:
    """The worker can't exchange gradients and weights with a shard."""

    cause: str


StreamedAnswer = StreamedResult | Counted | Failed | Unlinked
"""What becomes of a worker's part in a streamed step."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What a worker tells a coordinator that takes the place of one that was killed.

    Attributes:
        step: the last step whose new weights it has.
        under_way: its part in the step that it is in now; None: it is in none.
        done: its parts in the last steps, with what came of each.
        repaired: others' slices that it was given, with what came of each.
        following: it takes no part in the steps.
    """

    step: int
    under_way: StreamedTask | None = None
    done: tuple[tuple[StreamedTask, StreamedAnswer], ...] = ()
    repaired: tuple[tuple[StreamedTask, StreamedAnswer], ...] = ()
    following: bool = False


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


# --- All-reduce ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A worker's place in one group of ``size`` workers, which find each other through a store of the coordinator's.

    Attributes:
        number: of the group, among those of this coordinator.
        run: keeps apart coordinators that had the same address and port one after the other.
        address: of the store.
        port: of the store.
        rank: of the worker, from 0.
        size: workers of the group.
    """

    number: int
    run: str
    address: str
    port: int
    rank: int
    size: int


@dataclass(frozen=True, kw_only=True)
class ReductionTask:
    """A worker's part in a step: commit the step before, compute, and reduce with the others of the group.

    Attributes:
        step: which; the same one again when its reduction was broken: what was computed for it counts still.
        committed: the step whose reduction was whole everywhere: it is applied now, where it is not yet.
        slices: what the worker computes, beside what it has computed for this step before.
        group: with whom it reduces; None: it is alone.
    """

    step: int
    committed: int
    slices: tuple[Slice, ...]
    group: Membership | None


@dataclass(frozen=True, kw_only=True)
class Computed:
    """A slice that a worker has computed, and the seconds for fetching its samples, forward and backward."""

    index: int
    samples: int
    compute_s: float


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """The gradient of all slices is with the worker; nothing is applied yet.

    Attributes:
        step: as in the task.
        samples: of all slices of all workers.
        loss: mean over these samples.
        computed: the slices that this worker has added.
        ready: when it was ready to reduce, on its monotonic clock, in seconds.
        stamps: of the call.
    """

    step: int
    samples: int
    loss: float
    computed: tuple[Computed, ...]
    ready: float
    stamps: Stamps


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The reduction did not come about; what the worker has computed for the step it keeps."""

    cause: str
