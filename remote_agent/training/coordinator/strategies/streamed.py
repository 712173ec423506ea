"""Synchronous training over streams, exact: after each step the weights are those of one process on the same batches.

Step ``t``: each worker computes the gradient sum of its slice and pushes it to the shards, which add the slices up,
make the optimizer's step as soon as a chunk has them all, and stream the new weights back (``wire``,
``shared_memory``). The coordinator takes no part in that. It says who computes what, one step ahead: while step ``t``
is computed, step ``t + 1`` waits in the workers' queues. The price: a change of shares takes effect one step later.

When a worker is lost, the others wait for its slice in the middle of the step. The slice is issued again, whole, to
one of them: same samples, same weights (those of step ``t - 1`` are kept until ``t`` is whole), same random numbers.
So is the lost worker's slice of the step that was submitted ahead, once that step's turn has come. A shard counts each
slice of a chunk once, so it does not matter whether the lost worker had pushed none, some or all of it. So a slice is
issued again on mere suspicion, when its worker is silent or it is late by its own measure: whoever is first counts, and
what comes after the step is over is dropped. What becomes of the worker is decided by ``policy``, and carried out by
``membership``.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator

from remote_agent.protocol import SliceReissued
from remote_agent.training.checkpoint.optimizer_state import Snapshot
from remote_agent.training.coordinator import snapshots
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan.share_balancer import LAST_HINT, ShareBalancer
from remote_agent.training.coordinator.recovery import policy
from remote_agent.training.coordinator.recovery.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery.liveness import SERVER_HINT, check_beats, check_servers, newest_weights
from remote_agent.training.coordinator.recovery.membership import Membership
from remote_agent.training.coordinator.recovery.takeover import resume_open_step
from remote_agent.training.coordinator.session import OpenStep, Session, StepReport
from remote_agent.training.coordinator.strategies.base import Strategy
from remote_agent.training.coordinator.strategies.step_in_flight import SliceAssignment, StepInFlight, samples_of
from remote_agent.training.deadlines import HUNG_DEADLINES, LATE_FACTOR, LATE_S, LOOK_S, PING_S, SLICE_FACTOR
from remote_agent.training.errors import ServerGone, WeightsGone
from remote_agent.training.shared import rpc
from remote_agent.training.shared.figures import whole
from remote_agent.training.shared.flat import Payload
from remote_agent.training.shared.messages import (
    REPAIR,
    Failed,
    NotBegun,
    ShardLinkDown,
    Slice,
    StreamedResult,
    StreamedTask,
)
from remote_agent.training.shared.slices import SliceSpan

LOG = logging.getLogger(__name__)

MAX_LATE = 3
"""Times that a step's deadline may pass for a worker whose process answers."""


class Streamed(Strategy):
    """See the module."""

    _local_batch = 0
    """Samples of a local step; 0: a slice is one gradient."""

    def steps(self, session: Session) -> Iterator[StepReport]:
        """Train; see :class:`~remote_agent.training.coordinator.strategies.Strategy`."""
        self._session = session
        self._crew = self._new_crew(session)
        self._ended = time.monotonic()
        self._loss = session.first_loss
        self._before: StepInFlight | None = None
        self._leaving: list[WorkerHandle] = []
        self._looked = 0.0
        self._newest = session.order.done
        with Heartbeat() as self._heartbeat:
            self._roster = Membership(session, self._crew, self._heartbeat)
            open_step, session.open_step = session.open_step, None
            news, session.news = session.news, ""
            if news:
                self._crew.announce(session.order.done, news)
            first = self._take_up(open_step) if open_step is not None else self._issue(session.order.done + 1)
            yield from self._reports(first)

    def _reports(self, turn: StepInFlight | None) -> Iterator[StepReport]:
        while turn is not None:
            # The weights of a step that is to be saved stay where they are until they have been fetched.
            ahead = self._issue(turn.step + 1) if self._goes_on(turn) and not self._is_saved(turn) else None
            self._settle(turn, ahead)
            self._dismiss(turn, ahead)
            self._learn(turn)
            yield self._report(turn)
            self._before = turn if turn.delayed else None
            if ahead is None and self._goes_on(turn):
                self._ended = time.monotonic()
                ahead = self._issue(turn.step + 1)
            turn = ahead

    def _learn(self, turn: StepInFlight) -> None:
        """Shares follow what the step showed."""
        self._crew.adapt(
            turn.step,
            (
                (part.member, part.samples, part.result.compute_s)
                for part in turn.parts
                if isinstance(part.result, StreamedResult) and part.samples
            ),
        )
        for part in turn.parts:
            if isinstance(part.result, StreamedResult):
                self._roster.worked(part.member)
                if part.result.at_most and part.member in self._session.crew:
                    self._crew.reduced(turn.step, part.member, part.result.at_most)

    def _new_crew(self, session: Session) -> ShareBalancer:
        """The crew, which decides who gets how much."""
        return ShareBalancer(session)

    # --- Submitting --------------------------------------------------------------------------------------------------

    def _goes_on(self, turn: StepInFlight) -> bool:
        return turn.delayed or self._session.goes_on(turn.step, turn.end)

    def _is_saved(self, turn: StepInFlight) -> bool:
        return self._session.saves(turn.step, turn.end - turn.common.samples, turn.end)

    def _is_delayed(self, turn: StepInFlight) -> bool:
        """Whether the step's new weights are waited for in the step after it, of which there has to be one."""
        return False

    def _issue(self, step: int) -> StepInFlight:
        """Submit a step to all workers: those without a share take part to get the weights."""
        session = self._session
        self._newest = step
        self._roster.gather(step)
        leaving = self._roster.leaving()
        self._roster.dismiss(step, leaving)
        self._leaving += leaving
        first, last = self._span(step)
        indices = session.order.take(first, last)
        slices = self._crew.slices(last - first)
        own = {
            member: Slice(index=index, indices=indices[begin:end], begin=first + begin, first=first, total=last - first)
            for index, (member, begin, end) in enumerate(slices)
        }
        common = StreamedTask(
            step=step,
            spans=tuple(SliceSpan(member.name, first + begin, first + end) for member, begin, end in slices),
            own=None,
            local_batch=self._local_batch,
            coordinator=session.coordinator,
            watched=session.watched if session.plateau else (),
        )
        turn = StepInFlight(common, last)
        if self._is_delayed(turn):
            turn.common, turn.delayed = dataclasses.replace(common, delayed=True), True
        for member in session.crew:
            task = turn.task(own.get(member))
            turn.parts.append(SliceAssignment(task, member, member.call("step", task), time.monotonic()))
        return turn

    def _take_up(self, open_step: OpenStep) -> StepInFlight:
        """Go on with a step that a coordinator before had issued: what nobody has begun of it is issued now."""
        self._newest = open_step.common.step
        turn, missing = resume_open_step.turn_of(self._session, open_step)
        for owner, task in missing.items():
            turn.parts.append(self._reissue(turn.parts, task, owner))
        return turn

    def _span(self, step: int) -> tuple[int, int]:
        """Positions (begin, end) of a step in the order, for all workers; asked for once for each step, in order."""
        return self._session.order.span(step)

    # --- Waiting, and what to do when something is lost --------------------------------------------------------------

    def _settle(self, turn: StepInFlight, ahead: StepInFlight | None) -> None:
        """Wait until the step is done on every worker that takes part.

        Raises:
            TrainingError: it can't be: the job failed, or server or workers are gone.
        """
        turn.begun = began = time.monotonic()
        self._hand_out(turn)
        late = 0
        while (waiting := turn.awaited) or turn.orphans:
            now = time.monotonic()
            if now - self._looked >= LOOK_S:
                self._looked = now
                self._look(turn, ahead)
                continue
            if not waiting:
                self._roster.wait(LOOK_S)
                continue
            position = rpc.first_ready([part.answer for part in waiting], LOOK_S)
            if position is None:
                if now - began > self._patience(waiting):
                    late += 1
                    self._not_whole(turn, late)
                    began = now
                continue
            part = waiting[position]
            try:
                answer = rpc.get(part.answer, PING_S)
            except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
                self._lose(turn, ahead, part.member, policy.Died(rpc.describe(error)))
                began, late = time.monotonic(), 0
                continue
            if isinstance(answer, Failed):
                raise answer.error(part.member.host)
            if isinstance(answer, ShardLinkDown):
                check_servers(self._session)
                self._lose(turn, ahead, part.member, policy.ShardLinkDown(answer.cause))
                began, late = time.monotonic(), 0
                continue
            if isinstance(answer, NotBegun):
                part.answer = part.member.call_in(REPAIR, "repair", part.task)
                continue
            part.result = answer

    def _patience(self, waiting: list[SliceAssignment]) -> float:
        expected = max(part.predicted_s for part in waiting)
        return self._session.config.slice_deadline_s + SLICE_FACTOR * expected

    def _not_whole(self, turn: StepInFlight, late: int) -> None:
        """Everybody answers, all slices are sent, and the step is not whole for very long."""
        LOG.info("step %d: not whole though all workers answer, for the %d. time", turn.step, late)
        check_servers(self._session)
        if late >= MAX_LATE:
            cause = f"step {turn.step} was not whole though every slice was sent"
            raise ServerGone(cause, hint=SERVER_HINT, host=self._session.servers[0].host)

    def _look(self, turn: StepInFlight, ahead: StepInFlight | None) -> None:
        """See who does not answer, whose slice is late, and who is back."""
        for member in dict.fromkeys(part.member for part in turn.awaited):
            evidence = self._evidence(turn, member)
            if evidence is not None:
                self._lose(turn, ahead, member, evidence)
        check_beats(self._session, self._heartbeat)
        self._roster.look(turn.step)
        if not self._session.crew and self._roster.readmit(turn.step):
            self._adopt(turn, ahead)

    def _evidence(self, turn: StepInFlight, member: WorkerHandle) -> policy.Evidence | None:
        """What speaks against a worker that has not answered."""
        beat = self._heartbeat.of(member.actor)
        if beat.ended:
            return policy.Died(beat.ended)
        if beat.is_silent:
            return policy.Silent(beat.silent_s)
        own = [part for part in turn.awaited if part.member is member and part.samples]
        # A worker that has done its part waits for the others: that says nothing about it.
        owed = [part for part in own if part.repair or beat.pulse.done < turn.step]
        if not owed:
            return None
        begun = max(turn.begun, *(part.submitted for part in owed))
        waited = beat.asked - begun
        if len(self._session.crew) == 1:
            # There is nobody who could do it in its place.
            return policy.Hung(waited) if waited > self._patience(owed) else None
        return policy.Late(waited) if waited > self._deadline(own) else None

    def _deadline(self, parts: list[SliceAssignment]) -> float:
        """Seconds after which a worker that has these to do is late."""
        expected = sum(part.computing_s for part in parts)
        return min(self._session.config.slice_deadline_s, LATE_FACTOR * expected + LATE_S)

    def _lose(
        self, turn: StepInFlight, ahead: StepInFlight | None, gone: WorkerHandle, evidence: policy.Evidence
    ) -> None:
        """Go on without a worker; its slices, of the step ahead too, are issued again.

        So are those that were only on their way when the worker answered: they may not have come.
        """
        if gone in self._leaving:
            self._leaving.remove(gone)
            self._roster.dismissed(gone)
        elif gone in self._session.crew:
            own = next((part for part in turn.parts if part.member is gone and not part.repair), None)
            patience = HUNG_DEADLINES * self._deadline([own] if own is not None else [])
            late = (own.samples, own.answer) if own is not None and isinstance(evidence, policy.Late) else None
            self._roster.handle_failure(turn.step, gone, evidence, newest=self._newest, patience_s=patience, late=late)
        for each in (turn, ahead):
            if each is None:
                continue
            for orphan in [part for part in each.parts if part.member is gone]:
                if each is ahead and not turn.delayed:
                    # Whoever were given it now would wait for its step, and do no slice of the present one meanwhile.
                    each.parts.remove(orphan)
                    each.orphans += [orphan] if orphan.task.own is not None else []
                elif orphan.result is None or orphan.lost_by or each.delayed:
                    self._pass_on(orphan, each, each.parts, each.parts)
        for parts in (turn.earlier, [] if self._before is None else self._before.parts):
            for orphan in [part for part in parts if part.member is gone]:
                self._pass_on(orphan, turn, parts, turn.earlier)

    def _pass_on(
        self, orphan: SliceAssignment, turn: StepInFlight, parts: list[SliceAssignment], to: list[SliceAssignment]
    ) -> None:
        """Take a lost worker's part out of ``parts``, and put its slice, issued again, in ``to``."""
        parts.remove(orphan)
        if orphan.task.own is None:
            return
        delayed = turn.delayed or self._before is not None
        if any(not delayed or member.entered <= orphan.task.step for member in self._session.crew):
            to.append(self._reissue(to, orphan.task, orphan.owner))
        elif delayed:
            # What is open of two rounds at once can't be taken up by somebody who has neither.
            raise WeightsGone("the last worker was lost", hint=LAST_HINT, host=orphan.member.host)
        else:
            turn.orphans.append(orphan)

    def _hand_out(self, turn: StepInFlight) -> None:
        """Issue again what was lost of a step before it was its turn."""
        if self._session.crew:
            orphans, turn.orphans = turn.orphans, []
            for orphan in orphans:
                turn.parts.append(self._reissue(turn.parts, orphan.task, orphan.owner))

    def _reissue(self, parts: list[SliceAssignment], task: StreamedTask, lost_by: str) -> SliceAssignment:
        busy: dict[WorkerHandle, float] = {}
        for part in parts:
            busy[part.member] = busy.get(part.member, 0.0) + part.member.track.current.seconds(part.samples)
        substitute = self._crew.substitute(samples_of(task), busy, task.step)
        answer = substitute.call_in(REPAIR, "repair", task)
        LOG.info("step %d: %d samples of %s are reissued to %s", task.step, samples_of(task), lost_by, substitute.name)
        return SliceAssignment(task, substitute, answer, time.monotonic(), lost_by, repair=True)

    def _adopt(self, turn: StepInFlight, ahead: StepInFlight | None) -> None:
        """Nobody was left, and now somebody is back: the steps under way are theirs."""
        for each in (turn, ahead):
            if each is None:
                continue
            orphans, each.orphans = each.orphans, []
            each.begun = time.monotonic()
            for number, member in enumerate(self._session.crew):
                given = orphans.pop(0) if orphans and not number else None
                task = each.task(given.task.own if given is not None else None)
                lost_by = given.member.name if given is not None else ""
                each.parts.append(SliceAssignment(task, member, member.call("step", task), each.begun, lost_by))
            each.orphans = orphans
        self._hand_out(turn)

    def _dismiss(self, turn: StepInFlight, ahead: StepInFlight | None) -> None:
        """Let those go who were to leave, and have done all that they were given."""
        busy = {part.member for each in (turn, ahead) if each is not None for part in each.awaited}
        busy |= {part.member for part in turn.parts} if turn.delayed else set()
        for member in [member for member in self._leaving if member not in busy]:
            self._leaving.remove(member)
            self._roster.dismissed(member)

    # --- Accounting --------------------------------------------------------------------------------------------------

    def _weights(self) -> Payload:
        return newest_weights(self._session.crew, self._heartbeat)

    def _snapshot(self) -> Snapshot:
        """Have the shards keep what the optimizer remembers."""
        return snapshots.of_shards(self._session)

    def _report(self, turn: StepInFlight) -> StepReport:
        """The step's event, from one step's end to the next, on one clock."""
        begun, now = self._ended, time.monotonic()
        results = turn.streamed()
        if turn.inherited:  # who issued it, and when, is not known
            begun = min((part.member.clock.here(result.stamps.entered) for part, result in results), default=now)
        else:
            for part, result in results:
                part.member.clock.bound(part.submitted, result.stamps.entered, result.stamps.left, now)
        self._tell_reissued(turn)
        self._ended = max((part.member.clock.here(result.stamps.left) for part, result in results), default=now)
        seconds = max(self._ended - begun, 1e-9)
        counted = [(result.weight, result.loss) for part, result in results if result.weight]
        if counted:  # a slice whose worker died after it was counted is not among them
            self._loss = sum(weight * loss for weight, loss in counted) / sum(weight for weight, _ in counted)
        for part, result in results:
            part.member.usual_call_s = max(0.9 * part.member.usual_call_s, result.stamps.left - result.stamps.entered)
        return StepReport(
            step=turn.step,
            loss=self._loss,
            samples=turn.common.samples,
            seconds=seconds,
            bytes_pushed=sum(result.bytes_out for _, result in results),
            bytes_pulled=sum(result.bytes_in for _, result in results),
            workers=turn.times(seconds, now),
            weights=self._weights,
            slices=turn.counted(),
            snapshot=self._snapshot,
            scalars=whole(result.scalars for _, result in results),
        )

    def _tell_reissued(self, turn: StepInFlight) -> None:
        for part in (*turn.parts, *turn.earlier):
            if part.lost_by and isinstance(part.result, StreamedResult):
                self._session.journal.write(
                    SliceReissued,
                    step=part.task.step,
                    worker=part.lost_by,
                    to=part.member.name,
                    samples=part.samples,
                    stall_s=max(0.0, part.member.clock.here(part.result.stamps.left) - part.submitted),
                )
