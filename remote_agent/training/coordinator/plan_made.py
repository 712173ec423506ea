"""Reports to the user how a run is carried out, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from remote_agent import protocol
from remote_agent.planning.simulator import tried
from remote_agent.planning.survey import Survey
from remote_agent.planning.ways import Prediction
from remote_agent.protocol import DeviceSpec
from remote_agent.strategies import spec_of
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.plan import run_plan, surveying
from remote_agent.training.coordinator.recovery import backups
from remote_agent.training.coordinator.session import Session


def report(session: Session, journal: Journal, host: str, planned: Survey | None, left_out: Mapping[str, str]) -> None:
    """Write the event of the plan, with the cut of the batch and the reasons.

    Args:
        host: the coordinator's.
        left_out: hosts that do not take part, and why.
    """
    profiles = [member.track.current for member in session.members]
    first = run_plan.first_cut(session.config, profiles, session.least_slice)
    predicted = surveying.predicted(session.config, planned) if planned is not None else None
    cut, seconds = first.samples, predicted.seconds if predicted is not None else first.seconds
    about_cut = tuple(
        f"{member.name}: {samples} of {sum(cut)} samples, measured {profile.speed:.0f} samples/s"
        f" + {profile.overhead_s * 1e3:.1f} ms a step"
        + (f" (simulated at {member.simulated_speed:g} of this computer)" if member.simulated_speed else "")
        + (", left out: the others are done before it starts" if not samples else "")
        + (", limited by max_batch" if samples and samples == profile.max_batch else "")
        for member, samples, profile in zip(session.members, cut, profiles, strict=True)
    )
    journal.write(
        protocol.PlanMade,
        strategy=session.config.strategy,
        shares=tuple(member.share(samples) for member, samples in zip(session.members, cut, strict=True)),
        iterations=session.config.num_iterations,
        predicted_step_s=seconds,
        cut=about_cut,
        reasons=(*first.about, *session.reasons, *backups.about(session, seconds, host)),
        terms={term.name: term.seconds for term in predicted.terms} if predicted is not None else {},
        left_out=dict(left_out),
    )


class Forecast:
    """Predicts a step with the workers that take part now, by what was measured before the run."""

    def __init__(self) -> None:
        self._workers: frozenset[str] = frozenset()
        self._seconds: float | None = None

    def seconds(self, session: Session) -> float | None:
        """Predicted seconds of a step; None: there is no prediction."""
        workers = frozenset(member.name for member in session.members)
        if workers != self._workers:
            self._workers, found = workers, _with_members(session) if workers else None
            self._seconds = found.seconds if found is not None else None
        return self._seconds


def _with_members(session: Session) -> Prediction | None:
    if session.survey is None or spec_of(session.config.strategy).split:
        return None
    parts: dict[str, float] = {}
    if session.stream is not None:
        layout = session.stream.layout
        for number, server in enumerate(session.servers):
            parts[server.host] = parts.get(server.host, 0.0) + layout.shard_numel(number) / max(1, layout.numel)
    names = {device.name for host in session.survey.hosts for device in host.devices}
    hosts = {member.host for member in session.members} | set(parts)
    there = session.survey.without(names - {member.name for member in session.members}).of(hosts)
    way = dataclasses.replace(surveying.way_of(session.config, there), parts=tuple(parts.items()))
    return tried(there, way)


def about_away(away: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """What the plan says about hosts that are away."""
    hosts = ", ".join(dict.fromkeys(spec.host for spec in away))
    return (f"{hosts}: away now; takes part once it is back",) if hosts else ()
