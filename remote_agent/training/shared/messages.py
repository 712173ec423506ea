"""Defines the messages of coordinator, workers and server: small frozen values; tensors are sent beside them as refs.

Failures of the user's code come back as a value, :class:`Failed`, so that what reaches the coordinator as an exception
is always the machinery's: a dead process, a lost object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remote_agent.current_call import Place
from remote_agent.training.errors import DeviceUnfit, JobError, LossNotFinite, StateChanged, TrainingError, UsageChanged
from remote_agent.training.shared.dataplane import Usage
from remote_agent.training.shared.figures import Figures
from remote_agent.training.shared.optimizer_options import Options
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.shared.slices import WHOLE, Indices, Part, SliceSpan, counted_at
from remote_agent.training.user_code.user_errors import Frame


@dataclass(frozen=True, kw_only=True)
class DeviceCosts:
    """What a step costs beside forward and backward.

    Attributes:
        step_s: of AdamW over all parameters, on the device.
        update_s: of the same for one number, on the host's processor.
        ready: for equal parts of the buffer, which part of a slice's time has passed when their gradients are there.
        codec_s: seconds to write and read one number, by codec.
        turn_s: from sending a small chunk to having the answer, through TCP and two threads of this host.
        touch_s: what each number of a chunk takes of the processor beside that: summed, and copied.
    """

    step_s: float = 0.0
    update_s: float = 0.0
    ready: tuple[float, ...] = ()
    codec_s: Mapping[str, float] = field(default_factory=dict)
    turn_s: float = 0.0
    touch_s: float = 0.0


REPAIR, PING, LINK = "repair", "ping", "link"
"""Groups of calls that an actor carries out while a step is under way: slices that others have lost, pings and what
belongs to them, and whether other hosts can be reached."""

GROUPS = (REPAIR, PING, LINK)
"""Those of a worker."""


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
        kind = type(error) if isinstance(error, LossNotFinite | UsageChanged | StateChanged | DeviceUnfit) else JobError
        return cls(cause=error.cause, hint=error.hint, detail=error.detail, kind=kind)

    def error(self, host: str) -> TrainingError:
        """The failure as an error of ``host``."""
        return self.kind(self.cause, hint=self.hint, host=host, detail=self.detail)


@dataclass(frozen=True, kw_only=True)
class WorkerReady:
    """A worker is ready: ``machine`` names the physical computer, ``simulated_speed`` labels a simulated device.

    ``cores`` are those of the computer. ``notes`` say how the device computes, for the plan.
    """

    machine: str
    cores: int
    device: str
    simulated_speed: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measured ``(samples, seconds)``, what the model did with its parameters and buffers, and notes for the plan.

    ``loss`` is that of the samples that were measured, 0 where it is not finite; ``costs`` are those beside forward and
    backward.
    """

    points: tuple[tuple[int, float], ...]
    usage: Usage
    loss: float = 0.0
    notes: tuple[str, ...] = ()
    costs: DeviceCosts = field(default_factory=DeviceCosts)


@dataclass(frozen=True, kw_only=True)
class AuditTask:
    """What a worker computes for an audit.

    Attributes:
        indices: the samples; None: some of those that it is measured with.
        alone: compare them with parts of them and with themselves; False: only give a sketch of all of them.
        evaluating: in evaluation mode.
        noise: tell what the last bits of the weights change.
        in_run: the weights are those of the run, and stay as they are.
        step: that ``loss`` gets.
    """

    indices: Indices | None = None
    alone: bool = False
    evaluating: bool = False
    noise: bool = True
    in_run: bool = False
    step: int = 1


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The part of a step's batch that one worker computes.

    Attributes:
        index: numbers the step's spans.
        indices: of its samples in the dataset, shape ``(samples,)``.
        begin: position of its first sample in the run's global order.
        first: position of the first sample of the whole batch.
        total: samples of the whole batch.
        ahead: slices of later steps that the worker will probably get, and may read.
    """

    index: int
    indices: Indices
    total: int
    begin: int = 0
    first: int = 0
    ahead: tuple[Slice, ...] = ()

    @classmethod
    def whole(cls, indices: Indices, index: int = 0, begin: int = 0) -> Slice:
        """A batch that is not cut."""
        return cls(index=index, indices=indices, total=len(indices), begin=begin, first=begin)


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """When a call was entered and left, on the monotonic clock of the process that handled it, in seconds."""

    entered: float = 0.0
    left: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StreamedTask:
    """A worker's part in a streamed step whose batch is cut into ``spans``, in the order of the slices' numbers.

    ``own`` is what the worker computes; None: it only takes the new weights. In a round of local SGD ``local_batch`` is
    how many of its samples the worker uses in each of its own steps; 0: the slice is one gradient. The new weights of a
    ``delayed`` round are waited for in the next one. ``coordinator`` names the process that issues it: a worker takes
    tasks from one coordinator at a time.
    ``options`` are what the scheduler has set in the step.

    ``peers`` are the relays where the spans are added up, those of one relay as one slice for the shards; empty for a
    span that is a slice by itself. ``more`` are further spans' slices, which are added to ``own``: all of one relay's,
    where no worker of it is left.
    """

    step: int
    spans: tuple[SliceSpan, ...]
    own: Slice | None
    local_batch: int = 0
    delayed: bool = False
    coordinator: str = ""
    options: Options = ()
    peers: tuple[str, ...] = ()
    more: tuple[Slice, ...] = ()

    @property
    def slices(self) -> int:
        """How many the shards count."""
        return len(set(counted_at(len(self.spans), self.peers)))

    @property
    def samples(self) -> int:
        """How many samples they have together."""
        return sum(span.end - span.begin for span in self.spans)

    @property
    def numbered(self) -> tuple[int, Part]:
        """As what the shards, or its relay, know ``own`` with what is added to it: number of the slice, and part."""
        assert self.own is not None, "the task has a slice"
        places, own = counted_at(len(self.spans), self.peers), self.own.index
        spans = [index for index, place in enumerate(places) if place == places[own]]
        number = list(dict.fromkeys(places)).index(places[own])
        return number, WHOLE if len(spans) == 1 + len(self.more) else Part(spans.index(own), len(spans))


@dataclass(frozen=True, kw_only=True)
class Result:
    """What every worker tells of a call that computed slices.

    Attributes:
        stamps: from its beginning until the new weights, or the sums, were here.
        at_most: samples that the device computes at a time from now on, since its memory was full; 0: as before.
        scalars: the figures that the job's loss gave beside the loss, of this worker's slices.
    """

    stamps: Stamps
    at_most: int = 0
    scalars: Figures = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StreamedResult(Result):
    """A worker's part in a streamed step is done; the new weights are with it.

    Attributes:
        loss: mean over the slice's samples, as the loss weighs them; 0 without a slice.
        weight: what they weigh in the step's mean; 0 without a slice.
        compute_s: fetching the samples, forward, backward.
        pushed: when the gradient was on its way, on the worker's monotonic clock, in seconds.
        bytes_out: of gradients, sent or handed over.
        bytes_in: of weights.
    """

    loss: float
    weight: float
    compute_s: float
    pushed: float
    bytes_out: int
    bytes_in: int

    @property
    def push_s(self) -> float:
        """From the gradient's computation until it was on its way."""
        return max(0.0, self.pushed - self.stamps.entered - self.compute_s)


@dataclass(frozen=True)
class NotBegun:
    """A lost slice was not computed: its step has not begun here. Ask again; what is asked meanwhile is done before."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A slice that was to be repaired had been counted before its worker was lost."""


@dataclass(frozen=True, kw_only=True)
class Busy:
    """A call of the user's code is under way for ``seconds``; ``frames`` are the user's calls, the outermost first."""

    place: Place
    seconds: float
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """A worker lives.

    Attributes:
        done: the last streamed step that it has done its part of.
        following: it takes no part, and has the newest weights: it may enter with any step from now on.
        busy: with a call of the user's code that takes long.
        quiet_s: seconds since a call of the user's code began last, before the first step.
    """

    done: int = 0
    quiet_s: float = 0.0
    following: bool = False
    busy: Busy | None = None


@dataclass(frozen=True, kw_only=True)
class ShardLinkDown:
    """The worker can't exchange gradients and weights with a shard."""

    cause: str


StreamedAnswer = StreamedResult | Counted | NotBegun | Failed | ShardLinkDown
"""What becomes of a worker's part in a streamed step."""


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
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


# --- Evaluation ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """Batches of the validation data that a worker measures with the weights after the last step.

    ``data`` is the ref of the data, in a tuple: so it is fetched by a worker that does not have it, and once.
    ``checked``: metrics that keep what they saw are refused.
    """

    data: tuple[Ref[Any]]
    batches: Sequence[tuple[int, Indices]]
    checked: bool = False


# --- All-reduce ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GroupMembership:
    """A worker's place in one group of workers, which meet at a store of the coordinator's.

    Attributes:
        number: of the group, among those of this coordinator.
        secret: of the store, another for each coordinator.
        rank: of the worker, from 0.
        hosts: of the group's workers, by rank.
    """

    number: int
    secret: bytes = field(repr=False)
    address: str
    port: int
    rank: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReductionTask:
    """A worker's part in a step: commit the step before, compute, and reduce with the others of the group.

    Attributes:
        step: which; the same one again when its reduction was broken: what was computed for it counts still.
        committed: the step whose reduction was whole everywhere: it is applied now, where it is not yet.
        slices: what the worker computes, beside what it has computed for this step before.
        group: the workers that it reduces with; None: it is alone.
        ordered: the step's slices, which are reduced one by one and added in their order, so that the sum has the same
            bits whichever worker computed them; 0: each worker adds its own up first.
        options: what the scheduler has set in the step.
        terms: of the loss, each with gradients and a weight of its own.
    """

    step: int
    committed: int
    slices: tuple[Slice, ...]
    group: GroupMembership | None
    ordered: int = 0
    options: Options = ()
    terms: int = 1


@dataclass(frozen=True, kw_only=True)
class Computed:
    """A slice that a worker has computed, and the seconds for fetching its samples, forward and backward."""

    index: int
    samples: int
    compute_s: float


@dataclass(frozen=True, kw_only=True)
class Reduced(Result):
    """The gradient of all slices is with the worker; nothing is applied yet.

    Attributes:
        samples: of all slices of all workers.
        loss: mean over these samples.
        computed: the slices that this worker has added.
        ready: when it was ready to reduce, on its monotonic clock, in seconds.
        norm: of the mean gradient, before it is clipped.
    """

    samples: int
    loss: float
    computed: tuple[Computed, ...]
    ready: float
    norm: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The reduction did not come about; what the worker has computed for the step it keeps."""

    cause: str
