"""Synchronous training over Ray objects, exact: after each step the weights are those of one process.

Step ``t``: its samples are cut into slices by the workers' speed; each worker computes the gradient sum of its slice
with the weights of step ``t - 1``; the server adds the sums, divides by the number of samples, and makes the
optimizer's step.

The coordinator only passes refs: weights and gradients go straight between server and workers, and while step ``t`` is
computed, step ``t + 1`` is submitted already, naming the weights of ``t`` as an argument. Ray starts each call the
moment its arguments are there, so the coordinator's own work (events, shares) is off the path. The price: a change of
shares takes effect one step later.

When a worker dies, falls silent, or its slice misses its deadline, the slice is issued again, whole, to a living
worker: same samples, same weights, same random numbers; the calls that waited for the lost answer are dropped and
submitted anew. The server takes exactly one gradient for each slice, so a late answer changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from remote_agent.protocol import SliceReissued
from remote_agent.training import rpc
from remote_agent.training.data.record import SliceSpan
from remote_agent.training.deadlines import HEARTBEAT_S, LOOK_S, PING_S, SERVER_S, SLICE_FACTOR, TRANSFER_S
from remote_agent.training.errors import LossNotFinite, ServerGone, TrainingError
from remote_agent.training.faults.heartbeat import Heartbeat
from remote_agent.training.flat import Payload
from remote_agent.training.messages import Applied, Failed, Refused, Skipped, SliceResult, SliceTask
from remote_agent.training.rpc import Ref
from remote_agent.training.saving import snapshots
from remote_agent.training.session import Member, Session, StepReport
from remote_agent.training.strategies.crew import Crew
from remote_agent.training.strategies.liveness import SERVER_HINT
from remote_agent.training.working.worker import PING

MOST_LATE = 3
"""Times that a step's deadline may pass for a worker whose process answers."""

MOST_REPAIRS = 20
"""Times that one step is repaired before the run gives up."""

Outcome = SliceResult | Failed | Skipped


@dataclass(eq=False)
class Ticket:
    """A slice that a worker computes; ``lost_by`` names who had it before."""

    task: SliceTask
    member: Member
    gradient: Ref[Payload | None]
    outcome: Ref[Outcome]
    submitted: float
    lost_by: str = ""


@dataclass(eq=False)
class Turn:
    """One step under way: its slices' tickets in their order, and what the server will answer to them."""

    step: int
    weights: Ref[Payload]
    tickets: list[Ticket]
    end: int = 0  # of the positions that were used with it
    pulls: int = 0
    submitted: float = 0.0
    new_weights: Ref[Payload] = field(init=False)
    answer: Ref[Applied | Refused | Failed] = field(init=False)


class Sync:
    """See the module."""

    def steps(self, session: Session) -> Iterator[StepReport]:
        """Train; see :class:`~remote_agent.training.strategies.Strategy`."""
        self._session = session
        self._crew = Crew(session)
        with Heartbeat() as self._heartbeat:
            self._watch()
            yield from self._steps(session)

    def _steps(self, session: Session) -> Iterator[StepReport]:
        self._published = time.monotonic()
        assert session.weights is not None, "the server has published the first weights"
        turn: Turn | None = self._issue(session.order.done + 1, session.weights)
        while turn is not None:
            # What a step that is to be saved left behind stays as it is until it has been kept.
            following = None if session.saves(turn.step) else self._following(turn)
            planned = turn.new_weights
            applied = self._settle(turn)
            results = self._results(turn)
            observed = zip(turn.tickets, results, strict=True)
            self._crew.adapt(
                turn.step, ((ticket.member, result.samples, result.compute_s) for ticket, result in observed)
            )
            for ticket, result in zip(turn.tickets, results, strict=True):
                if result.at_most:
                    self._crew.reduced(turn.step, ticket.member, result.at_most)
            if following is not None and turn.new_weights is not planned:
                following = self._issue(turn.step + 1, turn.new_weights)
            yield self._report(turn, results, applied)
            turn = following if following is not None else self._following(turn)

    # --- Submitting --------------------------------------------------------------------------------------------------

    def _following(self, turn: Turn) -> Turn | None:
        """The step after ``turn``, submitted on the weights that ``turn`` will give; None when ``turn`` is the last."""
        if not self._session.goes_on(turn.step, turn.end):
            return None
        return self._issue(turn.step + 1, turn.new_weights)

    def _issue(self, step: int, weights: Ref[Payload]) -> Turn:
        """Submit a step: a slice for each worker with a share, and their application."""
        first, last = self._session.order.span(step)
        indices = self._session.order.take(first, last)
        turn = Turn(step, weights, [], last)
        for index, (member, begin, end) in enumerate(self._crew.slices(last - first)):
            task = SliceTask(step=step, index=index, indices=indices[begin:end], begin=first + begin)
            turn.tickets.append(self._submit(turn, task, member))
        self._submit_application(turn)
        return turn

    def _submit(self, turn: Turn, task: SliceTask, member: Member, lost_by: str = "") -> Ticket:
        gradient, outcome = member.actor.call_pair("compute", task, turn.weights)
        turn.pulls += 1
        return Ticket(task, member, gradient, outcome, time.monotonic(), lost_by)

    def _submit_application(self, turn: Turn) -> None:
        slices = [ref for ticket in turn.tickets for ref in (ticket.outcome, ticket.gradient)]
        turn.submitted = time.monotonic()
        turn.new_weights, turn.answer = self._session.server.call_pair("apply", turn.step, *slices)

    # --- Waiting, and what to do when something is lost --------------------------------------------------------------

    def _settle(self, turn: Turn) -> Applied:
        """Wait until the step is applied; issue lost slices again until it is.

        Raises:
            TrainingError: it can't be: the job failed, or server or workers are gone.
        """
        late = 0
        for _ in range(MOST_REPAIRS):
            expected = max(
                max(ticket.member.usual_call_s, ticket.member.track.current.seconds(len(ticket.task.indices)))
                for ticket in turn.tickets
            )
            patience = self._session.config.slice_deadline_s + SLICE_FACTOR * expected
            began = time.monotonic()
            if self._wait(turn, patience):
                try:
                    answer = rpc.get(turn.answer, SERVER_S)
                except (*rpc.Lost, rpc.CallFailed):
                    answer = Refused(step=turn.step)
                if isinstance(answer, Failed):
                    raise answer.error(self._session.server_host)
                if isinstance(answer, Applied):
                    return answer
            waited = time.monotonic() - began
            late = late + 1 if waited >= patience else 0
            self._repair(turn, waited, late)
        raise TrainingError(
            f"step {turn.step} failed {MOST_REPAIRS} times", hint="look at the hosts' logs and the network between them"
        )

    def _wait(self, turn: Turn, patience: float) -> bool:
        """Whether the server answers within ``patience`` seconds, and before a worker that owes a slice is silent."""
        end = time.monotonic() + patience
        while (left := end - time.monotonic()) > 0:
            if rpc.first_ready([turn.answer], min(left, LOOK_S)) is not None:
                return True
            if self._silent(turn):
                return False
        return False

    def _silent(self, turn: Turn) -> dict[Member, str]:
        """Who owes a slice and has not answered a ping for :data:`HEARTBEAT_S`, and what is to be said of it."""
        silent = {}
        for ticket in turn.tickets:
            seconds = self._heartbeat.of(ticket.member.actor).silent_s
            if seconds > HEARTBEAT_S and rpc.first_ready([ticket.outcome], 0.0) is None:
                silent[ticket.member] = f"no answer for {seconds:.1f} s"
        return silent

    def _watch(self) -> None:
        # A server that nobody asks would take itself to be left alone.
        servers = [server.actor for server in self._session.servers]
        self._heartbeat.watch([member.actor for member in self._session.crew], servers)

    def _repair(self, turn: Turn, waited: float, late: int) -> None:
        """Find what the step failed of, take it out, and submit the step's missing parts again.

        ``late`` is how many times in a row the deadline has passed: a worker whose process answers is given
        :data:`MOST_LATE` of them, since a step can be late for reasons that are not its own.
        """
        lost = self._silent(turn)
        doubtful, slow = False, False
        silence = f"no answer to a slice within {waited:.0f} s"
        for ticket in turn.tickets:
            if rpc.first_ready([ticket.outcome], 0.0) is None:
                if late and (late >= MOST_LATE or not _answers(ticket.member)):
                    lost.setdefault(ticket.member, silence)
                slow |= late > 0
                continue
            try:
                self._check(ticket.member, rpc.get(ticket.outcome, PING_S))
            except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
                doubtful |= not isinstance(error, rpc.ActorLost)  # it may be the weights that are gone
                lost.setdefault(ticket.member, rpc.describe(error))
        if doubtful or not lost:
            self._check_server(late > 0 and not lost and not slow)
        if not lost:
            silent = [ticket.member for ticket in turn.tickets if not _answers(ticket.member)]
            lost = dict.fromkeys(silent, silence if late else "its host or process is gone")
        if slow and not lost:
            return
        # Without anyone lost a gradient was: with no way to tell whose, all slices are computed again.
        orphans = [ticket for ticket in turn.tickets if not lost or ticket.member in lost]
        for member, cause in lost.items():
            self._crew.lose(turn.step, member, cause)
        self._watch()
        for orphan in orphans:
            turn.tickets.remove(orphan)
            turn.tickets.append(self._reissue(turn, orphan))
        turn.tickets.sort(key=lambda ticket: ticket.task.index)
        self._submit_application(turn)

    def _check(self, member: Member, outcome: Outcome) -> None:
        """Raise what the outcome of a slice on ``member`` says about the job."""
        if isinstance(outcome, Failed):
            raise outcome.error(member.host)
        if isinstance(outcome, SliceResult) and not math.isfinite(outcome.loss):
            raise LossNotFinite.of(outcome.loss, outcome.samples, member.host)

    def _check_server(self, overdue: bool) -> None:
        """Raise when the server is gone, or when all slices are there and it is ``overdue`` all the same."""
        cause = "it did not answer in time"
        if not overdue:
            try:
                rpc.get(self._session.server.call("ping"), PING_S)
            except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
                cause = rpc.describe(error)
            else:
                return
        raise ServerGone(f"the parameter server was lost: {cause}", hint=SERVER_HINT, host=self._session.server_host)

    def _reissue(self, turn: Turn, orphan: Ticket) -> Ticket:
        """Give a slice to another worker."""
        busy = {ticket.member: ticket.member.track.current.seconds(len(ticket.task.indices)) for ticket in turn.tickets}
        substitute = self._crew.substitute(len(orphan.task.indices), busy)
        return self._submit(turn, orphan.task, substitute, orphan.member.name)

    # --- Accounting --------------------------------------------------------------------------------------------------

    def _results(self, turn: Turn) -> list[SliceResult]:
        """The outcomes of a step that is applied; they are there, since the server had them."""
        results = []
        for outcome in rpc.get_all([ticket.outcome for ticket in turn.tickets], SERVER_S):
            assert isinstance(outcome, SliceResult), "the server applies nothing else"
            results.append(outcome)
        return results

    def _report(self, turn: Turn, results: list[SliceResult], applied: Applied) -> StepReport:
        """The step's event: where each worker's time went, on one clock, from one publication of weights to the next.

        Pull: from publication until the worker's model has the weights. Push: packing, and from the last worker's end
        until the server has all gradients and has added them. Wait: the rest (slower workers, the optimizer).
        """
        session, begun = self._session, self._published
        server = session.server_clock
        server.bound(turn.submitted, applied.stamps.entered, applied.stamps.left, time.monotonic())
        gathered, self._published = server.here(applied.stamps.entered), server.here(applied.stamps.left)
        spans = []
        for ticket, result in zip(turn.tickets, results, strict=True):
            stamps, clock, ready = result.stamps, ticket.member.clock, max(begun, ticket.submitted)
            clock.bound(ready, stamps.entered, stamps.left, gathered)
            spans.append((clock.here(stamps.entered) - ready, clock.here(stamps.left)))
            ticket.member.usual_call_s = max(0.9 * ticket.member.usual_call_s, spans[-1][1] - ready)
            if ticket.lost_by:
                session.journal.write(
                    SliceReissued,
                    step=turn.step,
                    worker=ticket.lost_by,
                    to=ticket.member.name,
                    samples=result.samples,
                    stall_s=spans[-1][1] - ticket.submitted,
                )
        seconds = max(self._published - begun, 1e-9)
        delivery = max(0.0, gathered - max(left for _, left in spans)) + applied.sum_s
        workers = []
        for ticket, result, (waited, _) in zip(turn.tickets, results, spans, strict=True):
            pull, push = result.load_s + max(0.0, waited), result.pack_s + delivery
            spent = ticket.member.times(result.samples, seconds, compute_s=result.compute_s, push_s=push, pull_s=pull)
            workers.append(spent)
        samples = sum(result.samples for result in results)
        return StepReport(
            step=turn.step,
            loss=sum(result.loss * result.samples for result in results) / samples,
            samples=samples,
            seconds=seconds,
            bytes_pushed=len(results) * session.payload_bytes,
            bytes_pulled=turn.pulls * session.payload_bytes,
            workers=tuple(workers),
            weights=lambda: rpc.get(turn.new_weights, TRANSFER_S),
            slices=tuple(
                SliceSpan(ticket.member.name, ticket.task.begin, ticket.task.begin + len(ticket.task.indices))
                for ticket in turn.tickets
            ),
            snapshot=lambda: snapshots.of_server(session),
        )


def _answers(member: Member) -> bool:
    try:
        rpc.get(member.actor.call_in(PING, "ping"), HEARTBEAT_S)
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
        return False
    return True
