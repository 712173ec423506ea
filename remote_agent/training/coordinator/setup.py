"""All that comes before a run's first step: check, place, measure, plan, open."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from torch import nn

from remote_agent import protocol
from remote_agent.protocol import CONTROL_FILE, DeviceSpec
from remote_agent.training import job
from remote_agent.training.checkpoint.checkpoint import Checkpoint
from remote_agent.training.checkpoint.optimizer_state import Resumption, TrainingState
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import lazy, resuming, snapshots, sources, transfer, validation
from remote_agent.training.coordinator.control import Control
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.members import MembershipRecord, Rejoining, WorkerHandle
from remote_agent.training.coordinator.plan import placement, run_plan
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.plan.measure import Candidate, Measurements, measure
from remote_agent.training.coordinator.plan.run_plan import Profile
from remote_agent.training.coordinator.processes import actors
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.processes.joining import Joining
from remote_agent.training.coordinator.recovery import backups
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.session import EvaluationRecord, Session
from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.shared.schedule import rates_of
from remote_agent.training.user_code import checks


@contextlib.contextmanager
def session_of(
    request: Request, journal: Journal, stopping: Callable[[], bool], crashes: Crashes, *, again: bool = False
) -> Iterator[tuple[Session, nn.Module]]:
    """All that comes before the first step: check, place, measure, plan. The actors end when the block does.

    Args:
        request: the run.
        journal: where its events go.
        stopping: true once the user wants it to end early.
        crashes: is told of workers that die.
        again: the journal says already that the run begins or goes on.

    Yields:
        The session for a strategy, and the coordinator's own copy of the model (on the CPU, with the first weights).
    """
    model = job.create_model(request.job.factory, request.config.seed)
    found = resuming.find(request.resume, request.folder)
    validated_on = validation.of_job(request, request.config)
    given = job.guard("create_data", request.job.create_data)
    if again and datasets.is_used_up(given):
        raise JobError(
            "the run has to start over, and its data is an iterator that was read from",
            hint="start the run again; with a function that returns an iterator it does so by itself",
        )
    with contextlib.closing(sources.source_of(given)) as source:
        config = resuming.settings(request.config, found, source.size)
        config, order = source.open(config, resuming.begin(found, request.folder))
        request = dataclasses.replace(request, config=config)
        lazy.give_shapes(model, request.job.factory, source)
        checks.refuse_hooks(model, config)
        _check_optimizer(request, model)
        resumed = _begin(request, journal, model, found, again=again)
        with actors.started(request, model, source.for_workers()) as (servers, optimizer, candidates, workers):
            validation.check_plateau(optimizer.plateau, config.keep_best, validated_on)
            for candidate in candidates:
                spec = candidate.seat.spec
                journal.write(
                    protocol.WorkerJoined,
                    worker=candidate.seat.worker,
                    host=spec.host,
                    device=candidate.opened.device,
                    name=spec.name,
                )
            if not config.deterministic:  # with one thread each
                _share_cores(candidates)
            measured = measure(candidates, config.batch_size, config.measure_seconds, crashes)
            if optimizer.hooked:
                measured = measured.moving(flat.state(model))
            dtypes = {name: str(each.dtype).removeprefix("torch.") for name, each in flat.trained(model).items()}
            limits = [candidate.seat.spec.max_batch for candidate in candidates]
            profile = Profile(measured=measured, optimizer=optimizer, dtypes=dtypes, max_batches=limits)
            planned = run_plan.plan(config, profile, order)
            config = planned.config
            members = _members(candidates, measured, config, watched=planned.watched)
            if resumed is not None:
                snapshots.restore(servers, members, resumed)
            path = transfer.open_transport(config, model, optimizer, measured.usage, servers, members)
            joining = Joining(
                workers,
                path.entry,
                buffers=sorted(measured.usage.buffers),
                reference=measured.reference,
                config=config,
            )
            session = Session(
                config=config,
                membership=MembershipRecord(members, [Rejoining.new(spec) for spec in request.away]),
                servers=path.servers,
                order=order,
                source=source,
                crashes=crashes,
                payload_bytes=path.payload_bytes,
                buffer_names=tuple(sorted(measured.usage.buffers)),
                journal=journal,
                stopping=stopping,
                reasons=(
                    *path.reasons,
                    *source.notes,
                    *planned.reasons,
                    *_about_away(request.away),
                ),
                shapes={name: flat.trained(model)[name].shape for name in path.names},
                stream=path.stream,
                first_loss=measured.loss,
                first_state=resumed.state if resumed is not None else TrainingState(),
                pool=servers,
                joining=joining,
                control=Control(request.folder / CONTROL_FILE),
                validation=validated_on,
                evaluations=EvaluationRecord(found.watched if found is not None else ()),
                plateau=optimizer.plateau,
                rates=rates_of(request.job.factory, model, config),
            )
            _plan(session, journal, request.host, path.exchange_s)
            with joining:
                yield session, model


# --- Before the first step -------------------------------------------------------------------------------------------


def _check_optimizer(request: Request, model: nn.Module) -> None:
    """Build optimizer and scheduler once here, where a mistake in them shows before any actor is started."""
    optimizer = job.create_optimizer(request.job.factory, model, request.config)
    if job.has_scheduler(request.job.factory):
        job.create_scheduler(request.job.factory, optimizer, request.config)


def _begin(
    request: Request, journal: Journal, model: nn.Module, found: Checkpoint | None, *, again: bool
) -> Resumption | None:
    """Write that the run begins or goes on, and have its first weights in ``model``; the state that goes with them."""
    config = request.config
    if not again and (found is None or not journal.continued):
        journal.write(
            protocol.RunStarted,
            run=request.run,
            job=request.job.name,
            host=request.host,
            iterations=config.num_iterations,
            batch_size=config.batch_size,
            parameters=sum(parameter.numel() for parameter in flat.trained(model).values()),
            config=dataclasses.asdict(config),
        )
    if found is None:
        return None
    resuming.into_model(found, model)
    state = resuming.usable(config, found)
    if again:
        return Resumption(step=found.step, state=state)
    journal.write(
        protocol.RunResumed,
        step=found.step,
        host=request.host,
        checkpoint=str(found.path),
        samples=found.position,
        iterations=config.num_iterations,
        cause=journal.ended,
        notes=resuming.notes(found, state, len(request.devices)),
    )
    return Resumption(step=found.step, state=state)


def _share_cores(candidates: Sequence[Candidate]) -> None:
    """Have workers on one computer use no more threads together than it has cores, whatever their hosts' names."""
    on = [(candidate.opened.machine, candidate.opened.cores) for candidate in candidates]
    seats = placement.without_sharing([candidate.seat for candidate in candidates], on)
    for candidate, seat in zip(candidates, seats, strict=True):
        if seat != candidate.seat:
            candidate.seat = seat
            candidate.actor.call("use_threads", seat.threads)


def _members(
    candidates: list[Candidate], measured: Measurements, config: TrainingConfig, *, watched: bool
) -> list[WorkerHandle]:
    """The workers as measured; each is told what the measurement means for it."""
    for candidate in candidates:
        candidate.actor.call("prepare", sorted(measured.usage.buffers), measured.reference, config, watched)
    return [
        WorkerHandle(candidate.seat, candidate.actor, SpeedTrack(profile), candidate.opened.simulated_speed)
        for candidate, profile in zip(candidates, measured.profiles, strict=True)
    ]


def _about_away(away: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """What the plan says of hosts that are not there."""
    hosts = ", ".join(dict.fromkeys(spec.host for spec in away))
    return (f"{hosts}: away now; takes part once it is back",) if hosts else ()


def _plan(session: Session, journal: Journal, host: str, exchange_s: float) -> None:
    """Write how the batch is cut and why; ``host`` is the coordinator's."""
    profiles = [member.track.current for member in session.members]
    first = run_plan.first_cut(session.config, profiles, session.least_slice)
    cut, seconds = first.samples, run_plan.predicted_step_s(session.config, first.seconds, exchange_s)
    reasons = [
        f"{member.name}: {samples} of {sum(cut)} samples, measured {profile.speed:.0f} samples/s"
        f" + {profile.overhead_s * 1e3:.1f} ms a step"
        + (f" (simulated at {member.simulated_speed:g} of this computer)" if member.simulated_speed else "")
        + (", left out: the others are done before it starts" if not samples else "")
        + (", limited by max_batch" if samples and samples == profile.max_batch else "")
        for member, samples, profile in zip(session.members, cut, profiles, strict=True)
    ]
    reasons += [*first.about, *session.reasons, *backups.about(session, seconds, host)]
    journal.write(
        protocol.PlanMade,
        strategy=session.config.strategy,
        shares=tuple(member.share(samples) for member, samples in zip(session.members, cut, strict=True)),
        iterations=session.config.num_iterations,
        predicted_step_s=seconds,
        reasons=tuple(reasons),
    )
