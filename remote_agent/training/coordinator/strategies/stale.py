"""Trains without a common step (``ssp``, ``async``): each slice's gradient is applied as soon as it arrives.

Each worker gets slices of the global order, one after the other, as large as its share of a step of ``sync``. The
shards apply each slice separately and answer with new weights (``server.stale_shard`` says how slices are weighted).
With ``ssp`` no worker gets more than ``staleness`` slices ahead of the slowest (``staleness_clocks``); with ``async``
there is no bound. As far as the bound allows, a worker has its next slices in its queue, so it never waits for the
coordinator.

A ``step`` event is written whenever another ``batch_size`` samples are applied on all shards; it covers the slices
since the last event. So steps count the same samples as in ``sync``, but a slice may belong to the step after the one
for which it was issued. Before a checkpoint, a copy of the shards, the end of the run or a stop, slices are issued up
to the step's last sample only, and no further until all of them are applied. So a checkpoint contains the samples of
its steps, each once, and no others.

When a worker is lost, silent or late, its whole slices are reissued to the others, before any new ones. They are then
computed with newer weights. A shard counts each slice of a chunk once, so it does not matter what the worker has sent
or sends later. ``policy`` decides about the worker, and ``membership`` carries the decision out; once the worker is
back, it gets slices again.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import partial

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.members import HeldSlice, WorkerHandle
from remote_agent.training.coordinator.plan.run_plan import FirstCut
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery import shard_snapshots
from remote_agent.training.coordinator.recovery.liveness import newest_weights
from remote_agent.training.coordinator.session import Session, StepReport
from remote_agent.training.coordinator.share_balancer import ShareBalancer
from remote_agent.training.coordinator.strategies.base import Strategy, report_reissued
from remote_agent.training.coordinator.strategies.driver import Answered, Driver, Lost, Owed
from remote_agent.training.coordinator.strategies.stale_goal import Goal, next_goal
from remote_agent.training.coordinator.strategies.stale_slices import Issued, Queue, row
from remote_agent.training.coordinator.strategies.staleness_clocks import StalenessClocks
from remote_agent.training.deadlines import given_up_after, late_after
from remote_agent.training.shared.figures import whole
from remote_agent.training.shared.messages import EXCHANGE, Slice, StaleResult, StaleTask
from remote_agent.training.shared.slices import SliceSpan

LOG = logging.getLogger(__name__)


def about(config: TrainingConfig) -> str:
    """Explain the staleness, for the plan."""
    applied = "each slice is applied as it comes, so that two runs differ a little"
    if config.strategy == "async":
        return f"async: no worker ever waits for another; gradients may be of any age: {applied}"
    if not config.staleness:
        return f"staleness=0: a worker's next slice waits until every worker's last one is applied; {applied}"
    return (
        f"staleness={config.staleness}: no worker gets more than {config.staleness} slices ahead of the slowest, and a"
        f" gradient may miss as many of every worker's newest slices; {applied}"
    )


class Stale(Strategy):
    """The coordinator's part of ``ssp`` and ``async``; the configuration's strategy says whether there is a bound."""

    @classmethod
    def first_cut(cls, config: TrainingConfig, profiles: Sequence[DeviceProfile], least: int) -> FirstCut:
        return dataclasses.replace(super().first_cut(config, profiles, least), about=(about(config),))

    def steps(self, session: Session) -> Iterator[StepReport]:
        config, order = session.config, session.order
        self._session, self._balancer = session, ShareBalancer(session)
        self._clocks: StalenessClocks[WorkerHandle] = StalenessClocks(
            config.staleness if config.strategy == "ssp" else None
        )
        self._queues: dict[WorkerHandle, Queue] = {}
        self._given: Counter[WorkerHandle] = Counter()
        self._unassigned: deque[Issued] = deque()
        self._number = 0
        self._taken = self._applied = order.start
        self._step = order.done + 1
        self._ended = time.monotonic()
        with Heartbeat() as self._heartbeat:
            self._driver = Driver(session, self._balancer, self._heartbeat)
            self._membership = self._driver.membership
            yield from self._reports()

    def _reports(self) -> Iterator[StepReport]:
        session, order = self._session, self._session.order
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
                return  # the data ended with the step before
            self._adapt(counted)
            yield self._report(counted)
            counted = []
            if not session.goes_on(self._step, self._taken) and self._applied == self._taken:
                return
            self._step += 1
            if self._step > goal.step:
                self._ended = time.monotonic()
            goal = self._goal()  # the step of the next copy may have changed

    def _goal(self) -> Goal:
        session = self._session
        goal = next_goal(
            session.order,
            self._step - 1,
            self._taken,
            session.config.num_iterations,
            session.config.checkpoint_every,
            (session.keeping.copy_due, session.keeping.checkpoint_due, session.next_evaluation(self._step - 1)),
            stopping=session.stopping(),
        )
        session.keeping.postpone(self._step, goal.step)  # slices of later steps were already issued
        return goal

    # --- Submitting --------------------------------------------------------------------------------------------------

    def _issue(self, goal: Goal) -> None:
        """Give lost slices, then new ones, to all workers that may have another one, first to those with the fewest."""
        self._membership.readmit(self._step)
        self._membership.start_leaving(self._step)
        self._membership.release_idle([member for member, queue in self._queues.items() if queue.slices])
        sizes = dict(zip(self._session.members, self._balancer.cut, strict=True))
        self._clocks.set_workers([member for member, samples in sizes.items() if samples])
        while self._unassigned or self._taken < goal.end:
            free = [member for member, samples in sizes.items() if samples and self._clocks.may_begin(member)]
            if not free:
                return
            member = min(free, key=lambda each: len(self._queue(each).slices))
            if self._unassigned:
                lost = self._unassigned.popleft()
                self._submit(member, lost.task, lost.lost_by or lost.member.name)
                continue
            begin, end = self._taken, min(self._taken + sizes[member], goal.end)
            self._number, self._taken = self._number + 1, end
            own = Slice(
                index=self._number,
                indices=self._session.order.take(begin, end),
                begin=begin,
                first=begin,
                total=self._session.config.batch_size,
            )
            self._submit(member, StaleTask(own=own))

    def _submit(self, member: WorkerHandle, task: StaleTask, lost_by: str = "") -> None:
        task = dataclasses.replace(task, needs=self._clocks.give(member, task.own.index), again=bool(lost_by))
        if lost_by:
            LOG.info("step %d: slice %d of %s is reissued to %s", self._step, task.own.index, lost_by, member.name)
        self._given[member] += 1
        member.call("compute", task)
        answer = member.call_in(EXCHANGE, "exchange", task.own.index)
        queue = self._queue(member)
        if not queue.slices:
            queue.since = time.monotonic()
        queue.slices.append(Issued(task, member, self._given[member], answer, time.monotonic(), lost_by))

    def _queue(self, member: WorkerHandle) -> Queue:
        return self._queues.setdefault(member, Queue())

    # --- Waiting, and what to do when something is lost --------------------------------------------------------------

    def _settle(self) -> tuple[Issued, StaleResult] | None:
        """Wait a short time for a slice that is applied, and return it; None: there was none.

        Raises:
            TrainingError: the run can't go on: the job failed, or shards or all workers are gone.
        """
        heads = [queue.slices[0] for queue in self._queues.values() if queue.slices]
        match self._driver.next(self._step, heads, self._owed):
            case Lost(member, evidence):
                slices = self._queues.pop(member).slices  # they are issued next
                held = HeldSlice(slices[0].samples, slices[0].answer, self._late_s(slices[0]))
                self._membership.handle_failure(self._step, member, evidence, newest=self._step, held=held)
                self._unassigned.extend(slices)
            case Answered(head, result):
                self._driver.begin()
                self._clocks.applied(head.member)
                queue = self._queues.pop(head.member)
                self._queues[head.member] = queue  # to the end, so that ready workers are served in turn
                queue.slices.popleft()
                queue.since = time.monotonic()
                self._membership.worked(head.member)
                return head, result
        return None

    def _owed(self, member: WorkerHandle, computed: int) -> Owed:
        """The oldest slice that a worker owes."""
        queue = self._queues[member]
        head = queue.slices[0]
        return Owed(queue.since, self._late_s(head), self._patience_s(head), computed=computed >= head.place)

    def _patience_s(self, head: Issued) -> float:
        return given_up_after(self._session.config.slice_deadline_s, head.expected_s)

    def _late_s(self, head: Issued) -> float:
        """Seconds after which a worker is late with a slice; the time of the weights' transfer is unknown at first."""
        if not head.member.usual_call_s:
            return self._patience_s(head)
        return late_after(self._session.config.slice_deadline_s, head.expected_s)

    # --- Accounting --------------------------------------------------------------------------------------------------

    def _adapt(self, counted: list[tuple[Issued, StaleResult]]) -> None:
        self._balancer.adapt(
            self._step, ((issued.member, issued.samples, result.compute_s) for issued, result in counted)
        )
        for issued, result in counted:
            self._balancer.take_notice(self._step, issued.member, result)

    def _report(self, counted: list[tuple[Issued, StaleResult]]) -> StepReport:
        """Make the report of the slices that were applied since the last one."""
        session, begun, now = self._session, self._ended, time.monotonic()
        for issued, result in counted:
            member, stamps = issued.member, result.stamps
            member.clock.bound(issued.submitted, stamps.entered, stamps.left, now)
            member.took(stamps)
            if issued.lost_by:
                stall_s = member.clock.here(stamps.left) - issued.submitted
                report_reissued(self._session, self._step, issued.lost_by, member, issued.samples, stall_s)
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
                row(member, [each for each in counted if each[0].member is member], seconds) for member in members
            ),
            weights=partial(newest_weights, session.members, self._heartbeat),
            slices=tuple(
                SliceSpan(issued.member.name, issued.task.own.begin, issued.task.own.begin + issued.samples)
                for issued, _ in counted
            ),
            snapshot=partial(shard_snapshots.of_shards, session, self._heartbeat),
            heartbeat=self._heartbeat,
            scalars=whole(result.scalars for _, result in counted),
        )
