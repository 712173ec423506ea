"""Defines a strategy's input, the session (workers, shards, sample order, journal), and its output, step reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from remote_agent.goals import Watched
from remote_agent.planning import shares
from remote_agent.planning.survey import Survey
from remote_agent.protocol import WorkerStep
from remote_agent.training.checkpoint.optimizer_state import Shapes, Snapshot, TrainingState
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.control import Control
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.members import MembershipRecord, Rejoining, Server, WorkerHandle
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.plan.profiles import Place
from remote_agent.training.coordinator.processes.actors import Servers
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.processes.joining import Joining
from remote_agent.training.coordinator.schedule import Schedule
from remote_agent.training.coordinator.sources import Source
from remote_agent.training.coordinator.validation import Validation
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.shared.flat import Payload
from remote_agent.training.shared.messages import StreamedTask
from remote_agent.training.shared.optimizer_options import Options
from remote_agent.training.shared.slices import SliceSpan
from remote_agent.training.wire.endpoint import Stream


@dataclass(frozen=True, kw_only=True)
class OpenStep:
    """A step that a killed coordinator had issued to some workers at least.

    Attributes:
        common: the step's task, without a slice.
        begun: the task of each worker that has started or finished it, by the worker's name.
        earlier: for each other worker, the steps that it did not get and has to make first.
    """

    common: StreamedTask
    begun: Mapping[str, StreamedTask]
    earlier: Mapping[str, tuple[StreamedTask, ...]]


@dataclass(frozen=True, kw_only=True)
class Takeover:
    """The state of a coordinator that took over a run from a killed one.

    Attributes:
        coordinator: this coordinator's name; workers accept tasks only from the coordinator of this name.
        open_step: the step that has to be finished first; None: there is none.
        last_reported_step: the last step that already has an event.
        rebalance_reason: why the batch may be cut differently now; empty: the cut is known.
    """

    coordinator: str
    open_step: OpenStep | None = None
    last_reported_step: int = 0
    rebalance_reason: str = ""


_OVERLAP = 3
"""With ``overlap`` a round is issued this many reports before its own."""


@dataclass
class KeepSchedule:
    """The next steps after which a run's state is kept, beside those of the configuration; None: not decided yet.

    Attributes:
        copy_due: the shards' state is copied after this step; ``recovery.backups`` sets it.
        checkpoint_due: a checkpoint by time is saved after this step; ``recovery.checkpoint_timer`` sets it.
        audit_due: the job is audited after this step; ``auditing`` sets it.
    """

    copy_due: int | None = None
    checkpoint_due: int | None = None
    audit_due: int | None = None


@dataclass
class EvaluationRecord:
    """The results of the evaluations so far; only ``evaluation.judge`` changes it."""

    watched: Watched = ()


@dataclass(frozen=True, kw_only=True)
class Session:
    """A strategy's view of the run: constants of the run, and the records of what changes.

    Attributes:
        config: the resolved configuration.
        servers: the shards, in the layout's order; empty if the workers reduce gradients among themselves.
        order: the order of the samples and the end of the run. ``order.done`` is the number of steps that an earlier
            part of this run made; the first step is ``order.done + 1``.
        payload_bytes: bytes that a worker sends and receives in a step.
        buffer_names: the model's buffers that training changes.
        terms: of the loss, each with a weight of its own.
        stopping: returns True once the run has to end early.
        reasons: how weights and gradients are exchanged, and why.
        shapes: shapes of the streamed parameters, in the order of the flat buffer; empty if nothing is streamed.
        first_state: the optimizer's state before the first step; None: only the shards have it.
        first_loss: the measured loss; used for a step whose only worker died before it reported a loss, if no other
            step has one.
        keeping: the next steps after which the state is kept.
        stream, pool: needed to restart lost shards (``recovery.rollback``).
        takeover: state of a takeover from a killed coordinator; None: there was none.
        validation: the validation data; None: there is none.
        crashes: the record of the user's calls that killed workers.
        schedule: of the optimizer's options; None: they stay.
        survey: measurements of all hosts before the run; None: unknown.
        profile: where they are kept; None: nowhere.
        first_weights: weights of the whole model, by name, for strategies that give each worker only a part.
    """

    config: TrainingConfig
    membership: MembershipRecord
    servers: tuple[Server, ...]
    order: SampleOrder
    source: Source
    payload_bytes: int
    buffer_names: tuple[str, ...]
    journal: Journal
    stopping: Callable[[], bool]
    joining: Joining
    reasons: tuple[str, ...] = ()
    terms: int = 1
    shapes: Shapes = field(default_factory=dict)
    first_state: TrainingState | None = field(default_factory=TrainingState)
    first_loss: float = 0.0
    keeping: KeepSchedule = field(default_factory=KeepSchedule)
    stream: Stream | None = None
    pool: Servers | None = None
    control: Control | None = None
    takeover: Takeover | None = None
    validation: Validation | None = None
    evaluations: EvaluationRecord = field(default_factory=EvaluationRecord)
    crashes: Crashes = field(default_factory=Crashes)
    schedule: Schedule | None = None
    survey: Survey | None = None
    profile: Place | None = None
    first_weights: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def members(self) -> Sequence[WorkerHandle]:
        return self.membership.members

    @property
    def away(self) -> Sequence[Rejoining]:
        """The workers that do not take part now, but may return."""
        return self.membership.away

    @property
    def coordinator(self) -> str:
        """This coordinator's name for the workers; empty for the first one of a run."""
        return self.takeover.coordinator if self.takeover is not None else ""

    @property
    def watched(self) -> Watched:
        """The watched metric of the evaluations so far."""
        return self.evaluations.watched

    @property
    def plateau(self) -> str:
        """``min`` or ``max``: which metric is better for a ``ReduceLROnPlateau``; empty: there is none."""
        return self.schedule.plateau if self.schedule is not None else ""

    def options(self, step: int) -> Options:
        """What the job's scheduler sets in ``step``; raises JobError if it fails."""
        return self.schedule.options(step, self.watched) if self.schedule is not None else ()

    def goes_on(self, step: int, taken: int) -> bool:
        """Whether another step follows ``step``, after the positions of the order up to ``taken`` were used."""
        if self.stopping() or (self.order.limit is None and step >= self.config.num_iterations):
            return False
        return self.order.until(taken + 1) > taken

    def saves(self, step: int, begin: int, end: int) -> bool:
        """Whether a checkpoint, copy or evaluation is made after ``step``; its state is then kept until its report.

        Args:
            begin: the position of its first sample.
            end: the position after its last one.
        """
        due = step in (self.keeping.copy_due, self.keeping.audit_due)
        return due or self.is_checkpoint(step) or self.is_evaluated(step, begin, end)

    def is_evaluated(self, step: int, begin: int, end: int) -> bool:
        """Whether the weights after ``step`` are evaluated; the arguments are those of :meth:`saves`."""
        if self.validation is None:
            return False
        if self.config.evaluate_every:
            return step % self.config.evaluate_every == 0
        return self.order.epoch_end(begin) <= end

    def is_checkpoint(self, step: int) -> bool:
        """Whether a checkpoint is made after ``step``."""
        every = self.config.checkpoint_every
        return step == self.keeping.checkpoint_due or (every > 0 and step % every == 0)

    def soonest(self, step: int) -> int:
        """The next step whose state can be kept after ``step``; earlier ones were already issued without that."""
        return step + (_OVERLAP if self.config.overlap else 1)

    @property
    def least_slice(self) -> int:
        """Samples of the smallest slice; see :func:`~remote_agent.planning.shares.least_slice`."""
        return shares.least_slice(self.buffer_names)

    @property
    def tracks(self) -> list[SpeedTrack]:
        return [member.track for member in self.members]


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The report of an applied step. Times in seconds, sizes in bytes.

    ``gradient_norm`` is the norm of the mean gradient before clipping; None: the strategy does not know it.
    ``scalars`` are the values that the job's loss returned beside the loss; ``options`` what the scheduler had set.
    ``weights`` fetches the weights after the step, until the next report is requested; it raises Ray's errors.
    ``slices`` are the slices that were counted in the step, for the run's record (``record.SliceSpan``): together they
    are the step's samples, each once. ``snapshot`` keeps the optimizer's state after the step (see
    ``optimizer_state.Snapshot``); it also works until the next report is requested, and raises Ray's errors. None: the
    strategy has no such state, and a run that resumes from its checkpoints starts with a new optimizer.
    ``heartbeat`` is that of shards and workers, until the next report is requested; None: there are no shards.
    """

    step: int
    loss: float
    samples: int
    seconds: float
    bytes_pushed: int
    bytes_pulled: int
    workers: tuple[WorkerStep, ...]
    weights: Callable[[], Payload]
    slices: tuple[SliceSpan, ...] = ()
    snapshot: Callable[[], Snapshot] | None = None
    gradient_norm: float | None = None
    heartbeat: Heartbeat | None = None
    scalars: Mapping[str, float | None] = field(default_factory=dict)
    options: Options = ()

    def fields(self) -> dict[str, object]:
        """The fields of the protocol's ``Step`` event."""
        ours = ("weights", "slices", "snapshot", "heartbeat", "options")
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name not in ours}
