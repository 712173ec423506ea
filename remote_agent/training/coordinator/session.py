"""What a strategy works with: the workers, the shards, the order of samples, the journal; and what it gives: steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from remote_agent.goals import Watched
from remote_agent.planning import shares
from remote_agent.planning.choice import Limits
from remote_agent.planning.survey import Survey
from remote_agent.protocol import WorkerStep
from remote_agent.training.checkpoint.optimizer_state import Shapes, Snapshot, TrainingState
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.control import Control
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.members import MembershipRecord, Rejoining, Server, WorkerHandle
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.processes.actors import Servers
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.processes.joining import Joining
from remote_agent.training.coordinator.sources import Source
from remote_agent.training.coordinator.transfer import Stream
from remote_agent.training.coordinator.validation import Validation
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.shared.flat import Payload
from remote_agent.training.shared.messages import StreamedTask
from remote_agent.training.shared.schedule import Rates
from remote_agent.training.shared.slices import SliceSpan


@dataclass(frozen=True, kw_only=True)
class OpenStep:
    """A step that a coordinator had issued, to some workers at least, when it was killed.

    Attributes:
        common: its task, without a slice.
        begun: what each worker was given that has begun it, or done it, by the worker's name.
        earlier: the steps that each of the others was not given, and has to go through first.
    """

    common: StreamedTask
    begun: Mapping[str, StreamedTask]
    earlier: Mapping[str, tuple[StreamedTask, ...]]


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """What the run was planned with, to be compared with its steps.

    Attributes:
        survey: of all hosts, as measured before the run.
        hosts: that were to take part.
        limits: of the planner's choice.
        pause_s: seconds that making the run ready took.
        place: the file that what is known of the fleet is kept in; None: nowhere.
        replanned: how often the run was made ready again for a better plan.
    """

    survey: Survey
    hosts: tuple[str, ...]
    limits: Limits
    pause_s: float
    place: Path | None = None
    replanned: int = 0


@dataclass(frozen=True, kw_only=True)
class Takeover:
    """What a coordinator knows that took a run over from one that was killed.

    Attributes:
        coordinator: its name for the workers, which take tasks of no other.
        open_step: the step that has to be ended first; None: there is none.
        last_reported_step: the last step that has an event already.
        rebalance_reason: why the batch may be cut in another way than it was; empty: that is known.
    """

    coordinator: str
    open_step: OpenStep | None = None
    last_reported_step: int = 0
    rebalance_reason: str = ""


_OVERLAP = 3
"""With ``overlap`` a round is issued this many reports before its own."""


@dataclass
class KeepSchedule:
    """After which steps a run's state is kept next, beside those that the configuration names; None: not decided yet.

    Attributes:
        copy_due: the shards' state is copied; ``recovery.backups`` says when.
        checkpoint_due: a checkpoint is made since it is time for that; ``recovery.checkpoint_timer`` says when.
        check_due: the plan is compared with what is measured then; ``plan_check`` says when.
    """

    copy_due: int | None = None
    checkpoint_due: int | None = None
    check_due: int | None = None

    def postpone(self, first: int, to: int) -> None:
        """What is due from step ``first`` on, and before ``to``, is due after ``to``."""
        if self.copy_due is not None and first <= self.copy_due < to:
            self.copy_due = to
        if self.checkpoint_due is not None and first <= self.checkpoint_due < to:
            self.checkpoint_due = to


@dataclass
class EvaluationRecord:
    """What came of the evaluations so far; ``evaluation.judge`` alone changes it."""

    watched: Watched = ()


@dataclass(frozen=True, kw_only=True)
class Session:
    """What a strategy works with: what stays the same as long as it trains, and the records of what changes.

    Attributes:
        config: the run's, as it was resolved.
        servers: the shards, in the layout's order; none where the workers reduce gradients among themselves.
        order: says which samples are next, where the run ends, and how many steps were made before, by the run that
            this one goes on from: the first step is ``order.done + 1``.
        source: where the samples come from.
        payload_bytes: what a worker gets and gives in a step.
        buffer_names: of the model's buffers that training changes.
        stopping: true once the run is to end early.
        joining: starts workers while the run is on.
        reasons: which way weights and gradients go, and why.
        shapes: of the streamed parameters, in the order of the flat buffer; empty where nothing is streamed.
        first_state: what the optimizer remembers before the first step; None: only the shards know it.
        first_loss: the measured one: that of a step whose only worker died before it told the loss, where no other
            step's is known.
        keeping: when the state is kept next.
        stream, pool: what lost shards are started again with (``recovery.rollback``).
        control: tells what the user wants of the run while it is on.
        takeover: where the run was taken over from a coordinator that was killed; None: it was not.
        validation: what the run is validated on; None: nothing.
        evaluations: what came of that so far.
        crashes: knows which of the user's calls killed workers.
        plateau: what is better, ``min`` or ``max``, to a scheduler that goes by it; empty: none does.
        rates: knows each step's learning rate.
        foreseen: what the run was planned with; None: not known.
        first_weights: of the whole model, by name, for strategies that give each worker its own alone.
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
    plateau: str = ""
    rates: Rates | None = None
    foreseen: Foreseen | None = None
    first_weights: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def members(self) -> Sequence[WorkerHandle]:
        return self.membership.members

    @property
    def away(self) -> Sequence[Rejoining]:
        """The workers that take no part now, and may again."""
        return self.membership.away

    @property
    def coordinator(self) -> str:
        """This coordinator's name for the workers; empty for a run's first."""
        return self.takeover.coordinator if self.takeover is not None else ""

    @property
    def watched(self) -> Watched:
        """What came of the evaluations so far."""
        return self.evaluations.watched

    def goes_on(self, step: int, taken: int) -> bool:
        """Whether another step follows ``step``, when the positions of the order up to ``taken`` have been used."""
        if self.stopping() or (self.order.limit is None and step >= self.config.num_iterations):
            return False
        return self.order.until(taken + 1) > taken

    def samples_left(self, step: int, taken: int, samples: int) -> int:
        """Samples of the run after ``step``, which had ``samples`` of them and used the order up to ``taken``."""
        if self.order.limit is not None:
            return max(0, self.order.limit - taken)
        return max(0, self.config.num_iterations - step) * samples

    def saves(self, step: int, begin: int, end: int) -> bool:
        """Whether a checkpoint, copy or evaluation is made of ``step``, which stays as it is until it was reported.

        Args:
            step: which.
            begin: the position of its first sample.
            end: the position after its last one.
        """
        due = (self.keeping.copy_due, self.keeping.check_due)
        return self.is_checkpoint(step) or step in due or self.is_evaluated(step, begin, end)

    def is_evaluated(self, step: int, begin: int, end: int) -> bool:
        """Whether the weights after ``step`` are evaluated; for arguments as those of :meth:`saves`."""
        if self.validation is None:
            return False
        if self.config.evaluate_every:
            return step % self.config.evaluate_every == 0
        return self.order.epoch_end(begin) <= end

    def next_evaluation(self, after: int) -> int | None:
        """The next step that is evaluated after step ``after``, in steps of one batch; None: none is."""
        if self.validation is None or (self.source.size is None and not self.config.evaluate_every):
            return None
        if self.config.evaluate_every:
            return (after // self.config.evaluate_every + 1) * self.config.evaluate_every
        order = self.order
        end = order.epoch_end(order.span(after + 1)[0])
        return order.done - (order.start - end) // order.batch

    def is_checkpoint(self, step: int) -> bool:
        """Whether a checkpoint is made after ``step``."""
        every = self.config.checkpoint_every
        return step == self.keeping.checkpoint_due or (every > 0 and step % every == 0)

    def soonest(self, step: int) -> int:
        """The next step that can be kept, once ``step`` was made: those before are under way in another manner."""
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
    """A step that is applied. Times in seconds, sizes in bytes.

    ``gradient_norm`` is that of the mean gradient, before it was clipped; None: the strategy does not know it.
    ``scalars`` are the figures that the job's loss gave beside the loss.
    ``weights`` fetches the weights after the step, until the next report is asked for; it raises one of Ray's errors.
    ``slices`` are the slices that were counted in the step, for the run's record (``record.SliceSpan``): together they
    are the step's samples, each once. ``snapshot`` has what the optimizer remembers kept as it is after the step (see
    ``optimizer_state.Snapshot``), also until the next report is asked for, and raises one of Ray's errors; None: the
    strategy can't, and a run that goes on from its checkpoints starts with a fresh optimizer.
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
    scalars: Mapping[str, float | None] = field(default_factory=dict)

    def fields(self) -> dict[str, object]:
        """The fields of the protocol's ``Step`` event."""
        ours = ("weights", "slices", "snapshot")
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name not in ours}
