"""Synchronous training, exact: after each step the weights are those of one process on the same batches.

Step ``t``: its samples are cut into slices by the workers' speed; each worker computes the gradient sum of its slice
with the weights of step ``t - 1``; the server adds the sums as they come, divides by the number of samples, and makes the optimizer's step.

The coordinator only passes refs: weights and gradients go straight between server and workers. The slices of
step ``t + 1`` are submitted together with the application of step ``t``, whose weights they name as an argument; Ray starts
them the moment these are there, and the coordinator's own bookkeeping is off the path.

When a worker dies, or its slice misses its deadline, its slice is issued again, whole, to a living worker: same samples,
same weights, same random numbers. The server counts each slice once, so a late answer changes nothing.
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
from remote_agent.training.messages import Applied, Failed, Incomplete, Skipped, SliceResult, SliceTask
from remote_agent.training.rpc import Ref
from remote_agent.training.session import Member, Session, StepReport

SERVER_HINT = "look at the host's memory and its log, then start the run again"


@dataclass(eq=False)
class Ticket:
    """A slice that a worker is computing."""

    task: SliceTask
    member: Member
    gradient: Ref[Payload | None]
    outcome: Ref[SliceResult | Failed | Skipped]
    submitted: float
    deadline: float
    lost_by: str | None = None


@dataclass(eq=False)
class Done:
    """A slice whose outcome has arrived, and whose gradient was sent on to the server."""

    ticket: Ticket
    result: SliceResult


@dataclass(eq=False)
class Round:
    """One step under way: ``tickets`` are out, ``done`` is in, by slice index."""

    step: int
    weights: Ref[Payload]
    tickets: list[Ticket]
    expected: tuple[int, ...]
    pulls: int = 0
    done: dict[int, Done] = field(default_factory=dict)


class Sync:
    """See the module."""

    def steps(self, session: Session) -> Iterator[StepReport]:
        """Train; see :class:`~remote_agent.training.strategies.Strategy`."""
        self._session = session
        self._cut = self._fresh_cut()
        self._cut_at = 0
        self._published = time.monotonic()
        turn = self._issue(1, session.weights)
        while True:
            self._gather(turn)
            last = turn.step >= session.config.num_iterations or session.stopping()
            self._adapt(turn)
            submitted = time.monotonic()
            weights, answer = session.server.call_pair("apply", turn.step, turn.expected)
            following = None if last else self._issue(turn.step + 1, weights)
            applied = self._application(turn, answer)
            if isinstance(applied, Incomplete):
                # A gradient was lost with its host after its outcome had arrived. The next step has not begun.
                self._take_back(turn, applied)
                continue
            yield self._report(turn, applied, submitted, weights)
            if following is None:
                return
            turn = following

    # --- Issuing and collecting slices -------------------------------------------------------------------------------

    def _issue(self, step: int, weights: Ref[Payload]) -> Round:
        """Submit a step's slices, one for each worker with a share."""
        session = self._session
        indices = session.order.step(step)
        turn = Round(step, weights, [], ())
        begin = 0
        for member, samples in zip(list(session.crew), self._cut, strict=True):
            if samples:
                task = SliceTask(step=step, index=len(turn.tickets), indices=indices[begin : begin + samples])
                turn.tickets.append(self._submit(turn, task, member))
                begin += samples
        turn.expected = tuple(range(len(turn.tickets)))
        return turn

    def _submit(self, turn: Round, task: SliceTask, member: Member) -> Ticket:
        gradient, outcome = member.actor.call_pair("compute", task, turn.weights)
        turn.pulls += 1
        now = time.monotonic()
        expected = max(member.usual_call_s, member.track.current.seconds(len(task.indices)))
        deadline = now + self._session.config.slice_deadline_s + SLICE_FACTOR * expected
        return Ticket(task, member, gradient, outcome, now, deadline)

    def _gather(self, turn: Round) -> None:
        """Wait for every slice's outcome and send its gradient on to the server; issue lost slices again."""
        while turn.tickets:
            nearest = min(ticket.deadline for ticket in turn.tickets)
            ready = rpc.first_ready([ticket.outcome for ticket in turn.tickets], nearest - time.monotonic())
            if ready is not None:
                self._collect(turn, turn.tickets.pop(ready))
                continue
            late = [ticket for ticket in turn.tickets if ticket.deadline <= time.monotonic()]
            for ticket in late:
                waited = time.monotonic() - ticket.submitted
                self._lose(turn, ticket, f"no answer to a slice within {waited:.0f} s")

    def _collect(self, turn: Round, ticket: Ticket) -> None:
        try:
            result = rpc.get(ticket.outcome, SERVER_S)
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
            if not isinstance(error, rpc.ActorLost):
                self._check_server()  # weights that are gone are the server's fault, not the worker's
            self._lose(turn, ticket, rpc.describe(error))
            return
        member = ticket.member
        if isinstance(result, Failed):
            raise result.error(member.host)
        if isinstance(result, Skipped) or ticket.task.index in turn.done:
            return
        if not math.isfinite(result.loss):
            raise LossNotFinite(
                f"the loss is {result.loss} in a slice of {result.samples} samples",
                hint="lower the learning rate, or look for a division by zero or a logarithm of zero in the loss",
                host=member.host,
            )
        self._session.server.call("add", result, ticket.gradient)
        seen = time.monotonic()
        member.clock.bound(ticket.submitted, result.stamps.entered, result.stamps.left, seen)
        member.usual_call_s = max(0.9 * member.usual_call_s, seen - max(ticket.submitted, self._published))
        if ticket.lost_by is not None:
            self._session.journal.write(
                SliceReissued,
                step=turn.step,
                worker=ticket.lost_by,
                to=member.name,
                samples=result.samples,
                stall_s=seen - ticket.submitted,
            )
        turn.done[ticket.task.index] = Done(ticket, result)

    # --- Losses ------------------------------------------------------------------------------------------------------

    def _lose(self, turn: Round, ticket: Ticket, cause: str) -> None:
        """Go on without the ticket's worker: its slices of this step go to the living."""
        session, gone = self._session, ticket.member
        if gone in session.crew:
            session.crew.remove(gone)
            session.journal.write(
                WorkerLost, worker=gone.name, host=gone.host, device=gone.device, step=turn.step, cause=cause
            )
            gone.actor.kill()
            if not session.crew:
                raise WorkersGone(
                    f"the last worker was lost: {cause}",
                    hint="look at the host, then start the run again",
                    host=gone.host,
                )
            self._cut = self._fresh_cut()
            self._cut_at = turn.step
            self._announce(turn.step, f"{gone.name} was lost")
        orphans = [ticket, *(other for other in turn.tickets if other.member is gone)]
        turn.tickets = [other for other in turn.tickets if other.member is not gone]
        for orphan in orphans:
            self._reissue(turn, orphan.task, gone.name)

    def _reissue(self, turn: Round, task: SliceTask, lost: str) -> None:
        """Give a slice to the living worker that will have done it soonest; one with room for it whole is preferred."""
        session = self._session
        busy = {ticket.member: ticket.member.track.current.seconds(len(ticket.task.indices)) for ticket in turn.tickets}

        def cost(member: Member) -> tuple[bool, float]:
            profile = member.track.current
            small = profile.max_batch is not None and profile.max_batch < len(task.indices)
            return small, busy.get(member, 0.0) + profile.seconds(len(task.indices))

        ticket = self._submit(turn, task, min(session.crew, key=cost))
        ticket.deadline += busy.get(ticket.member, 0.0) * SLICE_FACTOR
        ticket.lost_by = lost
        turn.tickets.append(ticket)

    def _take_back(self, turn: Round, incomplete: Incomplete) -> None:
        for index in incomplete.missing:
            done = turn.done.pop(index)
            self._reissue(turn, done.ticket.task, done.ticket.member.name)

    def _check_server(self) -> None:
        try:
            rpc.get(self._session.server.call("ping"), PING_S)
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
            raise ServerGone(
                f"the parameter server was lost: {rpc.describe(error)}",
                hint=SERVER_HINT,
                host=self._session.server_host,
            ) from error

    def _application(self, turn: Round, answer: Ref[Applied | Incomplete | Failed]) -> Applied | Incomplete:
        """Wait until the server has applied the step.

        Raises:
            ServerGone: it died, or did not answer.
        """
        slowest = max((done.ticket.member.usual_call_s for done in turn.done.values()), default=0.0)
        host = self._session.server_host
        try:
            applied = rpc.get(answer, SERVER_S + SLICE_FACTOR * slowest)
        except rpc.Timeout:
            raise ServerGone("the parameter server did not answer in time", hint=SERVER_HINT, host=host) from None
        except (*rpc.Lost, rpc.CallFailed) as error:
            cause = f"the parameter server was lost: {rpc.describe(error)}"
            raise ServerGone(cause, hint=SERVER_HINT, host=host) from error
        if isinstance(applied, Failed):
            raise applied.error(host)
        return applied

    # --- Shares ------------------------------------------------------------------------------------------------------

    def _fresh_cut(self) -> tuple[int, ...]:
        session = self._session
        try:
            return shares.split(session.config.batch_size, [member.track.current for member in session.crew])
        except ValueError as error:
            raise TrainingError(str(error), hint="lower batch_size, or raise the hosts' max_batch") from None

    def _adapt(self, turn: Round) -> None:
        """Learn from the step's compute times; cut again where it pays, and name who became slow."""
        session = self._session
        for done in turn.done.values():
            member = done.ticket.member
            if member not in session.crew:
                continue
            member.observe(done.result.samples, done.result.compute_s)
            factor = member.track.slowdown()
            if factor is not None:
                session.journal.write(WorkerSlow, worker=member.name, host=member.host, step=turn.step, factor=factor)
                member.track = member.track.accepted()
        if not session.config.rebalance:
            return
        better = balance.recut(session.config.batch_size, self._cut, session.profiles, turn.step - self._cut_at)
        if better is not None:
            self._cut, self._cut_at = better, turn.step
            self._announce(turn.step, "the devices' speeds changed")

    def _announce(self, step: int, reason: str) -> None:
        cut = tuple(member.share(samples) for member, samples in zip(self._session.crew, self._cut, strict=True))
        self._session.journal.write(Rebalanced, step=step, shares=cut, reason=reason)

    # --- Accounting --------------------------------------------------------------------------------------------------

    def _report(self, turn: Round, applied: Applied, submitted: float, weights: Ref[Payload]) -> StepReport:
        """The step's event: where each worker's time went, on one clock, from publication to publication."""
        session = self._session
        clock = session.server_clock
        clock.bound(submitted, applied.stamps.entered, applied.stamps.left, time.monotonic())
        begun, ended = self._published, clock.here(applied.stamps.left)
        self._published = ended
        seconds = max(ended - begun, 1e-9)
        samples = sum(done.result.samples for done in turn.done.values())
        loss = sum(done.result.loss * done.result.samples for done in turn.done.values()) / samples
        workers = []
        for index, done in sorted(turn.done.items()):
            member, result = done.ticket.member, done.result
            entered, left = (member.clock.here(stamp) for stamp in (result.stamps.entered, result.stamps.left))
            pull = result.load_s + max(0.0, entered - max(begun, done.ticket.submitted))
            push = result.pack_s + max(0.0, clock.here(applied.added[index].stamps.left) - left)
            workers.append(
                WorkerStep(
                    worker=member.name,
                    host=member.host,
                    device=member.device,
                    samples=result.samples,
                    compute_s=result.compute_s,
                    push_s=push,
                    pull_s=pull,
                    wait_s=max(0.0, seconds - result.compute_s - push - pull),
                )
            )
        return StepReport(
            step=turn.step,
            loss=loss,
            samples=samples,
            seconds=seconds,
            bytes_pushed=len(turn.done) * session.payload_bytes,
            bytes_pulled=turn.pulls * session.payload_bytes,
            workers=tuple(workers),
            weights=weights,
        )
