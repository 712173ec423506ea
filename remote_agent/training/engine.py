"""One run, from a job and devices to a trained model: place, measure, plan, train, evaluate, save.

The same engine serves the coordinator (``run.py``) and the script API (``trainer.py``); both connect to Ray first.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from torch import nn

from remote_agent import protocol
from remote_agent.protocol import CONTROL_FILE, DeviceSpec
from remote_agent.training import actors, flat, job, rpc, strategies, transfer
from remote_agent.training.actors import Request
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets, extent, sources
from remote_agent.training.errors import JobError, LostAtStart, ServerGone, TrainingError
from remote_agent.training.faults import accounts, copies, estate, starting_over, succession
from remote_agent.training.faults.control import Control
from remote_agent.training.faults.joining import Joining
from remote_agent.training.journal import Journal
from remote_agent.training.loop import Outcome, Progress, train
from remote_agent.training.placing import placement
from remote_agent.training.saving import resuming, snapshots
from remote_agent.training.saving.checkpoint import Checkpoint
from remote_agent.training.saving.optimizer_state import Resumption, TrainingState
from remote_agent.training.session import Member, Session, least_slice
from remote_agent.training.speed.balance import SpeedTrack
from remote_agent.training.speed.measure import Candidate, Measurements, measure
from remote_agent.training.speed.shares import DeviceProfile
from remote_agent.training.strategies.away import Away


def run(request: Request, journal: Journal, stopping: Callable[[], bool] = lambda: False) -> Outcome:
    """Carry out a run; writes every event, the final one included.

    Args:
        request: the run.
        journal: where its events go.
        stopping: true once the user wants it to end early.

    Raises:
        TrainingError: it can't go on; ``run_failed`` is written already.
    """
    progress = Progress()
    try:
        return _run(request, journal, stopping, progress)
    except TrainingError as error:
        fail(journal, error, request.host, progress.step)
        raise
    except rpc.Unexpected as error:
        known = TrainingError(f"Ray failed: {rpc.describe(error)}", hint="check the cluster, then start the run again")
        fail(journal, known, request.host, progress.step)
        raise known from error


def fail(journal: Journal, error: TrainingError, host: str, step: int) -> None:
    """Write the events of a run that failed at ``step``; ``host`` is named where the error names none."""
    where = error.host or host
    # A journal that can't be written is the failure itself; the caller still reports it on stderr.
    with contextlib.suppress(TrainingError):
        if isinstance(error, ServerGone):
            journal.write(protocol.ServerLost, host=where, step=step, cause=error.cause)
        journal.write(
            protocol.RunFailed, step=step, host=where, cause=error.cause, hint=error.hint, detail=error.detail
        )


def _run(request: Request, journal: Journal, stopping: Callable[[], bool], progress: Progress) -> Outcome:
    lost: list[str] = []
    left = estate.read(request.folder)
    if left is not None:
        with contextlib.ExitStack() as stack:
            try:
                session, model = stack.enter_context(succession.taken_over(left, request, journal, stopping))
            except accounts.NotTakenOver as reason:
                request = succession.from_checkpoint(left, request, str(reason))
            else:
                return train(request, model, session, progress)
    succession.end_all(request.run)
    if request.resume is not None:
        # A host that is away just now must not keep a run from going on; where all are, it is said which.
        request = starting_over.without_lost(request, (), _living()) or request
    while True:
        try:
            with session_of(request, journal, stopping, again=bool(lost)) as (session, model):
                return train(request, model, session, progress)
        except (LostAtStart, *rpc.Lost) as error:
            if progress.step:
                raise
            lost.append(error.host if isinstance(error, TrainingError) else "")
            onward = starting_over.without_lost(request, lost, _living())
            if onward is None:
                raise
            cause = error.cause if isinstance(error, TrainingError) else rpc.describe(error)
            missed = starting_over.missed(request, onward, lost[-1])
            for name, spec in zip(placement.names(request.devices), request.devices, strict=True):
                if spec in missed:
                    journal.write(
                        protocol.WorkerLost, worker=name, host=spec.host, device=spec.device, step=0, cause=cause
                    )
            request = onward


def _living() -> frozenset[str]:
    return frozenset(node.host for node in placement.living_nodes())


@contextlib.contextmanager
def session_of(
    request: Request, journal: Journal, stopping: Callable[[], bool], *, again: bool = False
) -> Iterator[tuple[Session, nn.Module]]:
    """All that comes before the first step: check, place, measure, plan. The actors end when the block does.

    Args:
        request: the run.
        journal: where its events go.
        stopping: true once the user wants it to end early.
        again: the journal says already that the run begins or goes on.

    Yields:
        The session for a strategy, and the coordinator's own copy of the model (on the CPU, with the first weights).
    """
    model = job.create_model(request.job.factory, request.config.seed)
    found = resuming.find(request.resume, request.folder)
    given = job.guard("create_data", request.job.create_data)
    if again and datasets.is_used_up(given):
        raise JobError(
            "a worker was lost before the first step, and the data is an iterator that was read from",
            hint="start the run again; with a function that returns an iterator it does so by itself",
        )
    with contextlib.closing(sources.source_of(given)) as source:
        config = resuming.settings(request.config, found, source.size)
        done, start = (found.step, found.position) if found is not None else (0, 0)
        config, order = source.open(config, done, start)
        request = dataclasses.replace(request, config=config)
        resumed = _begin(request, journal, model, found, again=again)
        with actors.started(request, model, source.for_workers()) as (servers, optimizer, candidates, workers):
            for candidate in candidates:
                spec = candidate.seat.spec
                journal.write(
                    protocol.WorkerJoined,
                    worker=candidate.seat.worker,
                    host=spec.host,
                    device=candidate.opened.device,
                    name=spec.name,
                )
            measured = measure(candidates, config.batch_size, config.measure_seconds)
            first, _, _ = _cut(config, measured.profiles, least_slice(measured.usage.buffers))
            config = strategies.fixed(extent.in_rounds(config, order, sum(first)), len(candidates))
            crew = _crew(candidates, measured, config.num_iterations)
            if resumed is not None:
                snapshots.restore(servers, crew, resumed)
            path = transfer.open_path(config, model, optimizer, measured.usage, servers, crew)
            joining = Joining(
                workers,
                path.entry,
                buffers=sorted(measured.usage.buffers),
                reference=measured.reference,
                config=config,
            )
            join = path.entry is not None or config.strategy == "allreduce"
            session = Session(
                config=config,
                crew=crew,
                servers=path.servers,
                order=order,
                source=source,
                weights=path.weights,
                payload_bytes=path.payload_bytes,
                buffer_names=tuple(sorted(measured.usage.buffers)),
                journal=journal,
                stopping=stopping,
                reasons=(*path.reasons, *measured.notes, *_about_away(request.away, join)),
                shapes={name: flat.trained(model)[name].shape for name in path.names},
                stream=path.stream,
                first_state=resumed.state if resumed is not None else TrainingState(),
                pool=servers,
                joining=joining if join else None,
                away=[Away.new(spec) for spec in request.away if join],
                control=Control(request.folder / CONTROL_FILE),
            )
            _plan(session, journal, request.host)
            with joining:
                yield session, model


# --- Before the first step -------------------------------------------------------------------------------------------


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


def _crew(candidates: list[Candidate], measured: Measurements, iterations: int) -> list[Member]:
    """The workers as measured; each is told what the measurement means for it."""
    for candidate in candidates:
        candidate.actor.call("prepare", sorted(measured.usage.buffers), measured.reference, iterations)
    return [
        Member(candidate.seat, candidate.actor, SpeedTrack(profile), candidate.opened.simulated_speed)
        for candidate, profile in zip(candidates, measured.profiles, strict=True)
    ]


def _about_away(away: Sequence[DeviceSpec], join: bool) -> tuple[str, ...]:
    """What the plan says of hosts that are not there; ``join``: workers of this run can come later."""
    hosts = ", ".join(dict.fromkeys(spec.host for spec in away))
    then = "takes part once it is back" if join else "cannot take part later, since nothing is streamed"
    return (f"{hosts}: away now; {then}",) if hosts else ()


def _cut(
    config: TrainingConfig, profiles: Sequence[DeviceProfile], least: int
) -> tuple[tuple[int, ...], float, tuple[str, ...]]:
    """The first cut; see :func:`strategies.first_cut`."""
    try:
        return strategies.first_cut(config, profiles, least)
    except ValueError as error:
        raise TrainingError(str(error), hint="lower batch_size, or raise the hosts' max_batch") from None


def _plan(session: Session, journal: Journal, host: str) -> None:
    """Write how the batch is cut and why; ``host`` is the coordinator's."""
    profiles = [member.track.current for member in session.crew]
    cut, seconds, about = _cut(session.config, profiles, session.least_slice)
    reasons = [
        f"{member.name}: {samples} of {sum(cut)} samples, measured {profile.speed:.0f} samples/s"
        f" + {profile.overhead_s * 1e3:.1f} ms a step"
        + (f" (simulated at {member.simulated_speed:g} of this computer)" if member.simulated_speed else "")
        + (", left out: the others are done before it starts" if not samples else "")
        + (", limited by max_batch" if samples and samples == profile.max_batch else "")
        for member, samples, profile in zip(session.crew, cut, profiles, strict=True)
    ]
    reasons += [*about, *session.reasons, *copies.about(session, seconds, host)]
    if session.buffer_names:
        reasons.append(
            f"{len(session.buffer_names)} buffers change in training (batch normalisation?): each slice is normalised"
            " by its own statistics, as there is no SyncBatchNorm here, and the buffers' mean by samples is kept;"
            " with GroupNorm the result does not depend on the cut"
        )
    journal.write(
        protocol.PlanMade,
        strategy=session.config.strategy,
        shares=tuple(member.share(samples) for member, samples in zip(session.crew, cut, strict=True)),
        iterations=session.config.num_iterations,
        predicted_step_s=seconds,
        reasons=tuple(reasons),
    )
