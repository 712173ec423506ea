"""Changes which workers take part in a run, as the failure policy and the user decide.

A worker is away because it was set aside (it was silent or late, and can catch up by itself), because it is being
restarted, or because it is new. All of them come back in the same way: the worker follows the run with the newest
weights, and takes part from the next step that is issued. The others do not wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.protocol import RunCommand, WorkerJoined
from remote_agent.states import ControlCommand
from remote_agent.training.coordinator.members import HeldSlice, Rejoining, WorkerHandle
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery import apart, policy
from remote_agent.training.coordinator.recovery.policy import (
    Died,
    Drop,
    Evidence,
    Fail,
    Restart,
    RunStatus,
    SetAside,
)
from remote_agent.training.coordinator.recovery.reports import report_lost, report_starting, report_who_stays
from remote_agent.training.coordinator.session import Session
from remote_agent.training.coordinator.share_balancer import LAST_HINT, ShareBalancer
from remote_agent.training.deadlines import ALONE_S, HANGS_S, LOOK_S
from remote_agent.training.errors import TrainingError, WeightsGone, WorkersGone
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import PING, ShardLinkDown, StreamedResult
from remote_agent.training.shared.rpc import Ref

LOG = logging.getLogger(__name__)


def lose(session: Session, member: WorkerHandle, step: int, cause: str) -> None:
    """Remove a worker that was lost while no strategy was training; it is restarted when one trains again.

    Raises:
        WeightsGone: it was the last worker.
    """
    session.membership.members.remove(member)
    report_lost(session, step, member, Died(cause), Restart(cause, 0.0))
    session.joining.end(member)
    session.membership.away.append(Rejoining(member.seat.spec, member, time.monotonic(), lost=True))
    if not session.members:
        hint = "look at the host, then resume the run"
        raise WeightsGone(f"the last worker was lost: {cause}", hint=hint, host=member.host)


class Membership:
    """Changes which workers of a session take part, while a strategy trains.

    Args:
        on_server: see :class:`~remote_agent.training.coordinator.recovery.policy.RunStatus`.
    """

    def __init__(
        self,
        session: Session,
        balancer: ShareBalancer,
        heartbeat: Heartbeat,
        *,
        on_server: bool = True,
    ) -> None:
        self._session, self._balancer, self._heartbeat = session, balancer, heartbeat
        self._on_server = on_server
        record = session.membership
        self._members, self._away, self._draining = record.members, record.away, record.draining
        self._leaving = record.leaving
        self._alone_since: float | None = None
        if session.joining.entry is not None:
            self._reopen()
        self._watch()

    # --- Leaving -----------------------------------------------------------------------------------------------------

    def handle_failure(
        self, step: int, member: WorkerHandle, evidence: Evidence, *, newest: int, held: HeldSlice | None = None
    ) -> None:
        """Decide about a failed worker, and carry the decision out. The caller reissues its slices.

        A worker that has to leave is ended without a decision. A worker that is already gone is ignored.

        Args:
            newest: the newest step in which it was to take part.

        Raises:
            WorkersGone: it was the last worker, and will not come back.
            TrainingError: the batch does not fit into the others' memory.
        """
        if member in self._leaving:
            self._release(member)
        if member not in self._members:
            return
        others = [other for other in self._members if other is not member]
        if member.host in self._draining and others:
            evidence = policy.Drained()
        self._blame(member, evidence)
        decision = policy.decide(evidence, self._status(member.attempts, len(others), len(self._away)))
        LOG.info("step %d: %s: %s", step, member.name, decision)
        if isinstance(evidence, policy.ShardLinkDown) and isinstance(decision, SetAside):
            member.attempts += 1
        lost = not isinstance(decision, SetAside) or decision.lost
        if lost:
            report_lost(self._session, step, member, evidence, decision)
        self._leave(step, member, f"{member.name} was lost" if lost else f"{member.name}: {decision.cause}")
        is_late = isinstance(evidence, policy.Late)
        away = Rejoining(
            member.seat.spec, member, time.monotonic(), lost, held, is_late=is_late, attempts=member.attempts
        )
        self._carry_out(decision, away, newest)

    def start_leaving(self, step: int) -> None:
        """Exclude workers on drained hosts from ``step`` and later steps; one host always stays."""
        for member in self._session.membership.to_leave():
            report_lost(self._session, step, member, policy.Drained(), _DRAINED)
            self._leave(step, member, f"{member.host} is drained")
            self._leaving.append(member)

    def release_idle(self, busy: Collection[WorkerHandle] = ()) -> None:
        """End workers that have to leave and are not ``busy`` with earlier slices."""
        for member in [member for member in self._leaving if member not in busy]:
            self._release(member)

    def _leave(self, step: int, member: WorkerHandle, reason: str) -> None:
        self._members.remove(member)
        self._balancer.recut(step, reason)

    def _release(self, member: WorkerHandle) -> None:
        self._leaving.remove(member)
        self._end(member)
        self._watch()

    def _blame(self, member: WorkerHandle, evidence: Evidence) -> None:
        """Check whether the user's code caused the failure."""
        if isinstance(evidence, Died):
            self._session.crashes.died(member.seat, member.actor, evidence.cause)
        elif isinstance(evidence, policy.Hung):
            self._session.crashes.hung(member.seat, member.actor, self._heartbeat.of(member.actor).pulse.busy)

    def _status(self, attempts: int, others: int, coming: int) -> RunStatus:
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
                self._away.append(away)
                kind = WeightsGone if weights_lost else WorkersGone
                raise kind(cause, hint=LAST_HINT, host=away.spec.host)
        self._watch()

    def _end(self, member: WorkerHandle) -> None:
        self._session.joining.end(member)

    # --- Coming back -------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait until the state of workers that are away may have changed, up to a limit."""
        self._heartbeat.wait(seconds)

    def refresh(self, step: int) -> None:
        """Advance the return of workers that are away, and carry out the user's commands.

        Raises:
            WorkersGone: no worker takes part, and none came back in time.
            JobError: the user's code kills workers, or hangs.
        """
        now = time.monotonic()
        there = [away.member for away in self._away if away.member is not None]
        deadline_s = self._session.config.slice_deadline_s
        self._session.crashes.look([*self._members, *there], self._heartbeat, deadline_s)
        if self._session.control is not None:
            for command in self._session.control.poll():
                self._obey(step, command)
                if command.command is ControlCommand.DRAIN:
                    report_who_stays(self._session, step)
        for away in list(self._away):
            evidence = self._progress(away, now)
            if evidence is not None:
                self._failed(step, away, evidence)
        self._check_alone(now)

    def _failed(self, step: int, away: Rejoining, evidence: Evidence) -> None:
        """Decide about a worker that failed on its way back."""
        self._away.remove(away)
        status = self._status(away.attempts, len(self._members), len(self._away))
        if away.member is not None and away.follows is not None:  # otherwise the heartbeat knows the earlier process
            self._blame(away.member, evidence)
        decision = policy.decide(evidence, status)
        waits = isinstance(decision, Restart) and decision.after_s > 0
        if waits or not away.lost:
            report_lost(self._session, step, away, evidence, decision if waits else policy.decide(evidence, _ANY))
            away.lost = True
        LOG.info("step %d: %s on its way back: %s", step, away.name, decision)
        self._carry_out(decision, away, step)

    def _progress(self, away: Rejoining, now: float) -> Evidence | None:
        """Advance the return of a worker; returns the evidence if it failed."""
        joining = self._session.joining
        if away.opening is not None:
            if not away.opening.done():
                return None
            opening, away.opening = away.opening, None
            if isinstance(failure := opening.exception(), TrainingError):
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
            # Ray would also wait for a node, but a host that is not back should not count as an attempt.
            if now >= away.start_at and away.spec.host in joining.hosts:
                away.start_at = None
                LOG.info("%s is started, attempt %d", away.name, away.attempts)
                if away.lost:
                    report_starting(self._session, away)
                away.opening = joining.new(away.spec) if away.member is None else joining.again(away.member)
            return None
        assert away.member is not None, "it has a process"
        assert away.follows is not None, "it was told to follow"
        beat = self._heartbeat.of(away.member.actor)
        if beat.ended:
            return Died(beat.ended)
        if beat.silent_s > HANGS_S and away.spec.host in joining.hosts:
            return policy.Silent(beat.silent_s, hangs=True)
        if beat.pulse.following or beat.is_silent:
            away.since = now
        if rpc.first_ready([away.follows], 0.0) is not None:
            return of_following(away.follows)
        waited = now - away.since
        return policy.Hung(waited) if waited > away.patience_s else None

    def ready(self, step: int) -> list[WorkerHandle]:
        """The workers that can take part; where workers exchange directly, those that can't are refused."""
        ready = [member for _, member in self._ready()]
        out = apart.leaving([*self._members, *ready], self._heartbeat) if ready and not self._on_server else {}
        self.refuse(step, {member: out[member] for member in ready if member in out})
        return [member for member in ready if member not in out]

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
        """Decide about workers that were ready, but failed when they should take part."""
        for away in [away for away in self._away if away.member in failed]:
            assert away.member is not None, "it was ready"
            self._failed(step, away, failed[away.member])

    def readmit(self, step: int, only: Collection[WorkerHandle] | None = None) -> bool:
        """Let workers that have caught up take part from ``step`` on; returns whether there was one.

        Args:
            step: the next step to issue.
            only: only these workers; None: all.
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
            self._members.append(member)
            self._balancer.recut(step, f"{member.name} takes part" if away.lost else f"{member.name} is back")
            entered = True
            self._watch()
        return entered

    def wait_for_members(self, step: int) -> None:
        """Let workers that have caught up take part from ``step`` on; if no worker takes part, wait for one.

        Raises:
            WorkersGone: none came back in time.
        """
        self.readmit(step)
        if self._members:
            return
        LOG.info("step %d: paused, no worker takes part", step)
        while not self._members:
            self.wait(LOOK_S)
            self.refresh(step)
            self.readmit(step)
        LOG.info("step %d: continued", step)

    def worked(self, member: WorkerHandle) -> None:
        member.steady += 1
        if member.steady >= policy.STEADY_STEPS:
            member.attempts = 0

    def _reopen(self) -> None:
        """Restart the workers that are away, and end those that leave, since a new strategy may have other shards."""
        self.release_idle()
        for away in self._away:
            if away.follows is not None and away.member is not None:
                self._end(away.member)
            if away.opening is not None:
                away.opening.add_done_callback(self._end_opened)
            away.follows = away.opening = None
            away.is_late = False
            away.start_at = time.monotonic()
        self._session.joining.end_others(self._session.members)  # of hosts that were drained just then

    def _end_opened(self, opening: Future[WorkerHandle]) -> None:
        if opening.exception() is None:
            self._end(opening.result())

    # --- What the user wants -----------------------------------------------------------------------------------------

    def _obey(self, step: int, command: RunCommand) -> None:
        about = command.host or ", ".join(f"{spec.host}/{spec.device}" for spec in command.devices)
        LOG.info("the user's command: %s %s", command.command, about)
        if command.command is ControlCommand.DRAIN:
            self._draining.add(command.host)
            for away in [away for away in self._away if away.spec.host == command.host]:
                self._away.remove(away)
                report_lost(self._session, step, away, policy.Drained(), _DRAINED)
                if away.opening is not None:
                    away.opening.add_done_callback(self._end_opened)
                elif away.member is not None:
                    self._end(away.member)
        else:
            there = {(member.seat.spec.host, member.seat.spec.device) for member in self._members}
            waiting = {(away.spec.host, away.spec.device): away for away in self._away}
            for spec in command.devices:
                self._draining.discard(spec.host)
                known = waiting.get((spec.host, spec.device))
                if known is None and (spec.host, spec.device) not in there:
                    self._away.append(Rejoining.new(spec))
                elif known is not None and known.start_at is not None:
                    known.start_at = time.monotonic()  # it failed before, and waited for the end of its pause

    # --- No worker left ----------------------------------------------------------------------------------------------

    def _check_alone(self, now: float) -> None:
        if self._members or any(away.opening is not None for away in self._away):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > ALONE_S:
            host = self._away[0].spec.host if self._away else ""
            cause = f"no worker is left, and none came back within {ALONE_S:.0f} s"
            raise WorkersGone(cause, hint=LAST_HINT, host=host)

    def _watch(self) -> None:
        away = [away.member.actor for away in self._away if away.member is not None and away.follows is not None]
        working = [member.actor for member in (*self._members, *self._leaving)]
        self._heartbeat.watch([*working, *away, *(server.actor for server in self._session.servers)])


_ANY = RunStatus(others=1, coming=0)
_DRAINED = policy.decide(policy.Drained(), _ANY)


# --- What a returning worker answers ----------------------------------------------------------------------------------


MAX_SLOWDOWN = 20.0
"""A slowdown of a late slice above this value counts as this value."""


def of_following(follows: Ref[ShardLinkDown | None]) -> Evidence | None:
    """The evidence of a call to follow that has ended, which it should not do before the worker takes part."""
    try:
        answer = rpc.get(follows, 0.0)
    except rpc.NoAnswer as error:
        return Died(rpc.describe(error))
    return Died(answer.cause if answer is not None else "it stopped following the run")


def learn_from_late(away: Rejoining, member: WorkerHandle) -> None:
    """Update the device's speed with the slice that was late."""
    if away.held is None or not away.is_late or away.lost:
        return
    samples = away.held.samples
    try:
        answer = rpc.get(away.held.answer, 0.0)
    except rpc.NoAnswer:
        return
    now = member.track.current
    if not isinstance(answer, StreamedResult) or not samples:
        return
    factor = min(MAX_SLOWDOWN, answer.compute_s / now.seconds(samples))
    if factor > 1:
        member.track = SpeedTrack(DeviceProfile(now.speed / factor, now.overhead_s * factor, now.max_batch))
