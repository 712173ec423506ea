"""The loop over applied steps, and what comes after it: events, the record of slices, checkpoints, evaluation."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from remote_agent import protocol
from remote_agent.training import job, rpc, strategies
from remote_agent.training.actors import Request
from remote_agent.training.data import record
from remote_agent.training.data.record import SliceRecord
from remote_agent.training.errors import JobError, ServerGone
from remote_agent.training.faults import restoring
from remote_agent.training.faults.copies import Copies
from remote_agent.training.faults.estate import Testament
from remote_agent.training.faults.restoring import Restorer
from remote_agent.training.faults.safeguard import Safeguard
from remote_agent.training.saving import checkpoint
from remote_agent.training.saving.optimizer_state import Snapshot
from remote_agent.training.saving.saver import Saved, Saver, load_payload
from remote_agent.training.saving.snapshots import Once
from remote_agent.training.session import Session, StepReport
from remote_agent.training.strategies.liveness import check_servers


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run that ended well: the model has the trained weights."""

    model: nn.Module
    final_loss: float
    checkpoint: Path


@dataclass
class Progress:
    """The step that is under way, for the event of a failure; 0 before the first."""

    step: int = 0


def train(request: Request, model: nn.Module, session: Session, progress: Progress) -> Outcome:
    """The loop over applied steps, then the end: last checkpoint, evaluation, final event."""
    with Testament(request) as testament:
        return _train(request, model, session, progress, testament)


def _train(request: Request, model: nn.Module, session: Session, progress: Progress, testament: Testament) -> Outcome:
    config, journal, order = session.config, session.journal, session.order
    begun = time.monotonic()
    progress.step = order.done + 1
    samples = order.start
    last: StepReport | None = None
    about = {
        "run": request.run,
        "job": request.job.name,
        "dataset_size": session.source.size,
        "config": dataclasses.asdict(config),
    }
    with (
        contextlib.closing(SliceRecord(request.folder / record.FILE, order.done or None)) as slices,
        Saver(request.folder / checkpoint.FOLDER, config.keep_checkpoints, about) as saver,
        Copies(session) as copies,
    ):
        restorer, safeguard = Restorer(request.host), Safeguard(session, saver)
        while True:
            try:
                for report in strategies.create(config.strategy, session).steps(session):
                    slices.write(report.step, report.slices)
                    if report.step > session.told:
                        journal.write(protocol.Step, **report.fields())
                    testament.keep(session)
                    samples += report.samples
                    last = report
                    progress.step = report.step + 1
                    restorer.made(report.step)
                    _announce(request, session, saver.poll)
                    snapshot, held_up_s = None, None
                    if session.is_checkpoint(report.step):
                        began = time.monotonic()
                        snapshot = _save(request, model, session, saver, slices, report, samples)
                        held_up_s = time.monotonic() - began
                    safeguard.after(session, report, held_up_s)
                    _copy(session, copies, report, samples, snapshot)
                assert last is not None, "a strategy makes at least one step"
                progress.step = last.step
                if not session.is_checkpoint(last.step):
                    _save(request, model, session, saver, slices, last, samples)
                _announce(request, session, saver.finish)
                break
            except ServerGone as lost:
                session, copy = restorer.restore(session, copies.newest, lost, progress.step)
                copies.forget()
                slices.go_back(copy.step)
                samples, progress.step = copy.position, copy.step + 1
                testament.keep(session)
        seconds = time.monotonic() - begun
    assert saver.newest is not None, "the last one was waited for"
    evaluation = _evaluate(request, model)
    journal.write(
        protocol.RunFinished,
        steps=last.step,
        samples=samples,
        final_loss=last.loss,
        samples_per_second=(samples - order.start) / seconds,
        checkpoint=str(saver.newest.path),
        evaluation=evaluation,
        stopped=session.stopping() and last.step < config.num_iterations,
    )
    return Outcome(model=model, final_loss=last.loss, checkpoint=saver.newest.path)


def _save(
    request: Request,
    model: nn.Module,
    session: Session,
    saver: Saver,
    slices: SliceRecord,
    report: StepReport,
    samples: int,
) -> Snapshot | None:
    """Bring the weights after ``report.step`` to the coordinator's model, and begin to write them.

    Training waits for a copy of the optimizer's state where it lies, and for the weights to come here. Returns what
    fetches that state, which the checkpoint's writer does too.
    """
    _announce(request, session, saver.finish)
    try:
        snapshot = Once(report.snapshot()) if report.snapshot is not None else None
        payload = report.weights()
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
        raise _not_fetched(session, report.step, error) from error
    load_payload(model, payload, session.buffer_names)
    slices.flush()
    saver.save(report.step, model, samples, snapshot)
    return snapshot


def _copy(session: Session, copies: Copies, report: StepReport, samples: int, snapshot: Snapshot | None) -> None:
    """Copy the shards' state, if that is due."""
    before = copies.newest
    try:
        copies.after(session, report, samples, snapshot)
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
        raise _not_fetched(session, None, error) from error
    if copies.newest is not before:
        restoring.prepare(session)


def _announce(request: Request, session: Session, ask: Callable[[], Saved | None]) -> None:
    """Write the event of a checkpoint that has become whole."""
    try:
        saved = ask()
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
        raise _not_fetched(session, None, error) from error
    if saved is not None:
        session.journal.write(
            protocol.CheckpointSaved,
            step=saved.step,
            path=str(saved.path),
            host=request.host,
            size=saved.size,
            hosts=(request.host,),
        )


def _not_fetched(session: Session, step: int | None, error: Exception) -> ServerGone:
    what = "the optimizer's state" if step is None else f"the weights of step {step}"
    cause = f"{what} can't be fetched: {rpc.describe(error)}"
    host = session.server_host
    if rpc.gone(error):  # a process ended: it is known at once which one
        try:
            check_servers(session)
        except ServerGone as gone:
            host = gone.host
    return ServerGone(cause, hint="look at the server's host, then resume the run", host=host)


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
