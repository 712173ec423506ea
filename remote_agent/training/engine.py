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
from typing import Any

import safetensors.torch
import torch
from torch import nn

from remote_agent import protocol
from remote_agent.protocol import DeviceSpec
from remote_agent.training import checkpoint, data, flat, job, placement, rpc, strategies
from remote_agent.training.balance import SpeedTrack
from remote_agent.training.config import TrainingConfig
from remote_agent.training.deadlines import OPEN_S, PLACEMENT_S, TRANSFER_S
from remote_agent.training.errors import JobError, PlacementError, ServerGone, TrainingError
from remote_agent.training.flat import Payload
from remote_agent.training.job import Job
from remote_agent.training.journal import Journal
from remote_agent.training.measure import Candidate, Measurements, measure
from remote_agent.training.messages import Failed, Opened
from remote_agent.training.order import SampleOrder
from remote_agent.training.rpc import Actor, Ref
from remote_agent.training.server import ParameterServer
from remote_agent.training.session import Member, Session, StepReport
from remote_agent.training.shares import split, step_seconds
from remote_agent.training.worker import Worker


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be run, and where its files go.

    Attributes:
        run: the run's id.
        job: what is trained.
        config: how.
        devices: on which devices.
        server_host: host of the parameter server.
        host: the coordinator's own host, for events.
        folder: the run's folder; ``checkpoints/`` is made in it.
        gpus: GPU slots that a worker on a GPU asks Ray for; see :class:`~remote_agent.training.placement.Seat`.
    """

    run: str
    job: Job
    config: TrainingConfig
    devices: tuple[DeviceSpec, ...]
    server_host: str
    host: str
    folder: Path
    gpus: int = 0


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
    with _actors(request, model, dataset) as (server, candidates):
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
        session = _session(request, journal, stopping, server, candidates, measured, len(dataset))
        _plan(session, journal)
        yield session, model


# --- Actors ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _actors(request: Request, model: nn.Module, dataset: Any) -> Iterator[tuple[Actor, list[Candidate]]]:
    """Server and workers, opened on their hosts; they end when the block does."""
    nodes = placement.living_nodes()
    seats = placement.seats(request.devices, nodes, request.gpus)
    home = placement.node_of(request.server_host, nodes)
    blob = job.dumps(request.job.factory)
    state = rpc.put(safetensors.torch.save(checkpoint.portable_state(model)))
    try:
        samples = rpc.put(dataset)
    except (TypeError, AttributeError) as error:
        raise JobError(f"the data can't be sent to the workers: {error}", hint=data.HINT) from error
    # Beside workers on the same host the server takes its part of the cores only: threads that spin cost the others.
    sharing = sum(seat.node == home for seat in seats) + 1
    # A step whose slice is overdue must not hold up the same step submitted anew; data keeps the order of the rest.
    options = placement.actor_options(home) | {"allow_out_of_order_execution": True}
    server = rpc.start(ParameterServer, options, max(1, int(home.cpus) // sharing))
    workers = [(seat, rpc.start(Worker, seat.options(), seat.spec.device, seat.threads)) for seat in seats]
    try:
        opening = server.call("open", blob, state, request.config)
        opened = [
            worker.call("open", blob, samples, state, request.config, seat.spec.max_batch) for seat, worker in workers
        ]
        deadline = time.monotonic() + PLACEMENT_S + OPEN_S
        _opened(opening, "the parameter server", request.server_host, deadline)
        candidates = []
        for (seat, worker), ref in zip(workers, opened, strict=True):
            answer = _opened(ref, f"worker {seat.worker}", seat.spec.host, deadline)
            assert isinstance(answer, Opened)
            candidates.append(Candidate(seat, worker, answer))
        yield server, candidates
    finally:
        for actor in (server, *(worker for _, worker in workers)):
            actor.kill()


def _opened(ref: Ref[Any], who: str, host: str, deadline: float) -> object:
    """An ``open`` call's answer.

    Raises:
        PlacementError: the actor did not start in time, or died.
        JobError: the job's code failed there, or the device is not there.
    """
    hint = "look at the host's Ray log and free memory, or leave the host out of the run"
    try:
        answer = rpc.get(ref, max(0.0, deadline - time.monotonic()))
    except rpc.Timeout:
        limit = PLACEMENT_S + OPEN_S
        raise PlacementError(f"{who} did not start within {limit:.0f} s", hint=hint, host=host) from None
    except (*rpc.Lost, rpc.CallFailed) as error:
        raise PlacementError(f"{who} did not start: {rpc.describe(error)}", hint=hint, host=host) from error
    if isinstance(answer, Failed):
        raise answer.error(host)
    return answer


def _session(
    request: Request,
    journal: Journal,
    stopping: Callable[[], bool],
    server: Actor,
    candidates: list[Candidate],
    measured: Measurements,
    size: int,
) -> Session:
    names = measured.changed_buffers
    for candidate in candidates:
        candidate.actor.call("prepare", names, measured.reference)
    weights: Ref[Payload] = server.call("begin", names)
    try:
        payload_bytes = flat.size_bytes(rpc.get(weights, TRANSFER_S))
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
        cause = f"the parameter server was lost: {rpc.describe(error)}"
        raise ServerGone(cause, hint="look at the host's memory", host=request.server_host) from error
    crew = [
        Member(candidate.seat, candidate.actor, SpeedTrack(profile), candidate.opened.simulated_speed)
        for candidate, profile in zip(candidates, measured.profiles, strict=True)
    ]
    return Session(
        config=request.config,
        crew=crew,
        server=server,
        server_host=request.server_host,
        order=SampleOrder(request.config.seed, size, request.config.batch_size),
        weights=weights,
        payload_bytes=payload_bytes,
        buffer_names=names,
        journal=journal,
        stopping=stopping,
    )


def _plan(session: Session, journal: Journal) -> None:
    """Write how the batch is cut and why."""
    profiles = [member.track.current for member in session.crew]
    try:
        cut = split(session.config.batch_size, profiles)
    except ValueError as error:
        raise TrainingError(str(error), hint="lower batch_size, or raise the hosts' max_batch") from None
    reasons = [
        f"{member.name}: {samples} of {session.config.batch_size} samples, measured {profile.speed:.0f} samples/s"
        f" + {profile.overhead_s * 1e3:.1f} ms a step"
        + (f" (simulated at {member.simulated_speed:g} of this computer)" if member.simulated_speed else "")
        + (", left out: the others are done before it starts" if not samples else "")
        + (", limited by max_batch" if samples and samples == profile.max_batch else "")
        for member, samples, profile in zip(session.crew, cut, profiles, strict=True)
    ]
    if session.buffer_names:
        reasons.append(
            f"{len(session.buffer_names)} buffers change in training (batch normalisation?): each slice uses its own"
            " statistics and their mean is kept; GroupNorm would make the result independent of the cut"
        )
    journal.write(
        protocol.PlanMade,
        strategy=session.config.strategy,
        shares=tuple(member.share(samples) for member, samples in zip(session.crew, cut, strict=True)),
        predicted_step_s=step_seconds(cut, profiles),
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
    for report in strategies.create(config.strategy).steps(session):
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
        payload = rpc.get(report.weights, TRANSFER_S)
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
