"""Synchronous training over streams, exact: after each step the weights are those of one process on the same batches.

Step ``t``: each worker computes the gradient sum of its slice and pushes it to the shards, which add the slices up,
make the optimizer's step as soon as a chunk has them all, and stream the new weights back (``exchange``, ``lane``).
The coordinator takes no part in that. It says who computes what, one step ahead: while step ``t`` is computed, step
``t + 1`` waits in the workers' queues. The price: a change of shares takes effect one step later.

When a worker is lost, the others wait for its slice in the middle of the step. The slice is issued again, whole, to
one of them: same samples, same weights (those of step ``t - 1`` are kept until ``t`` is whole), same random numbers.
So is the lost worker's slice of the step that was submitted ahead, once that step's turn has come. A shard counts each
slice of a chunk once, so it does not matter whether the lost worker had pushed none, some or all of it. So a slice is
issued again on mere suspicion, when its worker is silent or it is late by its own measure: whoever is first counts, and
what comes after the step is over is dropped. What becomes of the worker is decided by ``policy``, and carried out by
``roster``.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator

from remote_agent.protocol import SliceReissued
from remote_agent.training import rpc
from remote_agent.training.data.record import SliceSpan
from remote_agent.training.deadlines import (
    HUNG_DEADLINES,
    LATE_FACTOR,
    LATE_S,
    LOOK_S,
    PING_S,
    SERVER_SILENT_S,
    SLICE_FACTOR,
)
from remote_agent.training.errors import ServerGone, WorkersGone
from remote_agent.training.faults import policy
from remote_agent.training.faults.heartbeat import Heartbeat
from remote_agent.training.flat import Payload
from remote_agent.training.messages import Failed, Slice, StreamedResult, StreamedTask, Unlinked
from remote_agent.training.saving import snapshots
from remote_agent.training.saving.optimizer_state import Snapshot
from remote_agent.training.session import Member, OpenStep, Session, StepReport
from remote_agent.training.strategies import inheriting
from remote_agent.training.strategies.crew import LAST_HINT, Crew
from remote_agent.training.strategies.liveness import SERVER_HINT, check_beats, check_servers, newest_weights
from remote_agent.training.strategies.roster import Roster
from remote_agent.training.strategies.turns import Part, Turn, samples_of
from remote_agent.training.working.worker import REPAIR

MOST_LATE = 3
"""Times that a step's deadline may pass for a worker whose process answers."""


class Streamed:
    """See the module."""

    _local_batch = 0
    """Samples of a local step; 0: a slice is one gradient."""

    def steps(self, session: Session) -> Iterator[StepReport]:
        """Train; see :class:`~remote_agent.training.strategies.Strategy`."""
        self._session = session
        self._crew = self._new_crew(session)
        self._ended = time.monotonic()
        self._loss = math.nan
        self._before: Turn | None = None
        self._leaving: list[Member] = []
        self._looked = 0.0
        self._newest = session.order.done
        with Heartbeat() as self._heartbeat:
            self._roster = Roster(session, self._crew, self._heartbeat)
            open_step, session.open_step = session.open_step, None
            news, session.news = session.news, ""
            if news:
                self._crew.announce(session.order.done, news)
            first = self._take_up(open_step) if open_step is not None else self._issue(session.order.done + 1)
            yield from self._reports(first)

    def _reports(self, turn: Turn | None) -> Iterator[StepReport]:
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

    def _learn(self, turn: Turn) -> None:
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

    def _new_crew(self, session: Session) -> Crew:
        """The crew, which decides who gets how much."""
        return Crew(session)

    # --- Submitting --------------------------------------------------------------------------------------------------

    def _goes_on(self, turn: Turn) -> bool:
        return turn.delayed or self._session.goes_on(turn.step, turn.end)

    def _is_saved(self, turn: Turn) -> bool:
        return self._session.saves(turn.step)

    def _is_delayed(self, turn: Turn) -> bool:
        """Whether the step's new weights are waited for in the step after it, of which there has to be one."""
        return False

    def _issue(self, step: int) -> Turn:
        """Submit a step to all workers: those without a share take part to get the weights."""
        session = self._session
        self._newest = step
        self._roster.take_in(step)
        while not session.crew:
            self._roster.wait(LOOK_S)
            self._roster.look(step)
            self._roster.take_in(step)
        leaving = self._roster.leaving()
        self._roster.dismiss(step, leaving)
        self._leaving += leaving
        first, last = self._span(step)
        indices = session.order.take(first, last)
        slices = self._crew.slices(last - first)
        own = {
            member: Slice(index=index, indices=indices[begin:end], begin=first + begin)
            for index, (member, begin, end) in enumerate(slices)
        }
        common = StreamedTask(
            step=step,
            spans=tuple(SliceSpan(member.name, first + begin, first + end) for member, begin, end in slices),
            own=None,
            local_batch=self._local_batch,
            coordinator=session.coordinator,
        )
        turn = Turn(common, last)
        if self._is_delayed(turn):
            turn.common, turn.delayed = dataclasses.replace(common, delayed=True), True
        for member in session.crew:
            task = turn.task(own.get(member))
            turn.parts.append(Part(task, member, member.actor.call("step", task), time.monotonic()))
        return turn

    def _take_up(self, open_step: OpenStep) -> Turn:
        """Go on with a step that a coordinator before had issued: what nobody has begun of it is issued now."""
        self._newest = open_step.common.step
        turn, missing = inheriting.turn_of(self._session, open_step)
        for owner, task in missing.items():
            turn.parts.append(self._reissue(turn.parts, task, owner))
        return turn

    def _span(self, step: int) -> tuple[int, int]:
        """Positions (begin, end) of a step in the order, for all workers; asked for once for each step, in order."""
        return self._session.order.span(step)

    # --- Waiting, and what to do when something is lost --------------------------------------------------------------

    def _settle(self, turn: Turn, ahead: Turn | None) -> None:
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
            if isinstance(answer, Unlinked):
                check_servers(self._session)
                self._lose(turn, ahead, part.member, policy.Unlinked(answer.cause))
                began, late = time.monotonic(), 0
                continue
            part.result = answer

    def _patience(self, waiting: list[Part]) -> float:
        expected = max(part.predicted_s for part in waiting)
        return self._session.config.slice_deadline_s + SLICE_FACTOR * expected

    def _not_whole(self, turn: Turn, late: int) -> None:
        """Everybody answers, all slices are sent, and the step is not whole for very long."""
        check_servers(self._session)
        if late >= MOST_LATE:
            cause = f"step {turn.step} was not whole though every slice was sent"
            raise ServerGone(cause, hint=SERVER_HINT, host=self._session.server_host)

    def _look(self, turn: Turn, ahead: Turn | None) -> None:
        """See who does not answer, whose slice is late, and who is back."""
        check_beats(self._session, self._heartbeat, SERVER_SILENT_S)
        for member in dict.fromkeys(part.member for part in turn.awaited):
            evidence = self._evidence(turn, member)
            if evidence is not None:
                self._lose(turn, ahead, member, evidence)
        self._roster.look(turn.step)
        if not self._session.crew and self._roster.take_in(turn.step):
            self._adopt(turn, ahead)

    def _evidence(self, turn: Turn, member: Member) -> policy.Evidence | None:
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

    def _deadline(self, parts: list[Part]) -> float:
        """Seconds after which a worker that has these to do is late."""
        expected = sum(part.computing_s for part in parts)
        return min(self._session.config.slice_deadline_s, LATE_FACTOR * expected + LATE_S)

    def _lose(self, turn: Turn, ahead: Turn | None, gone: Member, evidence: policy.Evidence) -> None:
        """Go on without a worker; its slices, of the step ahead too, are issued again.

        So are those that were only on their way when the worker answered: they may not have come.
        """
        if gone in self._leaving:
            self._leaving.remove(gone)
        elif gone in self._session.crew:
            own = next((part for part in turn.parts if part.member is gone and not part.repair), None)
            patience = HUNG_DEADLINES * self._deadline([own] if own is not None else [])
            late = (own.samples, own.answer) if own is not None and isinstance(evidence, policy.Late) else None
            self._roster.part_with(turn.step, gone, evidence, newest=self._newest, patience_s=patience, late=late)
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

    def _pass_on(self, orphan: Part, turn: Turn, parts: list[Part], to: list[Part]) -> None:
        """Take a lost worker's part out of ``parts``, and put its slice, issued again, in ``to``."""
        parts.remove(orphan)
        if orphan.task.own is None:
            return
        if self._session.crew:
            to.append(self._reissue(to, orphan.task, orphan.owner))
        elif turn.delayed or self._before is not None:
            # What is open of two rounds at once can't be taken up by somebody who has neither.
            raise WorkersGone("the last worker was lost", hint=LAST_HINT, host=orphan.member.host)
        else:
            turn.orphans.append(orphan)

    def _hand_out(self, turn: Turn) -> None:
        """Issue again what was lost of a step before it was its turn."""
        if self._session.crew:
            orphans, turn.orphans = turn.orphans, []
            for orphan in orphans:
                turn.parts.append(self._reissue(turn.parts, orphan.task, orphan.owner))

    def _reissue(self, parts: list[Part], task: StreamedTask, lost_by: str) -> Part:
        busy: dict[Member, float] = {}
        for part in parts:
            busy[part.member] = busy.get(part.member, 0.0) + part.member.track.current.seconds(part.samples)
        substitute = self._crew.substitute(samples_of(task), busy)
        answer = substitute.actor.call_in(REPAIR, "repair", task)
        return Part(task, substitute, answer, time.monotonic(), lost_by, repair=True)

    def _adopt(self, turn: Turn, ahead: Turn | None) -> None:
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
                each.parts.append(Part(task, member, member.actor.call("step", task), each.begun, lost_by))
            each.orphans = orphans
        self._hand_out(turn)

    def _dismiss(self, turn: Turn, ahead: Turn | None) -> None:
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

    def _report(self, turn: Turn) -> StepReport:
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
        counted = [(part.samples, result.loss) for part, result in results if part.samples]
        if counted:  # a slice whose worker died after it was counted is not among them
            self._loss = sum(samples * loss for samples, loss in counted) / sum(samples for samples, _ in counted)
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
        )

    def _tell_reissued(self, turn: Turn) -> None:
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
