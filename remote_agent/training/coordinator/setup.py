"""Prepares a run for its first step: checks, places, measures, plans, and opens workers and servers."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from torch import nn

from remote_agent import protocol
from remote_agent.models.blocks import CannotCut
from remote_agent.protocol import CONTROL_FILE
from remote_agent.strategies import spec_of
from remote_agent.training import job
from remote_agent.training.checkpoint.checkpoint import Checkpoint
from remote_agent.training.checkpoint.optimizer_state import Resumption, TrainingState
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import (
    auditing,
    lazy,
    model_size,
    optimizer_check,
    plan_made,
    resuming,
    snapshots,
    sources,
    transfer,
    validation,
)
from remote_agent.training.coordinator.control import Control
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.members import MembershipRecord, Rejoining, WorkerHandle
from remote_agent.training.coordinator.plan import profiles, run_plan, siting
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.plan.measurements import Measurements
from remote_agent.training.coordinator.plan.run_plan import Profile, RunPlan
from remote_agent.training.coordinator.plan.siting import Located, ShardHosts
from remote_agent.training.coordinator.plan.surveying import Fleet
from remote_agent.training.coordinator.processes import actors
from remote_agent.training.coordinator.processes.actors import Servers, Workers
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.processes.joining import Joining
from remote_agent.training.coordinator.processes.measure import Candidate, measure, share_cores
from remote_agent.training.coordinator.recovery import restart
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.schedule import Schedule
from remote_agent.training.coordinator.session import EvaluationRecord, Session
from remote_agent.training.coordinator.sources import Source
from remote_agent.training.coordinator.validation import Validation
from remote_agent.training.data import datasets
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.errors import JobError
from remote_agent.training.shared import audit, flat
from remote_agent.training.shared.dataplane import OptimizerFacts
from remote_agent.training.shared.optimizer_options import OptimizerOptions
from remote_agent.training.user_code import checks
from remote_agent.training.worker.device.audit import uses_batch_statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ready:
    """A run that is measured and planned, with open actors."""

    request: Request
    model: nn.Module
    order: SampleOrder
    source: Source
    found: Checkpoint | None
    resumed: Resumption | None
    validated_on: Validation | None
    servers: Servers
    workers: Workers
    optimizer: OptimizerFacts
    candidates: list[Candidate]
    measured: Measurements
    there: ShardHosts
    planned: RunPlan
    began: float


@contextlib.contextmanager
def ready(
    request: Request,
    journal: Journal,
    crashes: Crashes,
    *,
    again: bool = False,
    plans: bool = False,
    tell: Callable[[str], None] = lambda _: None,  # a run writes events
) -> Iterator[Ready]:
    """Check, place, measure and plan. The actors end with the ``with`` block.

    Args:
        again: the journal already says that the run starts or resumes.
        plans: measure the links even if they are known.
        tell: called with the progress.
    """
    began = time.monotonic()
    names = dict.fromkeys(device.host for device in request.devices)
    hosts = ", ".join(names)
    tell(f"starting workers on {hosts}")
    with contextlib.nullcontext() if spec_of(request.config.strategy).split else model_size.limited(request.host):
        model = job.create_model(request.job.factory, request.config.seed, request.config)
    found = resuming.find(request.resume, request.folder)
    seed = request.config.seed if found is None else found.seed
    given = sources.given_by(request.job, seed, request.config.batch_size)
    if again and datasets.is_used_up(given):
        raise JobError(
            "the run has to start over, and its data is an iterator that was read from",
            hint="start the run again; with a function that returns an iterator it does so by itself",
        )
    with contextlib.closing(sources.source_of(given)) as source:
        config = resuming.settings(request.config, found, source.size)
        config, order = source.open(config, resuming.begin(found, request.folder))
        validated_on = validation.of_job(request, config)
        lazy.give_shapes(model, request.job.factory, source)
        batch_statistics = uses_batch_statistics(model)
        limits = (config.micro_batch, *(device.max_batch for device in request.devices))
        room = min((limit for limit in limits if limit), default=None)
        config = audit.with_unit(config, batch_statistics=batch_statistics, room=room)
        request = restart.with_fewer_shards(dataclasses.replace(request, config=config))
        config = request.config
        checks.refuse_hooks(model, config)
        if spec_of(config.strategy).split:
            try:
                spec_of(config.strategy).strategy().check(model, request.job.factory)
            except CannotCut as error:
                raise CannotCut("; ".join((*request.notes, error.cause)), hint=error.hint) from error
        checked = optimizer_check.check(request, model)
        validation.check_plateau(checked.plateau, config.keep_best, validated_on, found)
        resumed = _begin(request, journal, model, found, checked.kind, again=again)
        if checked.idle and not again:
            journal.write(protocol.Notice, step=order.done, host=request.host, text="; ".join(checked.idle))
        alone = auditing.on_head(request, model, source, order, config) if not again else None
        if alone is not None:
            audit.refuse(alone, config)
        started = actors.started(request, model, source.for_workers(), checked.options)
        with started as (servers, optimizer, candidates, workers):
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
                share_cores(candidates)
            apart = audit.kinds_apart(config, [candidate.opened.device for candidate in candidates])
            if apart and not again:
                journal.write(protocol.Notice, step=order.done, host=request.host, text=apart)
            is_alone = request.profile is not None and not profiles.beside(request.profile)
            there = f"{len(candidates)} workers are" if len(candidates) > 1 else "1 worker is"
            tell(f"{there} there, each measures slices of the job's own samples")
            # A new head has no profiles: it takes what the checkpoint says of the fleet.
            carried = found.survey if found is not None and request.same_job and journal.left else ""
            before = profiles.read(request.profile) or profiles.decoded(carried)
            asked = config.batch_size, config.measure_seconds, config.slice_deadline_s
            again_here = bool(journal.left) and before is not None and {*names} <= {*before.names}
            measured = measure(candidates, *asked, crashes, again=again_here, audit=alone)
            measured = measured.moving(
                flat.state(model) if optimizer.hooked or request.moving else resuming.moving(found, model)
            )
            if len(names) > 1:
                tell(f"devices are measured, now the links between {hosts}")
            knows = before is not None and before.hosts[0].up > 0 and not before.is_old(time.time())
            plans = plans or not knows
            fleet = _fleet(request, model, servers, candidates, checked.relative, plans=plans)
            profile = Profile(
                before=before,
                measured=measured,
                optimizer=optimizer,
                dtypes={name: str(each.dtype).removeprefix("torch.") for name, each in flat.trained(model).items()},
                max_batches=[candidate.seat.spec.max_batch for candidate in candidates],
                fleet=fleet,
                batch_statistics=batch_statistics,
            )
            planned = run_plan.plan(config, profile, order)
            known = planned.whole
            # Where the model is cut, what its blocks take belongs to that, which only workers know.
            if is_alone and known is not None and (plans or known.hosts[0].up) and not spec_of(config.strategy).split:
                profiles.keep(request.profile, known)
            yield Ready(
                request=request,
                model=model,
                order=order,
                source=source,
                found=found,
                resumed=resumed,
                validated_on=validated_on,
                servers=servers,
                workers=workers,
                optimizer=optimizer,
                candidates=candidates,
                measured=planned.measured,
                there=fleet.there,
                planned=planned,
                began=began,
            )


@contextlib.contextmanager
def session_of(
    request: Request,
    journal: Journal,
    stopping: Callable[[], bool],
    crashes: Crashes,
    *,
    again: bool = False,
) -> Iterator[tuple[Session, nn.Module]]:
    """Prepare a run for its first step; see :func:`ready` and :func:`opened`."""
    with ready(request, journal, crashes, again=again) as known, opened(known, journal, stopping, crashes) as session:
        yield session


@contextlib.contextmanager
def opened(
    known: Ready, journal: Journal, stopping: Callable[[], bool], crashes: Crashes
) -> Iterator[tuple[Session, nn.Module]]:
    """Open what was planned.

    Args:
        stopping: returns True once the user wants the run to end early.

    Yields:
        The session for a strategy, and the coordinator's own copy of the model (on the CPU, with the first weights).
    """
    request, planned, measured = known.request, known.planned, known.measured
    model, config, servers, optimizer = known.model, planned.config, known.servers, known.optimizer
    candidates, there = known.candidates, known.there
    if planned.hosts is not None:
        candidates, measured, there = _only(planned.hosts, candidates, measured, there, known.workers)
    saved = resuming.scheduler_state(known.found, config)
    schedule = Schedule(request.job.factory, model, config, saved)
    members = _members(candidates, measured, config, options=schedule.base)
    if known.resumed is not None and not spec_of(config.strategy).split:  # otherwise each stage gets its own part
        snapshots.restore(servers, members, known.resumed, inner=spec_of(config.strategy).rounds)
    path = transfer.open_transport(config, model, optimizer, measured.usage, servers, members, there)
    joining = Joining(
        known.workers,
        path.entry,
        buffers=sorted(measured.usage.buffers),
        reference=measured.reference,
        config=config,
        options=schedule.base,
        audit=measured.audit,
    )
    session = Session(
        config=config,
        membership=MembershipRecord(members, [Rejoining.new(spec) for spec in request.away]),
        servers=path.servers,
        order=known.order,
        source=known.source,
        crashes=crashes,
        payload_bytes=path.payload_bytes,
        buffer_names=tuple(sorted(measured.usage.buffers)),
        terms=measured.usage.terms,
        journal=journal,
        stopping=stopping,
        reasons=(
            *path.reasons,
            *known.source.notes,
            *schedule.notes,
            *planned.reasons,
            *plan_made.about_away(request.away),
            *_about_room(request),
        ),
        shapes={name: flat.trained(model)[name].shape for name in path.names},
        stream=path.stream,
        first_loss=measured.loss,
        first_state=known.resumed.state if known.resumed is not None else TrainingState(),
        pool=servers,
        joining=joining,
        control=Control(request.folder / CONTROL_FILE, request.commands),
        validation=known.validated_on,
        evaluations=EvaluationRecord(resuming.watched(known.found, config)),
        schedule=schedule,
        survey=planned.whole,
        profile=request.profile,
        first_weights=flat.carried(model),
    )
    if not spec_of(config.strategy).split:  # a pipeline's plan is its cut, which is decided at the first step
        computing = {member.host for member in members}
        small = {spec.host: why for spec, why in request.small if spec.host not in computing}
        plan_made.report(session, journal, request.host, planned.survey, {**planned.left_out, **small})
    with joining:
        yield session, model


# --- Before the first step -------------------------------------------------------------------------------------------


def _begin(
    request: Request, journal: Journal, model: nn.Module, found: Checkpoint | None, kind: str, *, again: bool
) -> Resumption | None:
    """Write that the run starts or resumes, load its first weights into ``model``, and return the state with them."""
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
    state = resuming.usable(config, found, kind, flat.trained_as(model))
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
        notes=resuming.notes(found, config, state, len(request.devices)),
        config=dataclasses.asdict(config),
    )
    return Resumption(step=found.step, state=state)


def _members(
    candidates: list[Candidate], measured: Measurements, config: TrainingConfig, *, options: OptimizerOptions
) -> list[WorkerHandle]:
    """The measured workers; each gets the settings that follow from the measurement."""
    for candidate in candidates:
        candidate.actor.call("prepare", sorted(measured.usage.buffers), measured.reference, config, options)
    return [
        WorkerHandle(candidate.seat, candidate.actor, SpeedTrack(profile), candidate.opened.simulated_speed)
        for candidate, profile in zip(candidates, measured.profiles, strict=True)
    ]


def _about_room(request: Request) -> tuple[str, ...]:
    """What the plan says of devices that have no room for the model, and of what follows from that."""
    return (*request.notes, *(f"{spec.host} ({spec.device}): left out: {why}" for spec, why in request.small))


def _fleet(
    request: Request,
    model: nn.Module,
    servers: Servers,
    candidates: Sequence[Candidate],
    relative: float,
    *,
    plans: bool,
) -> Fleet:
    """The devices and their places, with their links if these affect a decision."""
    numel = sum(parameter.numel() for parameter in flat.trained(model).values())
    located = [Located(host=servers.first.host, actor=servers.first.actor, computes=False)]
    located += [Located(host=each.seat.spec.host, actor=each.actor) for each in candidates]
    return Fleet(
        job=request.job.name,
        names=[candidate.seat.worker for candidate in candidates],
        specs=[candidate.seat.spec for candidate in candidates],
        simulated=[candidate.opened.simulated_speed for candidate in candidates],
        there=siting.shard_hosts(request.config, numel, located, plans=plans),
        numel=numel,
        relative=relative,
        notes=_about_room(request),
    )


def _only(
    hosts: Sequence[str], candidates: list[Candidate], measured: Measurements, there: ShardHosts, workers: Workers
) -> tuple[list[Candidate], Measurements, ShardHosts]:
    """End the workers of all hosts but these."""
    kept = [number for number, candidate in enumerate(candidates) if candidate.seat.spec.host in hosts]
    for number, candidate in enumerate(candidates):
        if number not in kept:
            workers.end(candidate.actor)
    return [candidates[number] for number in kept], measured.of(kept), there.of(hosts)
