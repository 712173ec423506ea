"""Trains synchronously with streamed gradients; after each step the weights equal those of one process.

In step ``t``, each worker computes the gradient sum of its slice and pushes it to the shards. A shard adds the slices,
makes the optimizer's step for a chunk as soon as all slices of it have arrived, and streams the new weights back
(``wire``, ``shared_memory``). No tensor passes through the coordinator. It assigns the slices one step ahead: while
step ``t`` is computed, step ``t + 1`` waits in the workers' queues. So a change of shares takes effect one step later.

When a worker is lost, the others wait for its slice in the middle of the step. The whole slice is reissued to one of
them, with the same samples, weights (those of step ``t - 1`` are kept until ``t`` is complete) and random numbers. The
lost worker's slice of the next step is reissued once the current step is complete. A shard counts each slice of a chunk
once, so it does not matter how much of it the lost worker had pushed. For this reason a slice can be reissued on
suspicion, when its worker is silent or late: the first gradient counts, and gradients that arrive after the step are
dropped. ``driver`` detects failed workers, ``policy`` decides about them, and ``membership`` carries the decision out.

A worker that takes part from step ``t + 1`` on gets the weights of step ``t`` once step ``t`` is complete. If only such
workers are left in step ``t``, they are restarted like the lost ones, and the first one that is back makes both steps.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from remote_agent.training.checkpoint.optimizer_state import Snapshot
from remote_agent.training.coordinator.members import HeldSlice, WorkerHandle
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery import policy, shard_snapshots
from remote_agent.training.coordinator.recovery.liveness import (
    SERVER_HINT,
    check_servers,
    check_weights,
    newest_weights,
)
from remote_agent.training.coordinator.session import OpenStep, Session, StepReport
from remote_agent.training.coordinator.share_balancer import LAST_HINT, ShareBalancer
from remote_agent.training.coordinator.strategies.base import Strategy, report_reissued
from remote_agent.training.coordinator.strategies.driver import Answered, Driver, Lost, Owed, Stalled
from remote_agent.training.coordinator.strategies.step_in_flight import (
    SliceAssignment,
    StepInFlight,
    bytes_moved,
    peer_of,
    resumed,
    samples_of,
    whole_slice,
)
from remote_agent.training.deadlines import given_up_after, late_after
from remote_agent.training.errors import ServerGone, WeightsGone
from remote_agent.training.shared.figures import whole
from remote_agent.training.shared.messages import REPAIR, NotBegun, Slice, StreamedResult, StreamedTask
from remote_agent.training.shared.slices import SliceSpan

LOG = logging.getLogger(__name__)

MAX_LATE = 3
"""How often a step's deadline may pass for a worker whose process answers."""


class Streamed(Strategy):
    """The coordinator's part of ``sync``; see the module."""

    _local_batch = 0
    """Samples of a local step; 0: a slice is one gradient."""

    def steps(self, session: Session) -> Iterator[StepReport]:
        self._session = session
        self._balancer = self._new_balancer(session)
        self._ended = time.monotonic()
        self._loss = session.first_loss
        self._before: StepInFlight | None = None
        self._newest = session.order.done
        with Heartbeat() as self._heartbeat:
            self._driver = Driver(session, self._balancer, self._heartbeat)
            self._membership = self._driver.membership
            yield from self._reports(self._first_step())

    def _first_step(self) -> StepInFlight:
        takeover, done = self._session.takeover, self._session.order.done
        if takeover is not None and takeover.rebalance_reason:
            self._balancer.announce(done, takeover.rebalance_reason)
        open_step = takeover.open_step if takeover is not None else None
        return self._resume(open_step) if open_step is not None else self._issue(done + 1)

    def _reports(self, current: StepInFlight | None) -> Iterator[StepReport]:
        while current is not None:
            # The weights of a step with a checkpoint must not change until they have been fetched.
            ahead = self._issue(current.step + 1) if self._goes_on(current) and not self._is_saved(current) else None
            self._settle(current, ahead)
            self._release(current, ahead)
            self._learn(current)
            yield self._report(current)
            self._before = current if current.delayed else None
            if ahead is None and self._goes_on(current):
                self._ended = time.monotonic()
                ahead = self._issue(current.step + 1)
            current = ahead

    def _learn(self, current: StepInFlight) -> None:
        """Update the shares with the times of the step."""
        self._balancer.adapt(
            current.step,
            (
                (part.member, part.samples, part.result.compute_s)
                for part in current.parts
                if isinstance(part.result, StreamedResult) and part.samples
            ),
        )
        for part in current.parts:
            if isinstance(part.result, StreamedResult):
                self._membership.worked(part.member)
                self._balancer.take_notice(current.step, part.member, part.result)

    def _new_balancer(self, session: Session) -> ShareBalancer:
        """Make the balancer, which decides each worker's share."""
        return ShareBalancer(session)

    # --- Submitting --------------------------------------------------------------------------------------------------

    def _goes_on(self, current: StepInFlight) -> bool:
        return current.delayed or self._session.goes_on(current.step, current.end)

    def _is_saved(self, current: StepInFlight) -> bool:
        return self._session.saves(current.step, current.end - current.common.samples, current.end)

    def _is_delayed(self, current: StepInFlight) -> bool:
        """Whether workers wait for the step's new weights only in the next step, which has to exist."""
        return False

    def _issue(self, step: int) -> StepInFlight:
        """Submit a step to all workers; those without a share take part to get the weights."""
        session = self._session
        self._newest = step
        self._membership.wait_for_members(step)
        self._membership.start_leaving(step)
        first, last = self._span(step)
        indices = session.order.take(first, last)
        slices = self._balancer.slices_of(step, last - first)
        coming = self._balancer.coming(step)
        own = {
            member: Slice(
                index=index,
                indices=indices[begin:end],
                begin=first + begin,
                first=first,
                total=last - first,
                ahead=coming.get(member, ()),
            )
            for index, (member, begin, end) in enumerate(slices)
        }
        common = StreamedTask(
            step=step,
            spans=tuple(SliceSpan(member.name, first + begin, first + end) for member, begin, end in slices),
            own=None,
            local_batch=self._local_batch,
            coordinator=session.coordinator,
            options=session.options(step),
            peers=self._peers([member for member, _, _ in slices]),
        )
        current = StepInFlight(common, last)
        if self._is_delayed(current):
            current.common, current.delayed = dataclasses.replace(common, delayed=True), True
        for member in session.members:
            task = current.task(own.get(member))
            current.parts.append(SliceAssignment(task, member, member.call("step", task), time.monotonic()))
        return current

    def _peers(self, members: Sequence[WorkerHandle]) -> tuple[str, ...]:
        """The relay of each one's slice; empty where nothing is added up."""
        peers = tuple(self._peer(member) for member in members)
        return peers if any(peers) else ()

    def _peer(self, member: WorkerHandle) -> str:
        """Its relay; empty: it has none."""
        entry = self._session.joining.entry
        return entry.peer(member.host) if entry is not None else ""

    def _resume(self, open_step: OpenStep) -> StepInFlight:
        """Continue a step that a killed coordinator had issued; issue the slices that no worker has started."""
        self._newest = open_step.common.step
        current, missing = resumed(self._session, open_step)
        for owner, task in missing.items():
            self._reissue(current.parts, task, owner)
        return current

    def _span(self, step: int) -> tuple[int, int]:
        """Positions (begin, end) of a step in the order, for all workers; call it once for each step, in order."""
        return self._session.order.span(step)

    # --- Waiting, and what to do when something is lost --------------------------------------------------------------

    def _settle(self, current: StepInFlight, ahead: StepInFlight | None) -> None:
        """Wait until the step is done on every worker that takes part.

        Raises:
            TrainingError: the run can't go on: the job failed, or servers or workers are gone.
        """
        current.begun = time.monotonic()
        self._issue_unassigned(current, ahead)
        self._driver.begin()
        while (awaited := current.awaited) or current.unassigned:
            sending = [part.member for part in self._before.parts] if self._before is not None else []
            match self._driver.next(current.step, awaited, partial(self._owed, current), sending):
                case Answered(part, NotBegun()):
                    part.answer = part.member.call_in(REPAIR, "repair", part.task)
                case Answered(part, result):
                    part.result = result
                case Lost(member, evidence):
                    self._lose(current, ahead, member, evidence)
                    self._driver.begin()
                case Stalled(times):
                    self._stalled(current, times)
                case None if not self._session.members:
                    if self._membership.readmit(current.step):
                        self._issue_again(current, ahead)
                    else:
                        check_weights(self._session, self._heartbeat, current.step)

    def _stalled(self, current: StepInFlight, times: int) -> None:
        """Handle a step that stays incomplete for very long though all workers answer and all slices are sent."""
        LOG.info("step %d: not whole though all workers answer, for the %d. time", current.step, times)
        check_servers(self._session)
        if times >= MAX_LATE:
            cause = f"step {current.step} was not whole though every slice was sent"
            raise ServerGone(cause, hint=SERVER_HINT, host=self._session.servers[0].host)

    def _owed(self, current: StepInFlight, member: WorkerHandle, computed: int) -> Owed | None:
        """The slices that a worker owes; a worker that waits for the others owes nothing."""
        own = [part for part in current.awaited if part.member is member and part.samples]
        owed = [part for part in own if part.repair or computed < current.step]
        if not owed:
            return None
        return Owed(
            since=max(current.begun, *(part.submitted for part in owed)),
            late_s=self._late_s(own),
            patience_s=given_up_after(self._session.config.slice_deadline_s, max(part.expected_s for part in owed)),
        )

    def _late_s(self, parts: Iterable[SliceAssignment]) -> float:
        """Seconds after which a worker with these parts is late."""
        return late_after(self._session.config.slice_deadline_s, sum(part.computing_s for part in parts))

    def _lose(
        self, current: StepInFlight, ahead: StepInFlight | None, gone: WorkerHandle, evidence: policy.Evidence
    ) -> None:
        """Continue without a worker, and reissue its slices, also those of the next step.

        Slices that were still being sent when the worker answered are reissued too, since they may not have arrived.
        """
        own = next((part for part in current.parts if part.member is gone and not part.repair), None)
        held = HeldSlice(own.samples, own.answer, self._late_s([own])) if own is not None else None
        self._membership.handle_failure(current.step, gone, evidence, newest=self._newest, held=held)
        for each in (current, ahead):
            if each is None:
                continue
            for lost in [part for part in each.parts if part.member is gone]:
                if each is ahead and not current.delayed:
                    # A worker with a slice of the next step waits for that step and can't do one of this step.
                    each.parts.remove(lost)
                    each.unassigned += [lost] if lost.task.own is not None else []
                elif lost.result is None or lost.lost_by or each.delayed:
                    self._reassign(lost, each, each.parts, each.parts)
        for parts in (current.earlier, [] if self._before is None else self._before.parts):
            for lost in [part for part in parts if part.member is gone]:
                self._reassign(lost, current, parts, current.earlier)
        if current.unassigned:
            self._issue_unassigned(current, ahead)

    def _reassign(
        self, lost: SliceAssignment, current: StepInFlight, parts: list[SliceAssignment], to: list[SliceAssignment]
    ) -> None:
        """Remove a lost worker's part from ``parts``, and put its reissued slice into ``to``."""
        if lost not in parts:
            return  # another worker computes its whole slice
        parts.remove(lost)
        if lost.task.own is None:
            return
        if not self._all_came_later(lost.task.step):
            self._reissue(to, lost.task, lost.owner)
        elif current.delayed or self._before is not None:
            # A worker without the weights of both open rounds can't continue them.
            raise WeightsGone("the last worker was lost", hint=LAST_HINT, host=lost.member.host)
        else:
            current.unassigned.append(lost)

    def _all_came_later(self, step: int) -> bool:
        """Whether no living worker can compute a slice of ``step``, since all of them joined for a later step."""
        return all(member.entered > step for member in self._session.members)

    def _issue_unassigned(self, current: StepInFlight, ahead: StepInFlight | None) -> None:
        """Reissue slices that were lost while no worker could do them; restart workers that wait for them."""
        if self._all_came_later(current.step):
            for member in list(self._session.members) if current.unassigned else ():
                self._lose(current, ahead, member, policy.TooLate(current.step))
            return
        unassigned, current.unassigned = current.unassigned, []
        for lost in unassigned:
            self._reissue(current.parts, lost.task, lost.owner)

    def _reissue(self, parts: list[SliceAssignment], task: StreamedTask, lost_by: str) -> None:
        """Have another worker do a slice: of a part, one with the same relay, or else one that does the whole slice."""
        near = None
        if task.own is not None and task.numbered[1].of:
            peer = peer_of(task)
            near = [each for each in self._session.members if each.entered <= task.step and self._peer(each) == peer]
            if not near:
                near, task = None, whole_slice(task, self._session.order)
                same = [part for part in parts if part.task.step == task.step and peer_of(part.task) == peer]
                if any(part.task.more for part in same):
                    return
                for part in same:  # they are lost, or done, and none of them may have come
                    parts.remove(part)
        busy: dict[WorkerHandle, float] = {}
        for part in parts:
            busy[part.member] = busy.get(part.member, 0.0) + part.member.track.current.seconds(part.samples)
        substitute = self._balancer.substitute(samples_of(task), busy, task.step, near)
        answer = substitute.call_in(REPAIR, "repair", task)
        LOG.info("step %d: %d samples of %s are reissued to %s", task.step, samples_of(task), lost_by, substitute.name)
        parts.append(SliceAssignment(task, substitute, answer, time.monotonic(), lost_by, repair=True))

    def _issue_again(self, current: StepInFlight, ahead: StepInFlight | None) -> None:
        """Reissue the current steps to workers that came back after all had been lost."""
        for each in (current, ahead):
            if each is None:
                continue
            unassigned, each.unassigned = each.unassigned, []
            each.begun = time.monotonic()
            for number, member in enumerate(self._session.members):
                # A part of a slice is given to whoever can do the rest of it, too.
                given = unassigned.pop(0) if unassigned and not number and not each.common.peers else None
                task = each.task(given.task.own if given is not None else None)
                lost_by = given.member.name if given is not None else ""
                each.parts.append(SliceAssignment(task, member, member.call("step", task), each.begun, lost_by))
            each.unassigned = unassigned
        self._issue_unassigned(current, ahead)

    def _release(self, current: StepInFlight, ahead: StepInFlight | None) -> None:
        """End workers that have to leave and have finished their slices."""
        busy = {part.member for each in (current, ahead) if each is not None for part in each.awaited}
        busy |= {part.member for part in current.parts} if current.delayed else set()
        self._membership.release_idle(busy)

    # --- Accounting --------------------------------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        return shard_snapshots.of_shards(self._session, self._heartbeat)

    def _report(self, current: StepInFlight) -> StepReport:
        """Make the step's report; times go from one step's end to the next, on one clock."""
        begun, now = self._ended, time.monotonic()
        results = current.streamed()
        if current.inherited:  # its time of issue is unknown
            begun = min((part.member.clock.here(result.stamps.entered) for part, result in results), default=now)
        else:
            for part, result in results:
                part.member.clock.bound(part.submitted, result.stamps.entered, result.stamps.left, now)
        self._report_reissued(current)
        self._ended = max((part.member.clock.here(result.stamps.left) for part, result in results), default=now)
        seconds = max(self._ended - begun, 1e-9)
        counted = [(result.weight, result.loss) for part, result in results if result.weight]
        if counted:  # a slice whose worker died after it was counted is not among them
            self._loss = sum(weight * loss for weight, loss in counted) / sum(weight for weight, _ in counted)
        for part, result in results:
            part.member.took(result.stamps)
        pushed, pulled = bytes_moved(results, self._session.joining.entry)
        return StepReport(
            step=current.step,
            loss=self._loss,
            samples=current.common.samples,
            seconds=seconds,
            bytes_pushed=pushed,
            bytes_pulled=pulled,
            workers=current.times(seconds, now),
            weights=partial(newest_weights, self._session.members, self._heartbeat),
            slices=current.counted(),
            snapshot=self._snapshot,
            heartbeat=self._heartbeat,
            scalars=whole(result.scalars for _, result in results),
            options=current.common.options,
        )

    def _report_reissued(self, current: StepInFlight) -> None:
        for part in (*current.parts, *current.earlier):
            if part.lost_by and isinstance(part.result, StreamedResult):
                stall_s = part.member.clock.here(part.result.stamps.left) - part.submitted
                report_reissued(self._session, part.task.step, part.lost_by, part.member, part.samples, stall_s)
