"""Synchronous training over streams, exact: after each step the weights are those of one process on the same batches.

Step ``t``: each worker computes the gradient sum of its slice and pushes it to the shards, which add the slices up,
make the optimizer's step as soon as a chunk has them all, and stream the new weights back (``exchange``, ``lane``).
The coordinator takes no part in that. It says who computes what, one step ahead: while step ``t`` is computed, step
``t + 1`` waits in the workers' queues. The price: a change of shares takes effect one step later.

When a worker is lost, the others wait for its slice in the middle of the step. The slice is issued again, whole, to
one of them: same samples, same weights (those of step ``t - 1`` are kept until ``t`` is whole), same random numbers.
So is the lost worker's slice of the step that was submitted ahead. A shard counts each slice of a chunk once, so it
does not matter whether the lost worker had pushed none, some or all of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from remote_agent.protocol import SliceReissued, WorkerStep
from remote_agent.training import rpc, snapshots
from remote_agent.training.deadlines import HEARTBEAT_S, PING_S, SLICE_FACTOR, TRANSFER_S
from remote_agent.training.errors import ServerGone
from remote_agent.training.flat import Payload
from remote_agent.training.messages import Counted, Failed, Slice, StreamedResult, StreamedTask, Unlinked
from remote_agent.training.optimizer_state import Snapshot
from remote_agent.training.record import SliceSpan
from remote_agent.training.rpc import Ref
from remote_agent.training.session import Member, Session, StepReport
from remote_agent.training.strategies.crew import Crew
from remote_agent.training.worker import PING, REPAIR

SERVER_HINT = "look at the host's memory and its log, then start the run again"

MOST_LATE = 3
"""Times that a step's deadline may pass for a worker whose process answers."""

Answer = StreamedResult | Counted | Failed | Unlinked


@dataclass(eq=False)
class Part:
    """A worker's part in a step; ``lost_by`` names who had the slice before."""

    task: StreamedTask
    member: Member
    answer: Ref[Answer]
    submitted: float
    lost_by: str = ""
    result: StreamedResult | Counted | None = None

    @property
    def samples(self) -> int:
        """Of the slice; 0 without one."""
        return len(self.task.own.indices) if self.task.own is not None else 0

    @property
    def predicted_s(self) -> float:
        """How long the slice takes its worker, as far as is known."""
        return max(self.member.usual_call_s, self.member.track.current.seconds(self.samples))


@dataclass(eq=False)
class Turn:
    """One step under way."""

    step: int
    end: int = 0  # of the positions that were used with it
    delayed: bool = False  # its workers have answered before it is whole; that is waited for in the next one
    parts: list[Part] = field(default_factory=list)
    earlier: list[Part] = field(default_factory=list)  # lost slices of the delayed step before, issued again

    @property
    def awaited(self) -> list[Part]:
        """What is not done yet."""
        return [part for part in (*self.parts, *self.earlier) if part.result is None]


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
        turn: Turn | None = self._issue(session.order.done + 1)
        while turn is not None:
            # The weights of a step that is to be saved stay where they are until they have been fetched.
            ahead = self._issue(turn.step + 1) if self._goes_on(turn) and not self._is_saved(turn) else None
            self._settle(turn, ahead)
            self._crew.adapt(
                turn.step,
                (
                    (part.member, part.samples, part.result.compute_s)
                    for part in turn.parts
                    if isinstance(part.result, StreamedResult) and part.samples
                ),
            )
            for part in turn.parts:
                if isinstance(part.result, StreamedResult) and part.result.at_most:
                    self._crew.reduced(turn.step, part.member, part.result.at_most)
            yield self._report(turn)
            self._before = turn if turn.delayed else None
            if ahead is None and self._goes_on(turn):
                self._ended = time.monotonic()
                ahead = self._issue(turn.step + 1)
            turn = ahead

    def _new_crew(self, session: Session) -> Crew:
        """The crew, which decides who gets how much."""
        return Crew(session)

    # --- Submitting --------------------------------------------------------------------------------------------------

    def _goes_on(self, turn: Turn) -> bool:
        return turn.delayed or self._session.goes_on(turn.step, turn.end)

    def _is_saved(self, turn: Turn) -> bool:
        every = self._session.config.checkpoint_every
        return bool(every) and turn.step % every == 0

    def _is_delayed(self, turn: Turn) -> bool:
        """Whether the step's new weights are waited for in the step after it, of which there has to be one."""
        return False

    def _issue(self, step: int) -> Turn:
        """Submit a step to all workers: those without a share take part to get the weights."""
        session = self._session
        first, last = self._span(step)
        indices = session.order.take(first, last)
        slices = self._crew.slices(last - first)
        own = {
            member: Slice(index=index, indices=indices[begin:end], begin=first + begin)
            for index, (member, begin, end) in enumerate(slices)
        }
        turn = Turn(step, last)
        turn.delayed = self._is_delayed(turn)
        for member in session.crew:
            task = StreamedTask(
                step=step,
                slices=len(slices),
                samples=len(indices),
                own=own.get(member),
                local_batch=self._local_batch,
                delayed=turn.delayed,
            )
            turn.parts.append(Part(task, member, member.actor.call("step", task), time.monotonic()))
        return turn

    def _span(self, step: int) -> tuple[int, int]:
        """Positions (begin, end) of a step in the order, for all workers; asked for once for each step, in order."""
        return self._session.order.span(step)

    # --- Waiting, and what to do when something is lost --------------------------------------------------------------

    def _settle(self, turn: Turn, ahead: Turn | None) -> None:
        """Wait until the step is done on every living worker.

        Raises:
            TrainingError: it can't be: the job failed, or server or workers are gone.
        """
        began, late = time.monotonic(), 0
        while waiting := turn.awaited:
            patience = self._patience(waiting) - (time.monotonic() - began)
            position = rpc.first_ready([part.answer for part in waiting], patience)
            if position is None:
                late += 1
                if late > MOST_LATE:
                    cause = f"step {turn.step} was not whole though every slice was sent"
                    raise ServerGone(cause, hint=SERVER_HINT, host=self._session.server_host)
                self._overdue(turn, ahead, time.monotonic() - began, late == MOST_LATE)
                began = time.monotonic()
                continue
            part = waiting[position]
            try:
                answer = rpc.get(part.answer, PING_S)
            except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
                self._lose(turn, ahead, part.member, rpc.describe(error))
                began, late = time.monotonic(), 0
                continue
            if isinstance(answer, Failed):
                raise answer.error(part.member.host)
            if isinstance(answer, Unlinked):
                self._check_server()
                self._lose(turn, ahead, part.member, answer.cause)
                began, late = time.monotonic(), 0
                continue
            part.result = answer

    def _patience(self, waiting: list[Part]) -> float:
        expected = max(part.predicted_s for part in waiting)
        return self._session.config.slice_deadline_s + SLICE_FACTOR * expected

    def _overdue(self, turn: Turn, ahead: Turn | None, waited: float, last: bool) -> None:
        """Nothing came for too long. Lost is who does not answer at all and, in the end, who has not done its slice.

        Those that have are waiting for the others: that a step is late says nothing about them.
        """
        self._check_server()
        calls = {part.member: part.member.actor.call_in(PING, "ping") for part in turn.awaited}
        deadline = time.monotonic() + HEARTBEAT_S
        for member, call in calls.items():
            cause = f"no answer to a slice within {waited:.0f} s"
            try:
                done = rpc.get(call, max(0.0, deadline - time.monotonic()))
            except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
                self._lose(turn, ahead, member, cause)
            else:
                if last and done < turn.step:
                    self._lose(turn, ahead, member, f"{cause}, though its process lives")

    def _lose(self, turn: Turn, ahead: Turn | None, gone: Member, cause: str) -> None:
        """Go on without a worker; its slices, of the step ahead too, are issued again.

        So are those that were only on their way when the worker answered: they may not have come.
        """
        self._crew.lose(turn.step, gone, cause)
        for each in (turn, ahead):
            if each is None:
                continue
            for orphan in [part for part in each.parts if part.member is gone]:
                if orphan.result is None or orphan.lost_by or each.delayed:
                    self._pass_on(orphan, each.parts, each.parts)
        for parts in (turn.earlier, [] if self._before is None else self._before.parts):
            for orphan in [part for part in parts if part.member is gone]:
                self._pass_on(orphan, parts, turn.earlier)

    def _pass_on(self, orphan: Part, parts: list[Part], to: list[Part]) -> None:
        """Take a lost worker's part out of ``parts``, and put its slice, issued again, in ``to``."""
        parts.remove(orphan)
        if orphan.task.own is not None:
            to.append(self._reissue(to, orphan))

    def _reissue(self, parts: list[Part], orphan: Part) -> Part:
        busy: dict[Member, float] = {}
        for part in parts:
            busy[part.member] = busy.get(part.member, 0.0) + part.member.track.current.seconds(part.samples)
        substitute = self._crew.substitute(orphan.samples, busy)
        answer = substitute.actor.call_in(REPAIR, "repair", orphan.task)
        return Part(orphan.task, substitute, answer, time.monotonic(), orphan.lost_by or orphan.member.name)

    def _check_server(self) -> None:
        """Raise when a shard is gone or has failed."""
        calls = [(server.host, server.actor.call("ping")) for server in self._session.servers]
        deadline = time.monotonic() + PING_S
        for host, call in calls:
            try:
                failed = rpc.get(call, max(0.0, deadline - time.monotonic()))
            except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
                what = "the parameter server" if len(calls) == 1 else "a shard of the parameter server"
                raise ServerGone(f"{what} was lost: {rpc.describe(error)}", hint=SERVER_HINT, host=host) from error
            if isinstance(failed, Failed):
                raise failed.error(host)

    # --- Accounting --------------------------------------------------------------------------------------------------

    def _weights(self) -> Payload:
        """The newest weights, from whichever living worker gives them first."""
        session = self._session
        for member in session.crew[:-1]:
            try:
                return rpc.get(member.actor.call("weights"), TRANSFER_S)
            except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
                continue  # it is found lost in the next step
        return rpc.get(session.crew[-1].actor.call("weights"), TRANSFER_S)

    def _snapshot(self) -> Snapshot:
        """Have the shards keep what the optimizer remembers."""
        return snapshots.of_shards(self._session)

    def _report(self, turn: Turn) -> StepReport:
        """The step's event: where each worker's time went, on one clock, from one step's end to the next.

        Push: from the gradient's computation until it was on its way. Pull: from the moment that the last worker's
        gradient was on its way until the new weights were here. Wait: the rest (slower workers, the step before).
        """
        begun, now = self._ended, time.monotonic()
        results: list[tuple[Part, StreamedResult]] = []
        for part in turn.parts:
            if not isinstance(part.result, StreamedResult):
                continue
            results.append((part, part.result))
            stamps = part.result.stamps
            part.member.clock.bound(part.submitted, stamps.entered, stamps.left, now)
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
        self._ended = max(part.member.clock.here(result.stamps.left) for part, result in results)
        gathered = max(part.member.clock.here(result.pushed) for part, result in results)
        seconds = max(self._ended - begun, 1e-9)
        workers = []
        for part, result in results:
            here = part.member.clock.here
            part.member.usual_call_s = max(0.9 * part.member.usual_call_s, result.stamps.left - result.stamps.entered)
            if not part.samples:
                continue
            push = max(0.0, result.pushed - result.stamps.entered - result.compute_s)
            pull = max(0.0, here(result.stamps.left) - gathered)
            workers.append(
                WorkerStep(
                    worker=part.member.name,
                    host=part.member.host,
                    device=part.member.device,
                    samples=part.samples,
                    compute_s=result.compute_s,
                    push_s=push,
                    pull_s=pull,
                    wait_s=max(0.0, seconds - result.compute_s - push - pull),
                )
            )
        counted = [(part.samples, result.loss) for part, result in results if part.samples]
        if counted:  # a slice whose worker died after it was counted is not among them
            self._loss = sum(samples * loss for samples, loss in counted) / sum(samples for samples, _ in counted)
        return StepReport(
            step=turn.step,
            loss=self._loss,
            samples=turn.parts[0].task.samples,
            seconds=seconds,
            bytes_pushed=sum(result.bytes_out for _, result in results),
            bytes_pulled=sum(result.bytes_in for _, result in results),
            workers=tuple(workers),
            weights=self._weights,
            slices=tuple(
                # A slice that was counted before its worker was lost is that worker's.
                SliceSpan(
                    part.lost_by if isinstance(part.result, Counted) else part.member.name,
                    part.task.own.begin,
                    part.task.own.begin + part.samples,
                )
                for part in turn.parts
                if part.task.own is not None
            ),
            snapshot=self._snapshot,
        )
