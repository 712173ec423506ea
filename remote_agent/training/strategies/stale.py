"""``ssp`` and ``async``: no worker waits for a whole step; each slice's gradient is applied as soon as it is there.

Each worker gets slices of the global order, one after the other, as large as its part of a step of ``sync``. The shards
apply each by itself and answer it with fresh weights (``exchange.stale_shard`` says how a slice counts beside others).
With ``ssp`` no worker gets more than ``staleness`` slices ahead of the slowest (``pacing``); with ``async`` there is no
bound. While the bound allows it a worker has its next slices in its queue, so it never waits for the coordinator.

A ``step`` event is written each time that another ``batch_size`` samples are applied on all shards; it tells of the
slices that came since the event before. So steps count the same samples as those of ``sync``, though a slice may belong
to the step after the one that it was issued for. Where a checkpoint is to be made, at the end, and where the run is
told to stop, slices are issued up to that step's last sample and no further until all of them are applied: a checkpoint
holds the samples of its steps, each once, and nothing else.

A lost worker's slices are issued again, whole, to the others, before any new ones. They are computed with newer weights
than they would have been. A shard counts each slice of a chunk once, so it does not matter what had been sent of them.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from remote_agent.protocol import SliceReissued, WorkerStep
from remote_agent.training import rpc
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.data.record import SliceSpan
from remote_agent.training.deadlines import PING_S, SLICE_FACTOR, TRANSFER_S
from remote_agent.training.flat import Payload
from remote_agent.training.messages import Failed, Slice, StaleResult, StaleTask, Unlinked
from remote_agent.training.rpc import Ref
from remote_agent.training.saving import snapshots
from remote_agent.training.saving.optimizer_state import Snapshot
from remote_agent.training.session import Member, Session, StepReport
from remote_agent.training.strategies.crew import Crew
from remote_agent.training.strategies.liveness import check_servers, silent
from remote_agent.training.strategies.pacing import Pace
from remote_agent.training.working.worker import EXCHANGE

MOST_LATE = 3
"""Times that a slice's deadline may pass for a worker whose process answers."""


def about(config: TrainingConfig) -> str:
    """For the plan: what staleness means for the user."""
    applied = "each slice is applied as it comes, so that two runs differ a little"
    if config.strategy == "async":
        return f"async: no worker ever waits for another; gradients may be of any age: {applied}"
    if not config.staleness:
        return f"staleness=0: a worker's next slice waits until every worker's last one is applied; {applied}"
    return (
        f"staleness={config.staleness}: no worker gets more than {config.staleness} slices ahead of the slowest, and a"
        f" gradient may miss as many of every worker's newest slices; {applied}"
    )


@dataclass(frozen=True)
class Goal:
    """Slices are issued up to position ``end``, the last one of ``step``, and then have to be applied first."""

    step: int
    end: int


def next_goal(order: SampleOrder, after: int, taken: int, last: int, every: int, *, stopping: bool) -> Goal:
    """Where all workers have to come together next.

    Args:
        order: the run's.
        after: the last step that is whole.
        taken: slices have been issued up to this position.
        last: the run's last step.
        every: a checkpoint is made after every so many steps; 0: only the last one.
        stopping: no step that is not under way is to be begun.
    """
    if order.limit is not None:
        last = min(last, _step_of(order, order.limit))
    if stopping:
        last = min(last, max(_step_of(order, taken), after + 1))
    steps = [last]
    if every:
        steps.append((after // every + 1) * every)
    if order.limit is not None and order.span(last)[1] - order.span(last)[0] < order.batch:
        steps.append(last - 1)  # no slice is in the short last step and in the one before
    step = min(step for step in steps if step > after)
    return Goal(step, order.span(step)[1])


def _step_of(order: SampleOrder, end: int) -> int:
    """The step that is under way, or whole, when the positions up to ``end`` have been used."""
    return order.done + max(1, math.ceil((end - order.start) / order.batch))


@dataclass(eq=False)
class Issued:
    """A slice that a worker has; ``lost_by`` names who had it before."""

    task: StaleTask
    member: Member
    answer: Ref[StaleResult | Failed | Unlinked]
    submitted: float
    lost_by: str = ""

    @property
    def samples(self) -> int:
        """Of the slice."""
        return len(self.task.own.indices)


@dataclass(eq=False)
class Queue:
    """What a worker has to do: the oldest slice first, which is awaited since ``since`` and was ``late`` times late."""

    slices: deque[Issued]
    since: float = 0.0
    late: int = 0

    def awaited(self) -> None:
        """The oldest slice is another one now."""
        self.since, self.late = time.monotonic(), 0


class Stale:
    """See the module; the configuration's strategy says whether there is a bound."""

    def steps(self, session: Session) -> Iterator[StepReport]:
        """Train; see :class:`~remote_agent.training.strategies.Strategy`."""
        config, order = session.config, session.order
        self._session, self._crew = session, Crew(session)
        self._pace: Pace[Member] = Pace(config.staleness if config.strategy == "ssp" else None)
        self._queues: dict[Member, Queue] = {}
        self._orphans: deque[Issued] = deque()
        self._number = 0
        self._taken = self._applied = order.start
        self._step = order.done + 1
        self._ended = time.monotonic()
        goal = self._goal()
        counted: list[tuple[Issued, StaleResult]] = []
        while True:
            if session.stopping():
                goal = self._goal()
            self._issue(goal)
            done = self._settle()
            if done is not None:
                counted.append(done)
                self._applied += done[0].samples
            if self._applied < order.span(self._step)[1]:
                continue
            if not counted:
                return  # the data has ended where the step before did
            self._adapt(counted)
            yield self._report(counted)
            counted = []
            if not session.goes_on(self._step, self._taken) and self._applied == self._taken:
                return
            self._step += 1
            if self._step > goal.step:
                self._ended = time.monotonic()
                goal = self._goal()

    def _goal(self) -> Goal:
        session = self._session
        return next_goal(
            session.order,
            self._step - 1,
            self._taken,
            session.config.num_iterations,
            session.config.checkpoint_every,
            stopping=session.stopping(),
        )

    # --- Submitting --------------------------------------------------------------------------------------------------

    def _issue(self, goal: Goal) -> None:
        """Give slices to all who may have another one: lost ones first, and to who has the fewest."""
        sizes = dict(zip(self._session.crew, self._crew.cut, strict=True))
        self._pace.set_workers([member for member, samples in sizes.items() if samples])
        while self._orphans or self._taken < goal.end:
            free = [member for member, samples in sizes.items() if samples and self._pace.may_begin(member)]
            if not free:
                return
            member = min(free, key=lambda each: len(self._queue(each).slices))
            if self._orphans:
                orphan = self._orphans.popleft()
                self._submit(member, orphan.task, orphan.lost_by or orphan.member.name)
                continue
            begin, end = self._taken, min(self._taken + sizes[member], goal.end)
            self._number, self._taken = self._number + 1, end
            own = Slice(index=self._number, indices=self._session.order.take(begin, end), begin=begin)
            self._submit(member, StaleTask(own=own))

    def _submit(self, member: Member, task: StaleTask, lost_by: str = "") -> None:
        task = replace(task, needs=self._pace.give(member, task.own.index), again=bool(lost_by))
        member.actor.call("stale_slice", task)
        answer = member.actor.call_in(EXCHANGE, "stale_exchange", task.own.index)
        queue = self._queue(member)
        if not queue.slices:
            queue.awaited()
        queue.slices.append(Issued(task, member, answer, time.monotonic(), lost_by))

    def _queue(self, member: Member) -> Queue:
        return self._queues.setdefault(member, Queue(deque()))

    # --- Waiting, and what to do when something is lost --------------------------------------------------------------

    def _settle(self) -> tuple[Issued, StaleResult] | None:
        """Wait until a slice is applied, and give it; None where a worker was late or lost in its place.

        Raises:
            TrainingError: the run can't go on: the job failed, or shards or all workers are gone.
        """
        waiting = [queue for queue in self._queues.values() if queue.slices]
        assert waiting, "some worker can always go on"
        heads = [queue.slices[0] for queue in waiting]
        due = [queue.since + self._patience(queue.slices[0]) for queue in waiting]
        position = rpc.first_ready([head.answer for head in heads], min(due) - time.monotonic())
        if position is None:
            self._overdue([queue for queue, end in zip(waiting, due, strict=True) if end <= time.monotonic()])
            return None
        head = heads[position]
        try:
            answer = rpc.get(head.answer, PING_S)
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
            self._lose(head.member, rpc.describe(error))
            return None
        if isinstance(answer, Failed):
            raise answer.error(head.member.host)
        if isinstance(answer, Unlinked):
            check_servers(self._session)
            self._lose(head.member, answer.cause)
            return None
        self._pace.applied(head.member)
        queue = self._queues.pop(head.member)
        self._queues[head.member] = queue  # to the end: of several that are ready, each has its turn
        queue.slices.popleft()
        queue.awaited()
        return head, answer

    def _patience(self, head: Issued) -> float:
        member = head.member
        expected = max(member.usual_call_s, member.track.current.seconds(head.samples))
        return self._session.config.slice_deadline_s + SLICE_FACTOR * expected

    def _overdue(self, queues: list[Queue]) -> None:
        """These workers' slices did not come in time, though nobody else holds them up."""
        check_servers(self._session)
        members = [queue.slices[0].member for queue in queues]
        quiet = silent(members)
        for queue, member in zip(queues, members, strict=True):
            cause = f"no answer to a slice within {time.monotonic() - queue.slices[0].submitted:.0f} s"
            queue.late += 1
            if member in quiet:
                self._lose(member, cause)
            elif queue.late >= MOST_LATE:
                self._lose(member, f"{cause}, though its process lives")
            else:
                queue.since = time.monotonic()

    def _lose(self, gone: Member, cause: str) -> None:
        """Go on without a worker; its slices are the next to be issued."""
        self._crew.lose(self._step, gone, cause)
        self._orphans.extend(self._queues.pop(gone).slices)

    # --- Accounting --------------------------------------------------------------------------------------------------

    def _adapt(self, counted: list[tuple[Issued, StaleResult]]) -> None:
        self._crew.adapt(self._step, ((issued.member, issued.samples, result.compute_s) for issued, result in counted))
        for issued, result in counted:
            if result.at_most:
                self._crew.reduced(self._step, issued.member, result.at_most)

    def _report(self, counted: list[tuple[Issued, StaleResult]]) -> StepReport:
        """The step's event, of the slices that were applied since the last one."""
        begun, now = self._ended, time.monotonic()
        for issued, result in counted:
            member, stamps = issued.member, result.stamps
            member.clock.bound(issued.submitted, stamps.entered, stamps.left, now)
            member.usual_call_s = max(0.9 * member.usual_call_s, stamps.left - stamps.entered)
            if issued.lost_by:
                self._session.journal.write(
                    SliceReissued,
                    step=self._step,
                    worker=issued.lost_by,
                    to=member.name,
                    samples=issued.samples,
                )
        self._ended = max(begun, *(issued.member.clock.here(result.stamps.left) for issued, result in counted))
        seconds = max(self._ended - begun, 1e-9)
        samples = sum(issued.samples for issued, _ in counted)
        members = dict.fromkeys(issued.member for issued, _ in counted)
        return StepReport(
            step=self._step,
            loss=sum(result.loss * issued.samples for issued, result in counted) / samples,
            samples=samples,
            seconds=seconds,
            bytes_pushed=sum(result.bytes_out for _, result in counted),
            bytes_pulled=sum(result.bytes_in for _, result in counted),
            workers=tuple(
                _row(member, [each for each in counted if each[0].member is member], seconds) for member in members
            ),
            weights=self._weights,
            slices=tuple(
                SliceSpan(issued.member.name, issued.task.own.begin, issued.task.own.begin + issued.samples)
                for issued, _ in counted
            ),
            snapshot=self._snapshot,
        )

    def _weights(self) -> Payload:
        """The shards' weights, through whichever living worker gives them first."""
        *others, last = self._session.crew
        for member in others:
            try:
                return rpc.get(member.actor.call("weights"), TRANSFER_S)
            except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
                continue  # it is found lost with its next slice
        return rpc.get(last.actor.call("weights"), TRANSFER_S)

    def _snapshot(self) -> Snapshot:
        """Have the shards keep what the optimizer remembers."""
        return snapshots.of_shards(self._session)


def _row(member: Member, counted: list[tuple[Issued, StaleResult]], seconds: float) -> WorkerStep:
    """One worker's part of a step. Push and pull beside computing cost no time: what is told is what they added."""
    compute_s = sum(result.compute_s for _, result in counted)
    push_s, pull_s = sum(result.push_s for _, result in counted), sum(result.pull_s for _, result in counted)
    free = max(0.0, seconds - compute_s)
    shown = min(1.0, free / (push_s + pull_s)) if push_s + pull_s > 0 else 0.0
    return WorkerStep(
        worker=member.name,
        host=member.host,
        device=member.device,
        samples=sum(issued.samples for issued, _ in counted),
        compute_s=compute_s,
        push_s=shown * push_s,
        pull_s=shown * pull_s,
        wait_s=max(0.0, free - shown * (push_s + pull_s)),
    )
