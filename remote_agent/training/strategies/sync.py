"""Synchronous training, exact: after each step the weights are those of one process on the same batches.

Step ``t``: its samples are cut into slices by the workers' speed; each worker computes the gradient sum of its slice
with the weights of step ``t - 1``; the server adds the sums, divides by the number of samples, and makes the
optimizer's step.

The coordinator only passes refs: weights and gradients go straight between server and workers, and while step ``t`` is
computed, step ``t + 1`` is submitted already, naming the weights of ``t`` as an argument. Ray starts each call the
moment its arguments are there, so the coordinator's own work (events, shares) is off the path. The price: a change of
shares takes effect one step later.

When a worker dies, or its slice misses its deadline, the slice is issued again, whole, to a living worker: same
samples, same weights, same random numbers; the calls that waited for the lost answer are dropped and submitted anew.
The server takes exactly one gradient for each slice, so a late answer changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from remote_agent.protocol import Rebalanced, SliceReissued, WorkerLost, WorkerSlow, WorkerStep
from remote_agent.training import balance, rpc, shares
from remote_agent.training.deadlines import PING_S, SERVER_S, SLICE_FACTOR
from remote_agent.training.errors import LossNotFinite, ServerGone, TrainingError, WorkersGone
from remote_agent.training.flat import Payload
from remote_agent.training.messages import Applied, Failed, Refused, Skipped, SliceResult, SliceTask
from remote_agent.training.rpc import Ref
from remote_agent.training.session import Member, Session, StepReport

SERVER_HINT = "look at the host's memory and its log, then start the run again"

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
    pulls: int = 0
    submitted: float = 0.0
    new_weights: Ref[Payload] = field(init=False)
    answer: Ref[Applied | Refused | Failed] = field(init=False)


class Sync:
    """See the module."""

    def steps(self, session: Session) -> Iterator[StepReport]:
        """Train; see :class:`~remote_agent.training.strategies.Strategy`."""
        self._session = session
        self._cut = self._fresh_cut()
        self._cut_at = 0
        self._published = time.monotonic()
        turn: Turn | None = self._issue(1, session.weights)
        while turn is not None:
            following = self._following(turn)
            planned = turn.new_weights
            applied = self._settle(turn)
            results = self._results(turn)
            self._adapt(turn, results)
            if following is not None and turn.new_weights is not planned:
                following = self._issue(turn.step + 1, turn.new_weights)
            yield self._report(turn, results, applied)
            turn = following

    # --- Submitting --------------------------------------------------------------------------------------------------

    def _following(self, turn: Turn) -> Turn | None:
        """The step after ``turn``, submitted on the weights that ``turn`` will give; None when ``turn`` is the last."""
        if turn.step >= self._session.config.num_iterations or self._session.stopping():
            return None
        return self._issue(turn.step + 1, turn.new_weights)

    def _issue(self, step: int, weights: Ref[Payload]) -> Turn:
        """Submit a step: a slice for each worker with a share, and their application."""
        indices = self._session.order.step(step)
        turn = Turn(step, weights, [])
        begin = 0
        for member, samples in zip(self._session.crew, self._cut, strict=True):
            if samples:
                task = SliceTask(step=step, index=len(turn.tickets), indices=indices[begin : begin + samples])
                turn.tickets.append(self._submit(turn, task, member))
                begin += samples
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
        for _ in range(MOST_REPAIRS):
            expected = max(
                max(ticket.member.usual_call_s, ticket.member.track.current.seconds(len(ticket.task.indices)))
                for ticket in turn.tickets
            )
            patience = self._session.config.slice_deadline_s + SLICE_FACTOR * expected
            began = time.monotonic()
            if rpc.first_ready([turn.answer], patience) is not None:
                try:
                    answer = rpc.get(turn.answer, SERVER_S)
                except (*rpc.Lost, rpc.CallFailed):
                    answer = Refused(step=turn.step)
                if isinstance(answer, Failed):
                    raise answer.error(self._session.server_host)
                if isinstance(answer, Applied):
                    return answer
            self._repair(turn, time.monotonic() - began, began + patience <= time.monotonic())
        raise TrainingError(
            f"step {turn.step} failed {MOST_REPAIRS} times", hint="look at the hosts' logs and the network between them"
        )

    def _repair(self, turn: Turn, waited: float, overdue: bool) -> None:
        """Find what the step failed of, take it out, and submit the step's missing parts again."""
        lost: dict[Member, str] = {}
        doubtful = False
        for ticket in turn.tickets:
            if rpc.first_ready([ticket.outcome], 0.0) is None:
                if overdue:
                    lost.setdefault(ticket.member, f"no answer to a slice within {waited:.0f} s")
                continue
            try:
                self._check(ticket.member, rpc.get(ticket.outcome, PING_S))
            except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
                doubtful |= not isinstance(error, rpc.ActorLost)  # it may be the weights that are gone
                lost.setdefault(ticket.member, rpc.describe(error))
        if doubtful or not lost:
            self._check_server(overdue and not lost)
        if not lost:
            silent = [ticket.member for ticket in turn.tickets if not _answers(ticket.member)]
            lost = dict.fromkeys(silent, "its host or process is gone")
        # Without anyone lost a gradient was: with no way to tell whose, all slices are computed again.
        orphans = [ticket for ticket in turn.tickets if not lost or ticket.member in lost]
        for member, cause in lost.items():
            self._lose(turn, member, cause)
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
            raise LossNotFinite(
                f"the loss is {outcome.loss} in a slice of {outcome.samples} samples",
                hint="lower the learning rate, or look for a division by zero or a logarithm of zero in the loss",
                host=member.host,
            )

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

    def _lose(self, turn: Turn, gone: Member, cause: str) -> None:
        """Go on without a worker: what it had goes to the living."""
        session = self._session
        if gone not in session.crew:
            return
        session.crew.remove(gone)
        session.journal.write(
            WorkerLost, worker=gone.name, host=gone.host, device=gone.device, step=turn.step, cause=cause
        )
        gone.actor.kill()
        if not session.crew:
            raise WorkersGone(
                f"the last worker was lost: {cause}", hint="look at the host, then start the run again", host=gone.host
            )
        room = sum(member.track.profile.max_batch or math.inf for member in session.crew)
        if room < session.config.batch_size:
            # A worker takes more than fits in several parts: slower than a cut within the limits, better than none.
            for member in session.crew:
                member.track = member.track.without_limit()
        self._cut, self._cut_at = self._fresh_cut(), turn.step
        self._announce(turn.step, f"{gone.name} was lost")

    def _reissue(self, turn: Turn, orphan: Ticket) -> Ticket:
        """Give a slice to the living worker that will have done it soonest; one with room for it whole is preferred."""
        size = len(orphan.task.indices)
        busy = {ticket.member: ticket.member.track.current.seconds(len(ticket.task.indices)) for ticket in turn.tickets}

        def cost(member: Member) -> tuple[bool, float]:
            profile = member.track.current
            small = profile.max_batch is not None and profile.max_batch < size
            return small, busy.get(member, 0.0) + profile.seconds(size)

        return self._submit(turn, orphan.task, min(self._session.crew, key=cost), orphan.member.name)

    # --- Shares ------------------------------------------------------------------------------------------------------

    def _fresh_cut(self) -> tuple[int, ...]:
        session = self._session
        try:
            return shares.split(session.config.batch_size, [member.track.current for member in session.crew])
        except ValueError as error:
            raise TrainingError(str(error), hint="lower batch_size, or raise the hosts' max_batch") from None

    def _adapt(self, turn: Turn, results: list[SliceResult]) -> None:
        """Learn from the step's compute times; cut again where it pays, and name who became slow."""
        session = self._session
        for ticket, result in zip(turn.tickets, results, strict=True):
            member = ticket.member
            if member not in session.crew:
                continue
            member.observe(result.samples, result.compute_s)
            factor = member.track.slowdown()
            if factor is not None:
                session.journal.write(WorkerSlow, worker=member.name, host=member.host, step=turn.step, factor=factor)
                member.track = member.track.accepted()
        if not session.config.rebalance:
            return
        better = balance.recut(session.config.batch_size, self._cut, session.tracks, turn.step - self._cut_at)
        if better is not None:
            self._cut, self._cut_at = better, turn.step
            self._announce(turn.step, "the devices' speeds changed")

    def _announce(self, step: int, reason: str) -> None:
        cut = tuple(member.share(samples) for member, samples in zip(self._session.crew, self._cut, strict=True))
        self._session.journal.write(Rebalanced, step=step, shares=cut, reason=reason)

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
            workers.append(
                WorkerStep(
                    worker=ticket.member.name,
                    host=ticket.member.host,
                    device=ticket.member.device,
                    samples=result.samples,
                    compute_s=result.compute_s,
                    push_s=push,
                    pull_s=pull,
                    wait_s=max(0.0, seconds - result.compute_s - push - pull),
                )
            )
        samples = sum(result.samples for result in results)
        return StepReport(
            step=turn.step,
            loss=sum(result.loss * result.samples for result in results) / samples,
            samples=samples,
            seconds=seconds,
            bytes_pushed=len(results) * session.payload_bytes,
            bytes_pulled=turn.pulls * session.payload_bytes,
            workers=tuple(workers),
            weights=turn.new_weights,
        )


def _answers(member: Member) -> bool:
    try:
        rpc.get(member.actor.call("ping"), PING_S)
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
        return False
    return True
