"""Loops over a run's steps: writes events and the record of slices, saves checkpoints, and evaluates the model."""

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
from remote_agent.strategies import spec_of
from remote_agent.training import job
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.checkpoint.optimizer_state import Snapshot
from remote_agent.training.checkpoint.saver import Saved, Saver, load_payload
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.auditing import RunAudits
from remote_agent.training.coordinator.evaluation.judge import Judge, Verdict
from remote_agent.training.coordinator.plan import profiles
from remote_agent.training.coordinator.plan_made import Forecast
from remote_agent.training.coordinator.recovery import recut, rollback
from remote_agent.training.coordinator.recovery.backups import Copies
from remote_agent.training.coordinator.recovery.checkpoint_timer import CheckpointTimer
from remote_agent.training.coordinator.recovery.liveness import check_servers
from remote_agent.training.coordinator.recovery.rollback import Restorer
from remote_agent.training.coordinator.recovery.takeover.takeover_file import TakeoverFile
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.session import Session, StepReport
from remote_agent.training.coordinator.snapshots import Once
from remote_agent.training.data import record
from remote_agent.training.data.record import SliceRecord
from remote_agent.training.deadlines import SERVER_SILENT_S
from remote_agent.training.errors import JobError, ServerGone, StageLost, TrainingError, WeightsGone
from remote_agent.training.shared import flat, rpc


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a run that ended without an error; ``model`` has the trained weights.

    ``best`` is the checkpoint of the best evaluation, if one is kept; ``evaluation`` has the final metrics; ``reason``
    says why the run ended before its last step; ``stopped`` means that the user stopped it.
    """

    model: nn.Module
    final_loss: float
    checkpoint: Path
    best: Path | None
    evaluation: dict[str, float]
    reason: str
    stopped: bool


@dataclass
class Progress:
    """The current step, for the event of a failure; 0 before the first."""

    step: int = 0


def train(request: Request, model: nn.Module, session: Session, progress: Progress) -> Outcome:
    """Make all steps of a run, then save the last checkpoint, evaluate, and write the final event."""
    with TakeoverFile(request) as takeover_file:
        try:
            return _train(request, model, session, progress, takeover_file)
        except WeightsGone as error:
            if spec_of(session.config.strategy).split:  # else the planner may have left devices out
                error.fleet = session.membership.wanted
                error.commands = session.control.offset if session.control is not None else None
            raise


def _train(
    request: Request, model: nn.Module, session: Session, progress: Progress, takeover_file: TakeoverFile
) -> Outcome:
    config, journal, order, source = session.config, session.journal, session.order, session.source
    schedule = session.schedule
    assert schedule is not None, "a run has one"
    begun = time.monotonic()
    progress.step = order.done + 1
    samples = order.start
    last: StepReport | None = None
    saved = order.done
    judge, asked = Judge(session, request.host), session.stopping
    session = dataclasses.replace(session, stopping=lambda: asked() or bool(judge.reason))
    about = {
        "run": request.run,
        "job": request.job.name,
        "dataset_size": source.size,
        "config": dataclasses.asdict(config),
        "optimizer_kind": schedule.kind,
        "trained": flat.trained_as(model),
        "survey": profiles.encoded(session.survey) if session.survey is not None else "",
    }
    on_record = request.folder / record.FILE
    with (
        # If an existing run starts again from the beginning, its record is superseded.
        contextlib.closing(SliceRecord(on_record, order.done if order.done or on_record.exists() else None)) as slices,
        Saver(request.folder / checkpoint.FOLDER, config.keep_checkpoints, about) as saver,
        Copies(session, saver) as copies,
    ):
        judge.catch_up(session, request.folder)
        restorer, timer, forecast = Restorer(request.host), CheckpointTimer(session, saver), Forecast()
        audits = RunAudits(session, request.host)
        while True:
            try:
                for report in spec_of(config.strategy).strategy()().steps(session):
                    slices.write(report.step, report.slices)
                    if report.step > last_reported(session):
                        rate = schedule.rate(report.options)
                        seconds = forecast.seconds(session)
                        journal.write(protocol.Step, **report.fields(), learning_rate=rate, predicted_s=seconds)
                    takeover_file.keep(session)
                    audits.after(session, report)
                    samples += report.samples
                    last = report
                    judged = judge.after(session, report.step, samples - report.samples, samples)
                    if judged.evaluated:
                        takeover_file.keep(session)
                    progress.step = report.step + 1
                    restorer.made(report.step)
                    _report_saved(request, session, saver.poll)
                    snapshot, stall_s = None, None
                    if judged.best or (session.is_checkpoint(report.step) and saver.is_free()):
                        began = time.monotonic()
                        saver.best = judge.best_step(session)
                        snapshot = _save(request, model, session, saver, slices, report, samples)
                        saved, stall_s = report.step, time.monotonic() - began
                    timer.after(session, report, stall_s)
                    _copy(session, copies, report, samples, snapshot)
                assert last is not None, "a strategy makes at least one step"
                progress.step = last.step
                judged = judge.last(session, last.step, samples) if not asked() else Verdict()
                if saved != last.step or judged.evaluated:
                    saver.best = judge.best_step(session)
                    _save(request, model, session, saver, slices, last, samples)
                _report_saved(request, session, saver.finish)
                break
            except ServerGone as lost:
                session = restorer.restore(session, copies.newest, lost, progress.step)
            except StageLost as lost:
                restorer.count(lost)
                with contextlib.suppress(StageLost):  # what was to be in a checkpoint is lost, too
                    _report_saved(request, session, saver.finish)
                session = recut.go_back(request, session, model, lost)
            saved = step = session.order.done
            copies.forget(step)
            slices.go_back(step)
            samples, progress.step = session.order.start, step + 1
            judge.go_back(session, step)
            audits.plan(session, step)
            takeover_file.keep(session)
        seconds = time.monotonic() - begun
    assert saver.newest is not None, "the last one was waited for"
    evaluation = judge.figures_of(last.step) | _evaluate(request, model)
    best, stopped = saver.path_of_best(), asked() and last.step < config.num_iterations
    reason = judge.reason or ("" if stopped else why_over(config, last.step))
    journal.write(
        protocol.RunFinished,
        steps=last.step,
        samples=samples,
        final_loss=last.loss,
        samples_per_second=(samples - order.start) / seconds,
        checkpoint=str(saver.newest.path),
        evaluation=evaluation,
        stopped=stopped,
        best=str(best or ""),
        reason=reason,
    )
    return Outcome(
        model=model,
        final_loss=last.loss,
        checkpoint=saver.newest.path,
        best=best,
        evaluation=evaluation,
        reason=reason,
        stopped=stopped,
    )


def last_reported(session: Session) -> int:
    """The last step for which a killed coordinator wrote an event; 0: none."""
    return session.takeover.last_reported_step if session.takeover is not None else 0


def why_over(config: TrainingConfig, step: int) -> str:
    """Why the run ended with ``step``; empty if it was the last one, which with epochs depends on the data."""
    if config.epochs or step >= config.num_iterations:
        return ""
    return f"the data was used up before step {config.num_iterations:,}"


def _save(
    request: Request,
    model: nn.Module,
    session: Session,
    saver: Saver,
    slices: SliceRecord,
    report: StepReport,
    samples: int,
) -> Snapshot | None:
    """Fetch the weights after ``report.step`` into the coordinator's model, and start to write a checkpoint.

    Training waits until the optimizer's state is copied on its own hosts and the weights have arrived here. Returns a
    function that fetches this state; the checkpoint's writer uses it too.
    """
    _report_saved(request, session, saver.finish)
    try:
        snapshot = Once(report.snapshot()) if report.snapshot is not None else None
        payload = report.weights()
    except rpc.NoAnswer as error:
        raise _not_fetched(session, report.step, error) from error
    load_payload(model, payload, session.buffer_names)
    state = session.schedule.state(report.step) if session.schedule is not None else None
    more = {"watched": session.watched, "schedule": state}
    saver.save(report.step, model, samples, snapshot, more, session.buffer_names, slices.flush)
    return snapshot


def _copy(session: Session, copies: Copies, report: StepReport, samples: int, snapshot: Snapshot | None) -> None:
    """Copy the shards' state if a copy is due."""
    before = copies.newest
    try:
        copies.after(session, report, samples, snapshot)
    except rpc.NoAnswer as error:
        raise _not_fetched(session, None, error) from error
    if copies.newest is not before:
        rollback.leave_drained(session)
        rollback.prepare(session)


def _report_saved(request: Request, session: Session, ask: Callable[[], Saved | None]) -> None:
    """Write the event of a checkpoint that is now complete."""
    try:
        saved = ask()
    except rpc.NoAnswer as error:
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


def _not_fetched(session: Session, step: int | None, error: Exception) -> TrainingError:
    what = "the optimizer's state" if step is None else f"the weights of step {step}"
    cause = f"{what} can't be fetched: {rpc.describe(error)}"
    if not session.servers:
        kind = StageLost if spec_of(session.config.strategy).split else WeightsGone
        return kind(cause, hint="look at the workers' hosts, then resume the run")
    lost = ServerGone(cause, hint="look at the server's host, then resume the run", host=session.servers[0].host)
    try:
        check_servers(session, SERVER_SILENT_S)
    except ServerGone as gone:
        lost.host, lost.known = gone.host, gone.known
    return lost


def _evaluate(request: Request, model: nn.Module) -> dict[str, float]:
    """Evaluate the job's own metrics on this host's CPU; those that are not finite are left out."""
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
