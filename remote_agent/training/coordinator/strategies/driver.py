"""Waits for workers' answers and detects failed workers; every strategy waits through it.

A strategy says which answers it awaits and which work each worker still owes; after a loss, it decides what to do with
the worker's slices. The driver owns the membership. Every :data:`~.deadlines.LOOK_S` it checks membership and
heartbeat, waits for the first awaited answer, and returns its meaning: a result, a lost worker with the evidence, or
the end of the run.

Evidence comes from answers (a call broke, a shard can't be reached) and from pings. The driver checks it in this order:
the process ended; the process is silent; work is overdue. A worker with overdue work is *late* if another worker can do
the work. It *hangs* if no other can, or if no worker can be left out because it would miss a step's weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery import apart, policy
from remote_agent.training.coordinator.recovery.liveness import check_beats, check_servers
from remote_agent.training.coordinator.recovery.membership import Membership
from remote_agent.training.coordinator.session import Session
from remote_agent.training.coordinator.share_balancer import ShareBalancer
from remote_agent.training.deadlines import HUNG_DEADLINES, LAST_SILENT_S, LOOK_S, PING_S, given_up_after, late_after
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import Failed, ShardLinkDown
from remote_agent.training.shared.rpc import Ref


class Awaited(Protocol):
    """An awaited answer of one worker to one call."""

    @property
    def member(self) -> WorkerHandle: ...

    @property
    def answer(self) -> Ref[Any]: ...

    @property
    def expected_s(self) -> float:
        """Seconds that the call usually takes."""
        ...


A = TypeVar("A", bound=Awaited)


@dataclass(frozen=True)
class Owed:
    """Work that a worker has not delivered yet.

    Attributes:
        since: when the worker could start it, on the monotonic clock.
        late_s: seconds after which it is late.
        patience_s: seconds after which it is given up, if no other worker can do it.
        computed: the gradient is computed and being sent.
    """

    since: float
    late_s: float
    patience_s: float
    computed: bool = False


@dataclass(frozen=True)
class Answered(Generic[A]):
    """A call returned ``result``."""

    awaited: A
    result: Any


@dataclass(frozen=True)
class Lost:
    """A worker is lost."""

    member: WorkerHandle
    evidence: policy.Evidence


@dataclass(frozen=True)
class Stalled:
    """All workers answer pings, but no answer came for very long, for the ``times``-th time in a row."""

    times: int


class Driver:
    """Waits for answers on behalf of one strategy.

    Args:
        on_server: see :class:`~remote_agent.training.coordinator.recovery.policy.RunStatus`.

    Attributes:
        membership: the workers that take part, and those that may return.
    """

    def __init__(
        self, session: Session, balancer: ShareBalancer, heartbeat: Heartbeat, *, on_server: bool = True
    ) -> None:
        self._session, self._heartbeat, self._on_server = session, heartbeat, on_server
        self.membership = Membership(session, balancer, heartbeat, on_server=on_server)
        self._refreshed = self._waiting_since = 0.0
        self._stalls = 0
        self._looked = False

    def begin(self) -> None:
        """Restart the deadlines of a step, since it was issued, or continues without a worker."""
        self._waiting_since, self._stalls, self._looked = time.monotonic(), 0, False

    def next(
        self,
        step: int,
        awaited: Sequence[A],
        owed: Callable[[WorkerHandle, int], Owed | None],
        sending: Collection[WorkerHandle] = (),
    ) -> Answered[A] | Lost | Stalled | None:
        """Wait a short time for something that the strategy has to handle; None: nothing happened.

        Args:
            owed: returns the work that a worker owes, given the last step that it has computed.
            sending: workers whose last answer came, but whose data may not have arrived yet.

        Raises:
            TrainingError: the run can't go on: the job failed, or shards or all workers are gone.
        """
        if time.monotonic() - self._refreshed >= LOOK_S:
            return self._refresh(step, [*(each.member for each in awaited), *sending], owed)
        if not awaited:
            self.membership.wait(LOOK_S)
            return None
        position = rpc.first_ready([each.answer for each in awaited], LOOK_S)
        if position is None:
            return self._cut_off(awaited) or self._stalled(awaited)
        first = awaited[position]
        try:
            answer = rpc.get(first.answer, PING_S)
        except rpc.NoAnswer as error:
            return Lost(first.member, policy.Died(rpc.describe(error)))
        if isinstance(answer, Failed):
            raise answer.error(first.member.host)
        if isinstance(answer, ShardLinkDown):
            check_servers(self._session)
            return Lost(first.member, policy.ShardLinkDown(answer.cause))
        return Answered(first, answer)

    def _cut_off(self, awaited: Sequence[Awaited]) -> Lost | None:
        """A worker that does not reach a partner, looked for once, when late; raises ServerGone for a shard."""
        late_s = late_after(self._session.config.slice_deadline_s, max(each.expected_s for each in awaited))
        if self._looked or time.monotonic() - self._waiting_since <= late_s:
            return None
        self._looked = True
        if self._on_server:
            apart.leave_shards(self._session, self._heartbeat)
            return None
        return next((Lost(*found) for found in apart.leaving(self._session.members, self._heartbeat).items()), None)

    def _stalled(self, awaited: Sequence[Awaited]) -> Stalled | None:
        expected_s = max(each.expected_s for each in awaited)
        if time.monotonic() - self._waiting_since <= given_up_after(self._session.config.slice_deadline_s, expected_s):
            return None
        self._waiting_since, self._stalls = time.monotonic(), self._stalls + 1
        return Stalled(self._stalls)

    def _refresh(
        self, step: int, members: Sequence[WorkerHandle], owed: Callable[[WorkerHandle, int], Owed | None]
    ) -> Lost | None:
        """Check the heartbeat of workers and shards, and advance the return of workers that are away."""
        now = time.monotonic()
        for member in dict.fromkeys(members):
            evidence = self._evidence(member, owed)
            if evidence is not None:
                return Lost(member, evidence)
        self._refreshed = now
        check_beats(self._session, self._heartbeat)
        self.membership.refresh(step)
        return None

    def _evidence(
        self, member: WorkerHandle, owed: Callable[[WorkerHandle, int], Owed | None]
    ) -> policy.Evidence | None:
        """The evidence that a worker without an answer has failed, if there is any."""
        beat = self._heartbeat.of(member.actor)
        if beat.ended:
            return policy.Died(beat.ended)
        # The weights would go with the last one, and code that holds Python's lock for seconds keeps it from answering.
        bears_all = not self._on_server and self._session.members == [member]
        if beat.is_silent and not (bears_all and beat.silent_s < LAST_SILENT_S):
            return policy.Silent(beat.silent_s)
        work = owed(member, beat.pulse.done)
        if work is None:
            return None
        waited_s = beat.asked - work.since
        if work.computed:
            if waited_s <= work.patience_s:
                return None
            check_servers(self._session)
            cause = f"its gradient was not exchanged within {waited_s:.0f} s, though its process answers"
            return policy.ShardLinkDown(cause)
        if self._session.members == [member]:
            return policy.Hung(waited_s) if waited_s > work.patience_s else None
        if not self._on_server:
            return policy.Hung(waited_s) if waited_s > HUNG_DEADLINES * work.late_s else None
        return policy.Late(waited_s) if waited_s > work.late_s else None
