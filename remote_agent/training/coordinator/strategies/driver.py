"""The wait for workers' answers, with all that tells whether a worker has failed: every strategy here goes through it.

A strategy says what it awaits, what a worker owes of it, and, once a worker is lost, what becomes of its slices. The
driver owns the membership, looks at it and at the heartbeat every :data:`~.deadlines.LOOK_S`, waits for the first of
the awaited answers, and says what that means: a result, a lost worker with the evidence, or the end of the run.

Evidence comes from answers (a call broke, a shard can't be reached) and from pings, and always in this order: the
process ended, it is silent, it owes something for too long. A worker that owes something is late where another one can
do it as well. It hangs where none can, or where no worker can be left out for a while since it would miss a step's
weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery import policy
from remote_agent.training.coordinator.recovery.liveness import check_beats, check_servers
from remote_agent.training.coordinator.recovery.membership import Membership
from remote_agent.training.coordinator.session import Session
from remote_agent.training.coordinator.share_balancer import ShareBalancer
from remote_agent.training.deadlines import HUNG_DEADLINES, LOOK_S, PING_S, given_up_after
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import Failed, ShardLinkDown
from remote_agent.training.shared.rpc import Ref


class Awaited(Protocol):
    """What a strategy waits for: one worker's answer to one call."""

    @property
    def member(self) -> WorkerHandle: ...

    @property
    def answer(self) -> Ref[Any]: ...

    @property
    def expected_s(self) -> float:
        """How many seconds that usually takes."""
        ...


A = TypeVar("A", bound=Awaited)


@dataclass(frozen=True)
class Owed:
    """What a worker has not delivered yet.

    Attributes:
        since: when it could begin with it, on the monotonic clock.
        late_s: seconds after which it is late.
        patience_s: seconds after which it is given up, where no other worker can do it.
        computed: the gradient is there, and on its way.
    """

    since: float
    late_s: float
    patience_s: float
    computed: bool = False


@dataclass(frozen=True)
class Answered(Generic[A]):
    """A call was answered, with ``result``."""

    awaited: A
    result: Any


@dataclass(frozen=True)
class Lost:
    """A worker can't be waited for any more."""

    member: WorkerHandle
    evidence: policy.Evidence


@dataclass(frozen=True)
class Stalled:
    """All workers answer pings, and nothing has come for very long, for the ``times``-th time in a row."""

    times: int


class Driver:
    """See the module.

    Args:
        on_server: see :class:`~remote_agent.training.coordinator.recovery.policy.RunStatus`.

    Attributes:
        membership: the workers that take part, and those that may again.
    """

    def __init__(
        self, session: Session, balancer: ShareBalancer, heartbeat: Heartbeat, *, on_server: bool = True
    ) -> None:
        self._session, self._heartbeat, self._on_server = session, heartbeat, on_server
        self.membership = Membership(session, balancer, heartbeat, on_server=on_server)
        self._refreshed = self._waiting_since = 0.0
        self._stalls = 0

    def begin(self) -> None:
        """Give a step its full time from now on: it was issued, or goes on without a worker."""
        self._waiting_since, self._stalls = time.monotonic(), 0

    def next(
        self,
        step: int,
        awaited: Sequence[A],
        owed: Callable[[WorkerHandle, int], Owed | None],
        sending: Collection[WorkerHandle] = (),
    ) -> Answered[A] | Lost | Stalled | None:
        """Wait a moment, until something has happened that the strategy has to know; None: nothing has.

        Args:
            step: the one under way.
            awaited: what is waited for.
            owed: what a worker owes that is asked for something; given with it: the last step that it has computed.
            sending: workers whose last answer came, while what they send may not have arrived.

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
            return self._stalled(awaited)
        first = awaited[position]
        try:
            answer = rpc.get(first.answer, PING_S)
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
            return Lost(first.member, policy.Died(rpc.describe(error)))
        if isinstance(answer, Failed):
            raise answer.error(first.member.host)
        if isinstance(answer, ShardLinkDown):
            check_servers(self._session)
            return Lost(first.member, policy.ShardLinkDown(answer.cause))
        return Answered(first, answer)

    def _stalled(self, awaited: Sequence[Awaited]) -> Stalled | None:
        expected_s = max(each.expected_s for each in awaited)
        if time.monotonic() - self._waiting_since <= given_up_after(self._session.config.slice_deadline_s, expected_s):
            return None
        self._waiting_since, self._stalls = time.monotonic(), self._stalls + 1
        return Stalled(self._stalls)

    def _refresh(
        self, step: int, members: Sequence[WorkerHandle], owed: Callable[[WorkerHandle, int], Owed | None]
    ) -> Lost | None:
        """See what the heartbeat knows of workers and shards, and help those on that are away."""
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
        """What speaks against a worker that has not answered."""
        beat = self._heartbeat.of(member.actor)
        if beat.ended:
            return policy.Died(beat.ended)
        if beat.is_silent:
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
