"""One run, from a job and devices to a trained model: place, measure, plan, train, evaluate, save.

The same engine serves the coordinator (``run.py``) and the script API (``trainer.py``); both connect to Ray first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from remote_agent import protocol
from remote_agent.training import actors, checkpoint, data, flat, job, rpc, strategies, transfer
from remote_agent.training.actors import Request
from remote_agent.training.balance import SpeedTrack
from remote_agent.training.dataplane import OptimizerFacts
from remote_agent.training.errors import JobError, ServerGone, TrainingError
from remote_agent.training.flat import Payload
from remote_agent.training.journal import Journal
from remote_agent.training.measure import Candidate, Measurements, measure
from remote_agent.training.order import SampleOrder
from remote_agent.training.rpc import Actor
from remote_agent.training.session import Member, Session, StepReport


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run that ended well: the model has the trained weights."""

    model: nn.Module
    final_loss: float
    checkpoint: Path


def run(request: Request, journal: Journal, stopping: Callable[[], bool] = lambda: False) -> Outcome:
    """Carry out a run; writes every event, the final one included.

    Args:
        request: the run.
        journal: where its events go.
        stopping: true once the user wants it to end early.

    Raises:
        TrainingError: it can't go on; ``run_failed`` is written already.
    """
    progress = _Progress()
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


@dataclass
class _Progress:
    """The step that is under way, for the event of a failure; 0 before the first."""

    step: int = 0


def _run(request: Request, journal: Journal, stopping: Callable[[], bool], progress: _Progress) -> Outcome:
    with session_of(request, journal, stopping) as (session, model):
        return _train(request, model, session, progress)


@contextlib.contextmanager
def session_of(request: Request, journal: Journal, stopping: Callable[[], bool]) -> Iterator[tuple[Session, nn.Module]]:
    """All that comes before the first step: check, place, measure, plan. The actors end when the block does.

    Yields:
        The session for a strategy, and the coordinator's own copy of the model (on the CPU, with the first weights).
    """
    config = request.config
    model = job.create_model(request.job.factory, config.seed)
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
    dataset = data.as_dataset(job.guard("create_data", request.job.create_data))
    if len(dataset) < config.batch_size:
        raise JobError(
            f"the dataset has {len(dataset)} samples, fewer than one batch of {config.batch_size}",
            hint=f"set batch_size to {len(dataset)} or less, or bring more data",
        )
    with actors.started(request, model, dataset) as (server, optimizer, candidates):
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
        session = _session(request, journal, stopping, model, server, optimizer, candidates, measured, len(dataset))
        _plan(session, journal)
        yield session, model


# --- Before the first step -------------------------------------------------------------------------------------------


def _session(
    request: Request,
    journal: Journal,
    stopping: Callable[[], bool],
    model: nn.Module,
    server: Actor,
    optimizer: OptimizerFacts,
    candidates: list[Candidate],
    measured: Measurements,
    size: int,
) -> Session:
    crew = [
        Member(candidate.seat, candidate.actor, SpeedTrack(profile), candidate.opened.simulated_speed)
        for candidate, profile in zip(candidates, measured.profiles, strict=True)
    ]
    for candidate in candidates:
        candidate.actor.call("prepare", sorted(measured.usage.buffers), measured.reference)
    path = transfer.open_path(request.config, model, optimizer, measured.usage, server, request.server_host, crew)
    return Session(
        config=request.config,
        crew=crew,
        server=server,
        server_host=request.server_host,
        order=SampleOrder(request.config.seed, size, request.config.batch_size),
        weights=path.weights,
        payload_bytes=path.payload_bytes,
        buffer_names=tuple(sorted(measured.usage.buffers)),
        journal=journal,
        stopping=stopping,
        reasons=path.reasons,
    )


def _plan(session: Session, journal: Journal) -> None:
    """Write how the batch is cut and why."""
    profiles = [member.track.current for member in session.crew]
    try:
        cut, seconds, about = strategies.first_cut(session.config, profiles)
    except ValueError as error:
        raise TrainingError(str(error), hint="lower batch_size, or raise the hosts' max_batch") from None
    reasons = [
        f"{member.name}: {samples} of {sum(cut)} samples, measured {profile.speed:.0f} samples/s"
        f" + {profile.overhead_s * 1e3:.1f} ms a step"
        + (f" (simulated at {member.simulated_speed:g} of this computer)" if member.simulated_speed else "")
        + (", left out: the others are done before it starts" if not samples else "")
        + (", limited by max_batch" if samples and samples == profile.max_batch else "")
        for member, samples, profile in zip(session.crew, cut, profiles, strict=True)
    ]
    reasons += [*about, *session.reasons]
    if session.buffer_names:
        reasons.append(
            f"{len(session.buffer_names)} buffers change in training (batch normalisation?): each slice uses its own"
            " statistics and their mean is kept; GroupNorm would make the result independent of the cut"
        )
    journal.write(
        protocol.PlanMade,
        strategy=session.config.strategy,
        shares=tuple(member.share(samples) for member, samples in zip(session.crew, cut, strict=True)),
        predicted_step_s=seconds,
        reasons=tuple(reasons),
    )


# --- Training --------------------------------------------------------------------------------------------------------


def _train(request: Request, model: nn.Module, session: Session, progress: _Progress) -> Outcome:
    """The loop over applied steps, then the end: last checkpoint, evaluation, final event."""
    config, journal = request.config, session.journal
    begun = time.monotonic()
    progress.step = 1
    samples = 0
    saved: Path | None = None
    last: StepReport | None = None
    for report in strategies.create(config.strategy, session).steps(session):
        journal.write(protocol.Step, **report.fields())
        samples += report.samples
        last, saved = report, None
        if config.checkpoint_every and report.step % config.checkpoint_every == 0:
            saved = _save(request, model, session, report)
        progress.step = report.step + 1
    seconds = time.monotonic() - begun
    assert last is not None, "a strategy makes at least one step"
    progress.step = last.step
    if saved is None:
        saved = _save(request, model, session, last)
    evaluation = _evaluate(request, model)
    journal.write(
        protocol.RunFinished,
        steps=last.step,
        samples=samples,
        final_loss=last.loss,
        samples_per_second=samples / seconds,
        checkpoint=str(saved),
        evaluation=evaluation,
        stopped=last.step < config.num_iterations,
    )
    return Outcome(model=model, final_loss=last.loss, checkpoint=saved)


def _save(request: Request, model: nn.Module, session: Session, report: StepReport) -> Path:
    """Bring the weights after ``report.step`` to the coordinator's model and save it."""
    step = report.step
    try:
        payload = report.weights()
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
        cause = f"the weights of step {step} can't be fetched: {rpc.describe(error)}"
        raise ServerGone(cause, hint="look at the server's host", host=session.server_host) from error
    load_payload(model, payload, session.buffer_names)
    about = {"run": request.run, "job": request.job.name, "config": dataclasses.asdict(request.config)}
    path, size = checkpoint.save(request.folder / "checkpoints", step, model, about)
    session.journal.write(protocol.CheckpointSaved, step=step, path=str(path), host=request.host, size=size)
    return path


def load_payload(model: nn.Module, payload: Payload, buffer_names: tuple[str, ...]) -> None:
    """Copy published weights and changed buffers into ``model`` (on the CPU)."""
    tensors: list[dict[str, torch.Tensor]] = [dict(flat.trained(model)), flat.buffers(model, buffer_names)]
    arrays = iter(payload)
    with torch.no_grad():
        for members in tensors:
            for entry in flat.group(members):
                source = flat.from_bytes(next(arrays).copy(), entry.dtype)
                for name, view in zip(entry.names, entry.views(source), strict=True):
                    members[name].copy_(view)


def _evaluate(request: Request, model: nn.Module) -> dict[str, float]:
    """The job's own figures, on this host's CPU, without those that are not finite; empty when it has none."""
    if request.job.evaluate is None:
        return {}
    model.eval()
    with torch.no_grad():
        figures = job.guard("evaluate", request.job.evaluate, model)
    model.train()
    if not isinstance(figures, dict):
        raise JobError(f"evaluate gave a {type(figures).__name__}", hint="return a dict of names to numbers")
    numbers = {str(name): job.guard("evaluate", float, value) for name, value in figures.items()}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}
