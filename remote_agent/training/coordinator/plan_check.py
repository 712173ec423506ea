"""Compares a run's steps with its plan, corrects wrong predictions, and changes the plan if another one is better.

``planning.self_check`` decides. Shares follow the devices' speeds without this module (``share_balancer``). If the
devices' speeds do not explain the difference, the links are measured again, at the end of a step when nothing else is
in progress. A better plan (other hosts, other shard sites, another strategy if the user left it open) uses the same
mechanism as the loss of all workers: a checkpoint, and a new start of the run.
"""

from __future__ import annotations

import dataclasses
import logging
import time

from remote_agent import protocol
from remote_agent.planning import media, self_check
from remote_agent.planning.self_check import Seen, SelfCheck
from remote_agent.planning.simulator import tried
from remote_agent.planning.sites import DoesNotFit
from remote_agent.planning.survey import Host, Survey
from remote_agent.planning.ways import Prediction, Way
from remote_agent.strategies import spec_of
from remote_agent.training.checkpoint.saver import Saver
from remote_agent.training.coordinator.plan import profiles, surveying
from remote_agent.training.coordinator.session import Session, StepReport
from remote_agent.training.errors import BetterPlan, TrainingError
from remote_agent.training.shared import link_speed

LOG = logging.getLogger(__name__)

MOST_MEASURING = 0.05
"""Largest part of the run's passed and remaining time for measuring links."""


class PlanCheck:
    """Compares a run's steps with its plan; ``session``: the run's, before its first step."""

    def __init__(self, session: Session, saver: Saver) -> None:
        self._saver = saver
        self._plan_basis = None if spec_of(session.config.strategy).split else session.plan_basis
        self._survey = self._plan_basis.survey if self._plan_basis is not None else None
        self._check: SelfCheck | None = None
        self.planned_s: float | None = None
        """What :meth:`predicted_s` was first: seconds of a step, before any correction; None: nothing was."""
        self._workers: frozenset[str] = frozenset()
        self._began = time.monotonic()
        self._measured_at: float | None = None
        self._better_since: float | None = None  # another plan would have been better; None: no other one is

    def predicted_s(self, session: Session) -> float | None:
        """Predicted seconds of a step with the present workers; None: there is no prediction."""
        workers = frozenset(member.name for member in session.members)
        if workers != self._workers:
            self._workers, self._check, self._better_since = workers, None, None
            found = self._predicted(session, self._survey) if self._survey is not None and workers else None
            self._check = SelfCheck(predicted=found) if found is not None else None
            if self.planned_s is None and found is not None:
                self.planned_s = found.seconds
        return self._check.predicted.seconds if self._check is not None else None

    def after(self, session: Session, report: StepReport, samples: int) -> BetterPlan | None:
        """Check the plan after a step.

        Args:
            samples: number of the run's samples so far.

        Returns:
            An error to raise once the step is in a checkpoint; None: the run continues unchanged.
        """
        if self._check is None or not report.workers:
            return None
        self._check = self._check.after(_seen(session, report, self._check.predicted))
        keeping, is_wanted = session.keeping, self._check.is_off or self._has_lasted
        if keeping.check_due == report.step:
            return self._look(session, report, samples) if is_wanted else None
        if is_wanted and (keeping.check_due or 0) <= report.step:
            keeping.check_due = session.soonest(report.step)  # after that step nothing is under way
        return None

    @property
    def _has_lasted(self) -> bool:
        """Whether another plan has been better for so long that it is looked at again."""
        since, basis, check = self._better_since, self._plan_basis, self._check
        if since is None or basis is None or check is None or not check.seen:
            return False
        return self_check.has_lasted(time.monotonic() - since, basis.pause_s)

    def _look(self, session: Session, report: StepReport, samples: int) -> BetterPlan | None:
        """Find the reason for a wrong prediction, while nothing else is in progress, and correct it.

        Another plan that is better is carried out if it has been better for a while, since a restart costs more than
        most disturbances.
        """
        assert self._plan_basis is not None, "it was predicted"
        assert self._survey is not None, "it was predicted"
        assert self._check is not None, "it was predicted"
        found, before = self._check.median, self._survey
        now = before.now({member.name: member.track.current for member in session.members})
        predicted = self._predicted(session, now)
        left = session.samples_left(report.step, samples, report.samples)
        left_s = left / report.samples * found.seconds
        if predicted is None or not self_check.explains(predicted, found):
            now = self._with_links(session, now, left_s)
        way, part = self._present(session, now)
        try:
            part, predicted = self_check.corrected(part, way, found)
        except DoesNotFit:
            self._better_since = None
            return None
        now = dataclasses.replace(now, ratios=part.ratios, other_s=part.other_s)
        best = self._better(session, now, predicted, left)
        clock_s = time.monotonic()
        since = clock_s - self._check.seconds if self._better_since is None else self._better_since
        self._better_since = since if best is not None else None
        restarts = best is not None and self_check.has_lasted(clock_s - since, self._plan_basis.pause_s)
        is_off = self._check.is_off
        why = self_check.what_was_off(self._check) if is_off else self_check.what_lasts(self._check, clock_s - since)
        reasons = [why, *self_check.what_changed(before, now)]
        reasons += [self_check.what_is_better(best, at_once=restarts)] if best is not None else []
        reason = "; ".join(reasons)
        session.journal.write(
            protocol.Replanned,
            step=report.step + 1,
            reason=reason,
            predicted_step_s=(best if best is not None and restarts else predicted).seconds,
            ratios=self._check.ratios,
            restarts=restarts,
        )
        profiles.keep(self._plan_basis.place, self_check.remembered(self._plan_basis.survey, now))
        self._survey, self._check = now, SelfCheck(predicted=predicted)
        return BetterPlan(reason, hint="resume the run") if restarts else None

    def _better(self, session: Session, now: Survey, predicted: Prediction, left: float) -> Prediction | None:
        """A better plan, if the run can start over and has not just done so."""
        plan_basis = self._plan_basis
        assert plan_basis is not None, "it was predicted"
        is_soon = self_check.is_soon(plan_basis.replanned, time.monotonic() - self._began, plan_basis.pause_s)
        newest = self._saver.newest  # where the optimizers would start afresh, the run stays as it is
        can_restart = not spec_of(session.config.strategy).rounds and not (newest is not None and newest.missing)
        if is_soon or not can_restart or session.membership.draining or session.source.size is None:
            return None
        living = now.now({}, gone=self._gone(session, now))
        living = living.of([host.name for host in living.hosts if host.devices])
        return self_check.better(living, predicted, plan_basis.limits, left, plan_basis.pause_s)

    def _with_links(self, session: Session, now: Survey, left_s: float) -> Survey:
        """The survey with new measurements of the links, if measuring takes little of the run's time."""
        actors = {server.host: server.actor for server in reversed(session.servers)}
        actors |= {member.host: member.actor for member in reversed(session.members)}
        places: dict[str, list[Host]] = {}
        for host in now.hosts:
            places.setdefault(host.computer or host.name, []).append(host)
        asked = [host.name for hosts in places.values() for host in hosts[:1] if host.name in actors]
        takes_s, clock_s = link_speed.survey_seconds(len(asked)), time.monotonic()
        is_soon = self._measured_at is not None and clock_s - self._measured_at < takes_s / MOST_MEASURING
        if len(asked) < 2 or is_soon:
            return now
        if takes_s > MOST_MEASURING * left_s:
            return now
        self._measured_at = clock_s
        try:
            rates = link_speed.survey(asked, [actors[name] for name in asked])
        except TrainingError as error:  # a worker was lost: the next step finds out
            LOG.info("links were not measured: %s", error)
            return now
        found = dict(zip(asked, rates, strict=True))
        first_of = {host.name: hosts[0].name for hosts in places.values() for host in hosts}
        hosts = tuple(
            host
            if (rate := found.get(first_of[host.name])) is None
            else dataclasses.replace(host, up=rate.up, down=rate.down, reachable=rate.reachable)
            for host in now.hosts
        )
        at_once = {name: found[first].at_once for name, first in first_of.items() if first in found}
        return media.measured_again(dataclasses.replace(now, hosts=hosts), at_once)

    # --- What is now -------------------------------------------------------------------------------------------------

    def _gone(self, session: Session, survey: Survey) -> frozenset[str]:
        """Devices that should take part but do not."""
        assert self._plan_basis is not None, "it was predicted"
        meant = {device.name for host in survey.of(self._plan_basis.hosts).hosts for device in host.devices}
        return frozenset(meant - {member.name for member in session.members})

    def _present(self, session: Session, survey: Survey) -> tuple[Way, Survey]:
        """The run's present way to train, and the survey of its hosts."""
        parts: dict[str, float] = {}
        if session.stream is not None:
            layout = session.stream.layout
            for number, server in enumerate(session.servers):
                parts[server.host] = parts.get(server.host, 0.0) + layout.shard_numel(number) / max(1, layout.numel)
        hosts = {member.host for member in session.members} | set(parts)
        part = survey.now({}, gone=self._gone(session, survey)).of(hosts)
        way = surveying.way_of(session.config, part)
        return dataclasses.replace(way, parts=tuple(parts.items())), part

    def _predicted(self, session: Session, survey: Survey) -> Prediction | None:
        way, part = self._present(session, survey)
        return tried(part, way)


def _seen(session: Session, report: StepReport, predicted: Prediction) -> Seen:
    """What the step shows; where no worker waits for others, it shows no more than its own time."""
    compute_s = max(worker.compute_s for worker in report.workers)
    scale = predicted.samples / report.samples  # a shorter batch at an epoch's end
    return Seen(seconds=report.seconds * scale, compute_s=compute_s * scale)
