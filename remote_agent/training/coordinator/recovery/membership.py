"""Who is away from a run, and how they come back; it carries out what the failure policy decides about workers.

A worker is away because it was set aside (silent, or late: it catches up by itself, and is let in again), because it is
being started again, or because it is new. However that came about, it comes back the same way: it follows the run with
the newest weights, and takes part from the next step that is issued. Nobody waits for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

from remote_agent.protocol import RunCommand, WorkerJoined
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan.share_balancer import LAST_HINT, ShareBalancer
from remote_agent.training.coordinator.recovery import policy
from remote_agent.training.coordinator.recovery.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery.policy import (
    Died,
    Drop,
    Evidence,
    Fail,
    Hung,
    Restart,
    RunStatus,
    SetAside,
)
from remote_agent.training.coordinator.recovery.rejoining import Rejoining, learn_from_late, of_following
from remote_agent.training.coordinator.session import Session
from remote_agent.training.deadlines import ALONE_S, LOOK_S
from remote_agent.training.errors import TrainingError, WeightsGone, WorkersGone
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import PING
from remote_agent.training.shared.rpc import Ref

LOG = logging.getLogger(__name__)


class Membership:
    """The workers of a session that are away.

    Args:
        session: the run's; its crew takes part.
        crew: decides about shares.
        heartbeat: pings all of them.
        on_server: see :class:`~remote_agent.training.coordinator.recovery.policy.RunStatus`.
    """

    def __init__(
        self,
        session: Session,
        crew: ShareBalancer,
        heartbeat: Heartbeat,
        *,
        on_server: bool = True,
    ) -> None:
        self._session, self._crew, self._heartbeat = session, crew, heartbeat
        self._on_server = on_server
        self._away, self._draining = session.away, session.draining
        self._alone_since: float | None = None
        self._reopen()

    # --- Leaving -----------------------------------------------------------------------------------------------------

    def handle_failure(
        self,
        step: int,
        member: WorkerHandle,
        evidence: Evidence,
        *,
        newest: int,
        patience_s: float = ALONE_S,
        late: tuple[int, Ref[Any]] | None = None,
    ) -> None:
        """A worker of the crew failed: decide about it, and carry that out. Its slices are the caller's.

        Args:
            step: the one under way.
            member: who.
            evidence: what was seen.
            newest: the newest step that it was given a part in.
            patience_s: after this long it is taken to hang.
            late: samples and answer of the slice that it did not deliver in time.

        Raises:
            WorkersGone: it was the last one, and will not come back.
            TrainingError: the batch does not fit into the others' memory.
        """
        others = [other for other in self._session.crew if other is not member]
        if member.host in self._draining and others:
            evidence = policy.Drained()
        self._blame(member, evidence)
        decision = policy.decide(evidence, self._standing(member.attempts, len(others), len(self._away)))
        LOG.info("step %d: %s: %s -> %s", step, member.name, evidence, decision)
        if isinstance(evidence, policy.ShardLinkDown) and isinstance(decision, SetAside):
            member.attempts += 1
        lost = not isinstance(decision, SetAside) or decision.lost
        if lost:
            self._crew.report_lost(step, member, decision.cause)
        self._crew.leave(step, member, f"{member.name} was lost" if lost else f"{member.name}: {decision.cause}")
        away = Rejoining(member.seat.spec, member, time.monotonic(), lost, patience_s, late, attempts=member.attempts)
        self._carry_out(decision, away, newest)

    def _blame(self, member: WorkerHandle, evidence: Evidence) -> None:
        """See whether the user's code is to blame."""
        if isinstance(evidence, Died):
            self._session.crashes.died(member.seat, member.actor, evidence.cause)
        elif isinstance(evidence, Hung):
            self._session.crashes.hung(member.seat, member.actor, self._heartbeat.of(member.actor).pulse.busy)

    def _standing(self, attempts: int, others: int, coming: int) -> RunStatus:
        return RunStatus(others=others, coming=coming, attempts=attempts, on_server=self._on_server)

    def _carry_out(self, decision: policy.Decision, away: Rejoining, newest: int) -> None:
        member = away.member
        if member is not None:
            member.steady = 0
        match decision:
            case SetAside():
                assert member is not None, "it has a process"
                member.call_in(PING, "set_aside", newest)
                away.follows, away.follows_since = member.call("follow"), time.monotonic()
                self._away.append(away)
            case Restart(_, after_s):
                away.attempts += 1
                if member is not None:
                    member.attempts = away.attempts
                    self._end(member)
                away.start_at, away.follows = time.monotonic() + after_s, None
                self._away.append(away)
            case Drop():
                if member is not None:
                    self._end(member)
            case Fail(cause, weights_lost):
                kind = WeightsGone if weights_lost else WorkersGone
                raise kind(cause, hint=LAST_HINT, host=away.spec.host)
        self._watch()

    def _end(self, member: WorkerHandle) -> None:
        self._session.joining.end(member)

    # --- Coming back -------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Until something may have changed about those who are away, at most so long."""
        self._heartbeat.wait(seconds)

    def look(self, step: int) -> None:
        """See how those are doing who are away, and what the user wants.

        Raises:
            WorkersGone: nobody takes part, and nobody came back in time.
            JobError: the user's code kills workers, or holds them up.
        """
        now = time.monotonic()
        there = [away.member for away in self._away if away.member is not None]
        deadline_s = self._session.config.slice_deadline_s
        self._session.crashes.look([*self._session.crew, *there], self._heartbeat, deadline_s)
        if self._session.control is not None:
            for command in self._session.control.poll():
                self._obey(command)
        for away in list(self._away):
            evidence = self._progress(away, now)
            if evidence is not None:
                self._failed(step, away, evidence)
        self._check_alone(now)

    def _failed(self, step: int, away: Rejoining, evidence: Evidence) -> None:
        """Decide about a worker that failed on its way back."""
        self._away.remove(away)
        standing = self._standing(away.attempts, len(self._session.crew), len(self._away))
        if away.member is not None:
            self._blame(away.member, evidence)
        if not away.lost and away.member is not None:
            self._crew.report_lost(step, away.member, _cause(evidence))
            away.lost = True
        decision = policy.decide(evidence, standing)
        LOG.info("step %d: %s on its way back: %s -> %s", step, away.name, evidence, decision)
        self._carry_out(decision, away, step)

    def _progress(self, away: Rejoining, now: float) -> Evidence | None:
        """Help a worker on its way back; what it failed of, if it did."""
        joining = self._session.joining
        if away.opening is not None:
            if not away.opening.done():
                return None
            opening, away.opening = away.opening, None
            failure = opening.exception()
            if isinstance(failure, TrainingError):
                return Died(failure.cause)
            before, away.member = away.member, opening.result()
            if before is not None:
                away.member.clock = before.clock
            away.member.attempts = away.attempts
            away.follows, away.follows_since, away.since = away.member.call("follow"), now, now
            LOG.info("%s is open, and follows the run", away.name)
            self._watch()
            return None
        if away.start_at is not None:
            # On a host without a node Ray would wait for one too; but a host that is not back costs no attempt.
            if now >= away.start_at and away.spec.host in joining.hosts:
                away.start_at = None
                LOG.info("%s is started, attempt %d", away.name, away.attempts)
                away.opening = joining.new(away.spec) if away.member is None else joining.again(away.member)
            return None
        assert away.member is not None, "it has a process"
        assert away.follows is not None, "it was told to follow"
        beat = self._heartbeat.of(away.member.actor)
        if beat.ended:
            return Died(beat.ended)
        if beat.pulse.following or beat.is_silent:
            away.since = now
        if rpc.first_ready([away.follows], 0.0) is not None:
            return of_following(away.follows)
        waited = now - away.since
        return Hung(waited) if waited > away.patience_s else None

    def ready(self) -> list[WorkerHandle]:
        """Those who have caught up, and may take part."""
        return [member for _, member in self._ready()]

    def _ready(self) -> list[tuple[Rejoining, WorkerHandle]]:
        result = []
        for away in self._away:
            member = away.member
            if member is None or away.follows is None or member.host in self._draining:
                continue
            beat = self._heartbeat.of(member.actor)
            if beat.pulse.following and beat.asked >= away.follows_since and not beat.is_silent:
                result.append((away, member))
        return result

    def refuse(self, step: int, failed: Mapping[WorkerHandle, Evidence]) -> None:
        """These were ready, and could not be let in."""
        for away in [away for away in self._away if away.member in failed]:
            assert away.member is not None, "it was ready"
            self._failed(step, away, failed[away.member])

    def readmit(self, step: int, only: Collection[WorkerHandle] | None = None) -> bool:
        """Let those take part, from ``step`` on, who have caught up; returns whether there was anybody.

        Args:
            step: the one that is issued next.
            only: nobody but these; None: all.
        """
        entered = False
        for away, member in self._ready():
            if only is not None and member not in only:
                continue
            self._away.remove(away)
            learn_from_late(away, member)
            member.call_in(PING, "enter", step)
            member.entered = step
            LOG.info("step %d: %s has caught up, and takes part again", step, member.name)
            if away.lost:
                spec = away.spec
                self._session.journal.write(
                    WorkerJoined, worker=member.name, host=spec.host, device=member.device, name=spec.name
                )
            self._crew.enter(step, member, f"{member.name} takes part" if away.lost else f"{member.name} is back")
            entered = True
            self._watch()
        return entered

    def gather(self, step: int) -> None:
        """Let in who has caught up; where nobody takes part, wait until somebody does.

        Raises:
            WorkersGone: nobody came back in time.
        """
        self.readmit(step)
        if self._session.crew:
            return
        LOG.info("step %d: paused, no worker takes part", step)
        while not self._session.crew:
            self.wait(LOOK_S)
            self.look(step)
            self.readmit(step)
        LOG.info("step %d: continued", step)

    def worked(self, member: WorkerHandle) -> None:
        """A worker made a step."""
        member.steady += 1
        if member.steady >= policy.STEADY_STEPS:
            member.attempts = 0

    def _reopen(self) -> None:
        """Where a strategy begins anew the shards have moved: who is away can't follow any more, and is opened anew."""
        for away in self._away:
            if away.follows is not None and away.member is not None:
                self._end(away.member)
            if away.opening is not None:
                away.opening.add_done_callback(self._end_opened)
            away.follows = away.late = away.opening = None
            away.start_at = time.monotonic()
        self._session.joining.end_others(self._session.crew)  # of hosts that were drained just then
        self._watch()

    def _end_opened(self, opening: Future[WorkerHandle]) -> None:
        if opening.exception() is None:
            self._end(opening.result())

    # --- What the user wants -----------------------------------------------------------------------------------------

    def leaving(self) -> list[WorkerHandle]:
        """Workers of the crew that the user wants to leave; never all of the crew."""
        wanted = [member for member in self._session.crew if member.host in self._draining]
        return wanted if len(wanted) < len(self._session.crew) else []

    def dismiss(self, step: int, members: list[WorkerHandle]) -> None:
        """These get no part in the steps that are issued from now on; they still do what they were given."""
        for member in members:
            self._crew.report_lost(step, member, policy.decide(policy.Drained(), _ANY).cause)
            self._crew.leave(step, member, f"{member.host} is drained")

    def dismissed(self, member: WorkerHandle) -> None:
        """One of them has done all that it was given."""
        self._end(member)
        self._watch()

    def _obey(self, command: RunCommand) -> None:
        LOG.info("the user's command: %s", command)
        if command.command == "drain":
            self._draining.add(command.host)
            for away in [away for away in self._away if away.spec.host == command.host]:
                self._away.remove(away)
                if away.opening is not None:
                    away.opening.add_done_callback(self._end_opened)
                elif away.member is not None:
                    self._end(away.member)
        elif command.command == "add":
            there = [member.seat.spec for member in self._session.crew] + [away.spec for away in self._away]
            known = {(spec.host, spec.device) for spec in there}
            for spec in command.devices:
                self._draining.discard(spec.host)
                if (spec.host, spec.device) not in known:
                    self._away.append(Rejoining.new(spec))

    # --- Nobody left -------------------------------------------------------------------------------------------------

    def _check_alone(self, now: float) -> None:
        if self._session.crew or any(away.opening is not None for away in self._away):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > ALONE_S:
            host = self._away[0].spec.host if self._away else ""
            raise WorkersGone(
                f"no worker is left, and none came back within {ALONE_S:.0f} s", hint=LAST_HINT, host=host
            )

    def _watch(self) -> None:
        away = [away.member.actor for away in self._away if away.member is not None and away.follows is not None]
        crew, servers = self._session.crew, self._session.servers
        self._heartbeat.watch([*(member.actor for member in crew), *away, *(server.actor for server in servers)])


_ANY = RunStatus(others=1, coming=0)


def _cause(evidence: Evidence) -> str:
    decision = policy.decide(evidence, _ANY)
    return decision.cause
