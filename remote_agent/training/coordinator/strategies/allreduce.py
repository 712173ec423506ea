"""Trains synchronously without a server: the workers reduce their gradients among themselves. Exact.

The samples of step ``t`` are cut into slices as in ``sync``. Each worker computes the gradient sum of its slice. All
workers reduce these sums in a group (gloo's ring), and each makes the same optimizer step on its own copy of the model.
The optimizer sees whole parameters, so any optimizer and any dtype work. ``worker.reduction`` has a worker's part.

A reduction is applied only after all workers have told the coordinator that it was complete. The commit is part of the
call of step ``t + 1``; after the last step, and after a step that is saved, it is a call of its own.

When a worker is lost, the reduction breaks for some or all of the others. They are freed at once, keep their own sums,
and form a new group. The whole lost slice is reissued to one of them, with the same samples, weights and random
numbers. Then the reduction is repeated. If it was complete for all others, it contains the lost worker's slice.

With ``deterministic`` each unit of the batch is a slice, and its gradient is reduced separately. All workers add the
units in the order of the batch, so the sum is bitwise the same for any assignment.

A lost worker is restarted, as in the other strategies. A worker that has missed a step has old weights. So at the
beginning of a step it gets the weights, the buffers and the optimizer's state from another worker
(:func:`hand_over`); then a new group is formed with it. A host that is added does the same.

The workers of one host are one peer in the ring (``process_group``): with ``n`` hosts, each link carries
``2 (n - 1) / n`` of the gradient in each direction, and the slowest link decides. The first half of a reduction (sums
to the workers that add them) is reported as push, the second half (sums to all) as pull.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import ray

from remote_agent import tls
from remote_agent.planning import units
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.protocol import WorkerStep
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import snapshots
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan.run_plan import FirstCut
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery import policy
from remote_agent.training.coordinator.recovery.liveness import answer_of, newest_weights
from remote_agent.training.coordinator.recovery.policy import Died
from remote_agent.training.coordinator.session import Session, StepReport
from remote_agent.training.coordinator.share_balancer import ShareBalancer
from remote_agent.training.coordinator.strategies.base import Strategy, report_reissued
from remote_agent.training.coordinator.strategies.driver import Answered, Driver, Lost, Owed, Stalled
from remote_agent.training.deadlines import PING_S, TRANSFER_S, given_up_after, late_after
from remote_agent.training.errors import JobError, PlacementError, TrainingError, WorkersGone
from remote_agent.training.shared import rpc
from remote_agent.training.shared.figures import whole
from remote_agent.training.shared.flat import Payload
from remote_agent.training.shared.messages import (
    PING,
    REPAIR,
    Broken,
    Failed,
    GroupMembership,
    Reduced,
    ReductionTask,
    Slice,
)
from remote_agent.training.shared.optimizer_options import Options
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.shared.slices import SliceSpan
from remote_agent.training.worker.rendezvous import Rendezvous

LOG = logging.getLogger(__name__)

MAX_BROKEN = 3
"""How often in a row a reduction may break without a lost worker."""

NETWORK_HINT = (
    "open the hosts' firewalls to each other and keep other machines from their ports (docs/hosts.md), "
    "or train with strategy=sync, where workers need only the server"
)


IN_CLEAR = "would send gradients in clear between hosts (torch's gloo has no TLS), and the cluster has `security: tls`"


Answer = Reduced | Broken | Failed


@dataclass(eq=False)
class Share:
    """A slice of a step and its worker; ``lost_by`` is the worker that had it before, ``issued`` the time of that."""

    part: Slice
    member: WorkerHandle
    lost_by: str = ""
    issued: float = 0.0


@dataclass(eq=False)
class Call:
    """A worker's part in the current reduction."""

    member: WorkerHandle
    answer: Ref[Answer]
    predicted_s: float

    @property
    def expected_s(self) -> float:
        """Usual time of the call, with the wait for the others."""
        return max(self.member.usual_call_s, self.predicted_s)


@dataclass(eq=False)
class ReductionInFlight:
    """A step in progress.

    ``due`` are the slices that still have to be given out. ``moved`` is the last reported progress of the reduction.
    """

    step: int
    samples: int
    end: int  # of the positions that were used with it
    options: Options
    shares: list[Share]
    due: list[Share] = field(default_factory=list)
    calls: dict[WorkerHandle, Call] = field(default_factory=dict)
    submitted: dict[WorkerHandle, float] = field(default_factory=dict)
    moved: int | None = None

    @property
    def spans(self) -> tuple[SliceSpan, ...]:
        """The step's final slices with their workers."""
        return tuple(
            SliceSpan(share.member.name, share.part.begin, share.part.begin + len(share.part.indices))
            for share in self.shares
        )


def worker_times(results: Mapping[WorkerHandle, Reduced], seconds: float, gathered: float) -> Iterator[WorkerStep]:
    """Where the workers' time went that had a slice, in a step of ``seconds``.

    The reduction lasts from ``gathered``, when the last worker was ready, until the worker had the sums; half of it is
    push, half pull.
    """
    for member, result in results.items():
        if result.computed:
            one_way_s = max(0.0, member.clock.here(result.stamps.left) - gathered) / 2
            compute_s = sum(each.compute_s for each in result.computed)
            samples = sum(each.samples for each in result.computed)
            yield member.times(samples, seconds, compute_s=compute_s, push_s=one_way_s, pull_s=one_way_s)


@dataclass(frozen=True, eq=False)
class Group:
    """The workers that reduce together, and the data that each of them needs."""

    places: dict[WorkerHandle, GroupMembership]

    @property
    def number(self) -> int:
        return next(iter(self.places.values())).number


class AllReduce(Strategy):
    """See the module."""

    @classmethod
    def first_cut(cls, config: TrainingConfig, profiles: Sequence[DeviceProfile], least: int) -> FirstCut:
        about = "one worker computes all, and makes the optimizer's step: nothing is exchanged"
        if len(profiles) > 1:
            about = (
                f"{len(profiles)} workers reduce gradients among themselves (gloo), and each makes the optimizer's step"
            )
        return dataclasses.replace(super().first_cut(config, profiles, least), about=(about,))

    def steps(self, session: Session) -> Iterator[StepReport]:
        if tls.enabled() and len({member.host for member in session.members}) > 1:
            hint = "train with strategy=sync where the model can be streamed (the plan says why not), or on one host"
            raise JobError(f"strategy=allreduce {IN_CLEAR}", hint=hint)
        self._session, self._balancer = session, ShareBalancer(session)
        self._group: Group | None = None
        address = ray.util.get_node_ip_address()
        try:
            self._rendezvous = Rendezvous(address)
        except OSError as error:
            cause = f"the coordinator can't listen on {address}: {error}"
            raise PlacementError(cause, hint="look at the head host's addresses and free ports") from error
        self._committed = session.order.done
        self._ended = time.monotonic()
        with Heartbeat() as self._heartbeat:
            self._driver = Driver(session, self._balancer, self._heartbeat, on_server=False)
            self._membership = self._driver.membership
            yield from self._reports()

    def _reports(self) -> Iterator[StepReport]:
        session = self._session
        current: ReductionInFlight | None = self._issue(self._committed + 1)
        while current is not None:
            results = self._settle(current)
            computed = [(member, each) for member, result in results.items() for each in result.computed]
            self._balancer.adapt(current.step, ((member, each.samples, each.compute_s) for member, each in computed))
            for member, result in results.items():
                self._membership.worked(member)
                self._balancer.take_notice(current.step, member, result)
            goes_on = session.goes_on(current.step, current.end)
            self._committed = current.step
            saved = session.saves(current.step, current.end - current.samples, current.end)
            first = current.step == session.order.done + 1  # an error of the optimizer shows before a step counts
            if not goes_on or saved or first:
                self._commit(current.step)
            ahead = self._issue(current.step + 1) if goes_on and not saved else None
            yield self._report(current, results)
            if ahead is None and session.goes_on(current.step, current.end):
                self._ended = time.monotonic()
                ahead = self._issue(current.step + 1)
            current = ahead

    # --- Submitting --------------------------------------------------------------------------------------------------

    def _issue(self, step: int) -> ReductionInFlight:
        """Submit a step to all workers; those without a share take part to get the sums."""
        self._change_members(step)
        order = self._session.order
        first, last = order.span(step)
        indices = order.take(first, last)
        slices = self._balancer.slices_of(step, last - first)
        if self._session.config.deterministic:
            # A float sum depends on the order of its parts, so each unit is a slice.
            ends = units.bounds(last - first, self._session.config.unit)
            slices = [
                (member, *each) for member, begin, end in slices for each in pairwise(ends) if begin <= each[0] < end
            ]
        coming = self._balancer.coming(step)
        shares = [
            Share(
                Slice(
                    index=index,
                    indices=indices[begin:end],
                    begin=first + begin,
                    first=first,
                    total=last - first,
                    ahead=coming.get(member, ()),
                ),
                member,
            )
            for index, (member, begin, end) in enumerate(slices)
        ]
        options = self._session.options(step)
        current = ReductionInFlight(step, last - first, last, options, shares, due=list(shares))
        self._submit(current)
        return current

    def _change_members(self, step: int) -> None:
        """Before ``step`` is issued, end the workers that have to leave, and let in those that are back."""
        self._membership.start_leaving(step)
        self._membership.release_idle()
        newcomers = self._membership.ready(step)
        if tls.enabled():
            here = self._session.members[0].host
            apart = {member: policy.Died(f"allreduce {IN_CLEAR}") for member in newcomers if member.host != here}
            self._membership.refuse(step, apart)
            newcomers = [member for member in newcomers if member not in apart]
        if newcomers:
            self._commit(self._committed)
            failed = hand_over(self._committed, self._session.members[0], newcomers, self._heartbeat)
            self._membership.refuse(step, failed)
            self._membership.readmit(step, [member for member in newcomers if member not in failed])

    def _submit(self, current: ReductionInFlight) -> None:
        """Let all living workers compute their slices and reduce."""
        members = self._session.members
        if self._group is None or list(self._group.places) != members:
            self._group = None
            if len(members) > 1:
                places = self._rendezvous.invite([member.host for member in members])
                self._group = Group(dict(zip(members, places, strict=True)))
        for member in members:
            parts = tuple(share.part for share in current.due if share.member is member)
            place = self._group.places[member] if self._group is not None else None
            task = ReductionTask(
                step=current.step,
                committed=self._committed,
                slices=parts,
                group=place,
                ordered=len(current.shares) if self._session.config.deterministic else 0,
                options=current.options,
                terms=self._session.terms,
            )
            predicted = sum(member.track.current.seconds(len(part.indices)) for part in parts)
            current.submitted[member] = time.monotonic()
            current.calls[member] = Call(member, member.call("reduce", task), predicted)
        current.due.clear()

    # --- Waiting, and what to do when something is lost --------------------------------------------------------------

    def _settle(self, current: ReductionInFlight) -> dict[WorkerHandle, Reduced]:
        """Wait until the reduction is complete for every living worker.

        Raises:
            TrainingError: the job failed, or the workers are gone or can't reach each other.
        """
        broken = 0
        while True:
            before = len(self._session.members)
            answers = self._answers(current)
            causes = [answer.cause for answer in answers.values() if isinstance(answer, Broken)]
            if not causes:
                return self._counted(current, answers)
            broken = broken + 1 if len(self._session.members) == before else 0
            if broken >= MAX_BROKEN:
                cause = f"step {current.step} could not be reduced in {broken} tries: {causes[0]}"
                raise TrainingError(cause, hint=NETWORK_HINT)
            self._call_off(current)
            self._reissue(current)
            self._submit(current)

    def _answers(self, current: ReductionInFlight) -> dict[WorkerHandle, Answer]:
        """The living workers' answers; when a worker is lost, the others are freed from the reduction."""
        answers: dict[WorkerHandle, Answer] = {}
        self._driver.begin()
        while current.calls:
            match self._driver.next(current.step, list(current.calls.values()), partial(self._owed, current)):
                case Answered(call, answer):
                    if isinstance(answer, Broken):
                        self._call_off(current)
                    del current.calls[call.member]
                    answers[call.member] = answer
                case Lost(member, evidence):
                    del current.calls[member]
                    self._membership.handle_failure(current.step, member, evidence, newest=current.step)
                    self._call_off(current)
                    self._driver.begin()
                case Stalled():
                    self._overdue(current)
        return answers

    def _owed(self, current: ReductionInFlight, member: WorkerHandle, computed: int) -> Owed | None:
        """The slices that a worker owes; a worker that waits for the others owes nothing."""
        if computed >= current.step:
            return None
        deadline_s = self._session.config.slice_deadline_s
        expected_s = max(member.track.seconds, current.calls[member].predicted_s)
        late_s, patience_s = late_after(deadline_s, expected_s), given_up_after(deadline_s, expected_s)
        return Owed(current.submitted[member], late_s, patience_s)

    def _overdue(self, current: ReductionInFlight) -> None:
        """Repeat the reduction in a new group if it makes no progress though all have computed and answer pings."""
        calls = {member: member.call_in(PING, "progress") for member in current.calls}
        total = 0
        for member, call in calls.items():
            try:
                total += answer_of(member, call, self._heartbeat, PING_S)[1]
            except rpc.NoAnswer:
                return  # the next check decides
        if total == current.moved:
            self._call_off(current)
        current.moved = total

    def _call_off(self, current: ReductionInFlight) -> None:
        """End the group; workers that wait in it are freed, and answer whether the reduction was complete."""
        group, self._group = self._group, None
        if group is None:
            return
        LOG.info("step %d: reduction group %d is called off", current.step, group.number)
        self._rendezvous.give_up(next(iter(group.places.values())))
        for member in current.calls:
            member.call_in(PING, "give_up", group.number)

    def _reissue(self, current: ReductionInFlight) -> None:
        """Reissue slices of lost workers to living ones."""
        busy: dict[WorkerHandle, float] = {}
        for share in current.shares:
            if share.member in self._session.members:
                continue
            size = len(share.part.indices)
            share.lost_by = share.lost_by or share.member.name
            share.member = self._balancer.substitute(size, busy, current.step)
            share.issued = time.monotonic()
            to = share.member.name
            LOG.info("step %d: %d samples of %s are reissued to %s", current.step, size, share.lost_by, to)
            busy[share.member] = busy.get(share.member, 0.0) + share.member.track.current.seconds(size)
            current.due.append(share)

    def _counted(self, current: ReductionInFlight, answers: dict[WorkerHandle, Answer]) -> dict[WorkerHandle, Reduced]:
        """The answers of a reduction; raises TrainingError unless it contains each of the step's samples once."""
        results: dict[WorkerHandle, Reduced] = {}
        for member in self._session.members:
            result = answers[member]
            assert isinstance(result, Reduced), "no reduction was broken"
            results[member] = result
            if result.samples != current.samples:
                cause = f"step {current.step} counted {result.samples} of {current.samples} samples"
                raise TrainingError(cause, hint="start the run again from its last checkpoint", host=member.host)
        return results

    def _commit(self, step: int) -> None:
        """Commit ``step`` now, as no next call does it, or its weights are needed before; raises TrainingError."""
        calls = {member: member.call("commit", step) for member in self._session.members}
        for member, call in calls.items():
            try:
                patience = given_up_after(self._session.config.slice_deadline_s, member.usual_call_s)
                failed = answer_of(member, call, self._heartbeat, patience)
            except rpc.NoAnswer as error:
                self._membership.handle_failure(step, member, policy.Died(rpc.describe(error)), newest=step)
            else:
                if isinstance(failed, Failed):
                    raise failed.error(member.host)

    # --- Accounting --------------------------------------------------------------------------------------------------

    def _weights(self) -> Payload:
        """The weights after the last committed step, from the first living worker that answers."""
        try:
            return newest_weights(self._session.members, self._heartbeat)
        except rpc.NoAnswer as error:
            cause = f"no worker gave the weights: {rpc.describe(error)}"
            raise WorkersGone(cause, hint="look at the hosts, then start the run again") from error

    def _report(self, current: ReductionInFlight, results: dict[WorkerHandle, Reduced]) -> StepReport:
        """Make the step's report; times go from one step's end to the next, on one clock."""
        begun, now = self._ended, time.monotonic()
        for member, result in results.items():
            stamps = result.stamps
            member.clock.bound(current.submitted[member], stamps.entered, stamps.left, now)
            member.took(stamps)
        for share in current.shares:
            if share.lost_by and share.member in results:
                samples = len(share.part.indices)
                report_reissued(self._session, current.step, share.lost_by, share.member, samples, now - share.issued)
        self._ended = max(member.clock.here(result.stamps.left) for member, result in results.items())
        gathered = max(member.clock.here(result.ready) for member, result in results.items())
        seconds = max(self._ended - begun, 1e-9)
        norm = next(iter(results.values())).norm
        one_way = (len(results) - 1) * self._session.payload_bytes
        return StepReport(
            step=current.step,
            loss=next(iter(results.values())).loss,
            samples=current.samples,
            seconds=seconds,
            bytes_pushed=one_way,
            bytes_pulled=one_way,
            workers=tuple(worker_times(results, seconds, gathered)),
            weights=self._weights,
            slices=current.spans,
            snapshot=lambda: snapshots.of_worker(self._session.members),
            scalars=whole(result.scalars for result in results.values()),
            gradient_norm=norm if math.isfinite(norm) else None,
            options=current.options,
        )


# --- State for a worker that returns ----------------------------------------------------------------------------------


def hand_over(
    step: int, giver: WorkerHandle, newcomers: Sequence[WorkerHandle], heartbeat: Heartbeat
) -> dict[WorkerHandle, Died]:
    """Give ``newcomers`` the state of ``giver`` after ``step``, which it has applied.

    Between two steps all workers have the same weights, buffers and optimizer state. The others wait, since the next
    step would change them. This takes as long as sending a checkpoint over the link.

    Returns:
        The workers that could not load the state, and why.
    """
    giver.call("snapshot")
    # Inside a value Ray does not fetch them before the call; otherwise pings would wait for that.
    given = (giver.call("weights"), giver.call("snapshot_taken"))
    calls = [(member, member.call_in(REPAIR, "take_over", step, given)) for member in newcomers]
    failed: dict[WorkerHandle, Died] = {}
    for member, call in calls:
        try:
            answer = answer_of(member, call, heartbeat, TRANSFER_S)
        except rpc.NoAnswer as error:
            failed[member] = Died(f"it could not take over the weights: {rpc.describe(error)}")
        else:
            if answer is not None:
                failed[member] = Died(answer.cause)
    return failed
