"""Computes the state of a run that is shown, from the run's events. Pure; :mod:`hetero_tui.fold` folds all others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hetero_tui import faults
from hetero_tui.events import Level
from hetero_tui.state import (
    COORDINATOR,
    FIRST_STEP,
    LOSS_POINTS,
    MEASURING,
    RECENT_STEPS,
    TAKEOVER,
    WORKERS,
    Phase,
    RunView,
    WorkerView,
)
from hetero_tui.text import WHOLE, one_line
from remote_agent import protocol
from remote_agent.planning.step_times import measured_s, predicted_s
from remote_agent.states import RunState, stands_at
from remote_agent.wording import number


def begun(run: str, job: str, time: float, history: int = 0) -> RunView:
    """A run that has only started, or was resumed after its event number ``history``."""
    return RunView(run=run, job=job, started=time, phases=(Phase(name=COORDINATOR, began=time),), history=history)


def without_coordinator(run: RunView, time: float) -> RunView:
    """A run that made steps and whose coordinator was lost: a new one is being started."""
    if run.is_starting or not run.step:
        return run
    return replace(run, phases=(Phase(name=TAKEOVER, began=time),), superseded=faults.furthest(run))


def fold_run(run: RunView, event: protocol.Event) -> tuple[RunView, Level, str]:
    """The run after one of its events, and the log line for it ("" for none)."""
    found = faults.after(run, event)
    before = run
    run, level, text = _fold_run(run, event)
    gone = sum(fault.stall_s or 0.0 for fault in before.faults if fault.number < found[0].number)
    run = replace(
        run,
        faults=found,
        stalled_before=run.stalled_before + gone,
        last_event=event.time,
        phases=_phases(before, event),
        step_seconds=measured_s(run.recent) if run.recent is not before.recent else run.step_seconds,
        predicted_s=predicted_s(before.predicted_s, event),
    )
    return run, level, text


def _phases(run: RunView, event: protocol.Event) -> tuple[Phase, ...]:
    """The phases of the run's start. The first step ends them, and a resume begins them again.

    When a run is resumed, it is read from its first event; events before the resume say nothing about the new start.
    """
    if run.is_past(event):
        return run.phases
    match event:
        case protocol.RunStarted():
            return _next(run.phases, WORKERS, event.time)
        case protocol.RunResumed() if event.checkpoint:
            return (Phase(name=WORKERS, began=event.time),)
        case protocol.WorkerJoined() if run.phases and run.phases[-1].name == WORKERS:
            return _next(run.phases, MEASURING, event.time)
        case protocol.PlanMade() if run.phases and run.phases[-1].ended is None:
            return _next(run.phases, FIRST_STEP, event.time)
        case protocol.CoordinatorLost():
            return without_coordinator(run, event.time).phases
        case protocol.RunResumed() if not run.phases or run.phases[-1].name != TAKEOVER:
            return run.phases
        case protocol.Step() | protocol.RunResumed() | protocol.RunFinished() | protocol.RunFailed() if (
            run.phases and run.phases[-1].ended is None
        ):
            return (*run.phases[:-1], replace(run.phases[-1], ended=event.time))
        case _:
            return run.phases


def _next(phases: tuple[Phase, ...], name: str, time: float) -> tuple[Phase, ...]:
    done = tuple(replace(phase, ended=time) if phase.ended is None else phase for phase in phases)
    return (*done, Phase(name=name, began=time))


def _fold_run(run: RunView, event: protocol.Event) -> tuple[RunView, Level, str]:  # noqa: C901 - a case an event
    """The run after one of its events, and the log line for it ("" for none)."""
    match event:
        case protocol.Step():
            return _stepped(run, event), Level.INFO, ""
        case protocol.RunStarted():
            run = replace(
                run,
                job=event.job,
                started=event.time,
                state=run.state if run.state is RunState.STOPPING else RunState.RUNNING,
                detail="",
                iterations=event.iterations,
                batch_size=event.batch_size,
                parameters=event.parameters,
                script=not event.batch_size,
            )
            return run, Level.INFO, f"{event.job}: {event.parameters:,} parameters, {event.iterations:,} steps"
        case protocol.PlanMade():
            iterations = event.iterations or run.iterations
            run = replace(run, detail="", iterations=iterations, plan=event)
            run = replace(run, workers=_workers(run, event.shares), shares_seq=event.seq)
            if event.stages:
                return replace(run, workers=_staged(run.workers, event)), Level.INFO, _cut(event)
            shares = ", ".join(f"{share.host} {share.samples}" for share in event.shares)
            return run, Level.INFO, f"samples of a step, by measured speed: {shares}{_left_out(event)}"
        case protocol.Rebalanced():
            reason = f" ({event.reason})" if event.reason else ""
            shares = ", ".join(f"{share.host} {share.samples}" for share in event.shares)
            run = replace(run, workers=_workers(run, event.shares), shares_seq=event.seq)
            return run, Level.INFO, f"rebalanced{reason}: {shares}"
        case protocol.WorkerJoined():
            workers = _change_worker(run, event.worker, alive=True, drained=False, retry_at=None)
            return replace(run, workers=workers), Level.GOOD, _joined(run, event)
        case protocol.WorkerStarting():
            return _starting(run, event)
        case protocol.WorkerLost():
            return _without(run, event)
        case protocol.WorkerSlow() if event.factor >= 1:
            run = replace(run, workers=_change_worker(run, event.worker, slow_factor=None))
            return run, Level.GOOD, f"{event.host} is back at its usual speed"
        case protocol.WorkerSlow():
            run = replace(run, workers=_change_worker(run, event.worker, slow_factor=event.factor))
            return run, Level.WARNING, f"{event.host} slowed to ×{event.factor:.2f}"
        case protocol.SliceReissued():
            took = "" if event.stall_s is None else f", done {event.stall_s:.1f} s later"
            text = f"{event.samples} samples of step {event.step:,} went from {event.worker} to {event.to}{took}"
            return run, Level.GOOD, f"{text}; nothing lost"
        case protocol.Evaluated():
            run = replace(run, evaluated=event, best=event if event.best else run.best)
            figures = ", ".join(f"{name} {_figure(value)}" for name, value in event.metrics.items())
            best = ", the best so far" if event.best else ""
            return run, Level.INFO, f"step {event.step:,} evaluated on {event.samples:,} samples: {figures}{best}"
        case protocol.Notice():
            return run, Level.WARNING, f"{event.host}, step {event.step:,}: {event.text}"
        case protocol.CheckpointSaved():
            if event.step >= run.checkpoint_step or len(event.hosts) < 2:  # else an earlier one was copied late
                run = replace(run, checkpoint=event.path, checkpoint_step=event.step)
            where = ", ".join(event.hosts) or event.host
            return run, Level.INFO, f"checkpoint of step {event.step:,} saved on {where}"
        case protocol.CoordinatorLost():
            text = f"the coordinator on {event.host} was lost after step {event.step:,}; a new one takes over"
            return without_coordinator(run, event.time), Level.BAD, text
        case protocol.ServerLost() | protocol.HeadLost():
            return run, Level.BAD, f"{event.host} lost at step {event.step:,}: {event.cause}"
        case protocol.RunResumed():
            # Later steps are repeated, so their data is superseded.
            losses = tuple(point for point in run.losses if point[0] <= event.step)
            was_lost = faults.was_lost(run, event)
            away = 0.0 if was_lost else max(0.0, event.time - (run.last_event or event.time))
            run = replace(
                run,
                state=run.state if run.state is RunState.STOPPING else RunState.RUNNING,
                ended=None,
                detail="",
                step=event.step,
                samples=event.samples or run.samples,
                iterations=event.iterations or run.iterations,
                loss=losses[-1][1] if losses else None,
                losses=losses,
                recent=(),
                superseded=faults.furthest(run) if event.went_back else None,
                stood_after=faults.furthest(run) if was_lost else None,
                checkpoint=event.checkpoint or run.checkpoint,
                checkpoint_step=event.step if event.checkpoint else run.checkpoint_step,
                workers=_usual_again(run.workers) if faults.is_measured_anew(event) else run.workers,
                away_seconds=run.away_seconds + away,
                evaluated=_unless_superseded(run.evaluated, event.step),
                best=_unless_superseded(run.best, event.step),
            )
            return run, Level.GOOD, _resumed(event)
        case protocol.RunFinished():
            run = replace(
                run,
                state=RunState.STOPPED if event.stopped else RunState.FINISHED,
                ended=event.time,
                step=event.steps,
                loss=event.final_loss,
                checkpoint=event.checkpoint,
                evaluation=event.evaluation,
                detail="",
            )
            figures = "".join(
                f", {name.replace('_', ' ')} {number(value, 4)}" for name, value in event.evaluation.items()
            )
            word = "stopped" if event.stopped else "finished"
            speed = f"{event.samples_per_second:,.0f} samples/s"
            why = f" ({event.reason})" if event.reason else ""
            steps = "1 step" if event.steps == 1 else f"{event.steps:,} steps"
            return run, Level.GOOD, f"{run.run} {word} after {steps}{why}, {speed}{figures}"
        case protocol.RunFailed():
            why = f"{event.cause} -> {event.hint}" if event.hint else event.cause
            run = replace(run, state=RunState.FAILED, ended=event.time, detail=one_line(why, WHOLE))
            return run, Level.BAD, f"{run.run} failed on {event.host} {stands_at(run.state, run.step)}: {why}"
        case _:
            return run, Level.INFO, ""


def _resumed(event: protocol.RunResumed) -> str:
    notes = "".join(f"; {note}" for note in event.notes)
    if event.went_back:
        what, _, why = event.cause.partition(": ")
        return f"resumed after step {event.step:,}: {what}{f' ({why})' if why else ''}{notes}"
    ended = f" (it had {event.cause})" if event.cause else ""
    return f"resumed on {event.host} after step {event.step:,}{ended}{notes}"


def _figure(value: float | None) -> str:
    return "n/a" if value is None else number(value, 4)


def _unless_superseded(evaluated: protocol.Evaluated | None, step: int) -> protocol.Evaluated | None:
    return evaluated if evaluated is not None and evaluated.step <= step else None


def _unless_past(step: protocol.Step | None, event: protocol.Step) -> protocol.Step | None:
    return step if step is not None and event.step <= step.step else None


def _stepped(run: RunView, event: protocol.Step) -> RunView:
    losses = run.losses
    if event.loss is not None:
        losses = (*losses, (event.step, event.loss))
        if len(losses) > LOSS_POINTS:
            losses = losses[::2]
    return replace(
        run,
        step=event.step,
        loss=event.loss,
        losses=losses,
        # If only some steps of a record are read, a step stands for those that were left out before it.
        samples=run.samples + event.samples * (max(1, event.step - run.step) if run.recent else 1),
        recent=(*run.recent[-(RECENT_STEPS - 1) :], event),
        superseded=_unless_past(run.superseded, event),
        stood_after=_unless_past(run.stood_after, event),
        detail="",
    )


def _workers(run: RunView, shares: Iterable[protocol.Share]) -> tuple[WorkerView, ...]:
    """The workers with their new shares; each keeps its place, so that rows on the screen do not jump."""
    shares = tuple(shares)
    total = sum(share.samples for share in shares) or 1
    workers = {
        worker.worker: replace(worker, samples=0, fraction=0.0, is_coming=worker.is_coming and not worker.alive)
        for worker in run.workers
    }
    for share in shares:
        known = workers.get(share.worker)
        workers[share.worker] = WorkerView(
            worker=share.worker,
            host=share.host,
            device=share.device,
            samples=share.samples,
            fraction=share.samples / total,
            simulated_speed=share.simulated_speed,
            alive=True,
            slow_factor=known.slow_factor if known else None,
        )
    return tuple(workers.values())


def _staged(workers: tuple[WorkerView, ...], plan: protocol.PlanMade) -> tuple[WorkerView, ...]:
    """The workers of a pipeline, each with its part of the model's blocks, since all stages see all samples."""
    blocks = {stage.worker: stage.last - stage.first for stage in plan.stages}
    total = sum(blocks.values()) or 1
    return tuple(replace(worker, fraction=blocks.get(worker.worker, 0) / total) for worker in workers)


def _cut(plan: protocol.PlanMade) -> str:
    hosts = {share.worker: share.host for share in plan.shares}
    parts = [f"{hosts.get(stage.worker, stage.worker)} {stage.span}" for stage in plan.stages]
    return f"blocks of the model, by measured speed: {', '.join(parts)}"


def _left_out(plan: protocol.PlanMade) -> str:
    """The hosts that the plan leaves out, and why; "" if there are none."""
    used = {share.host for share in plan.shares}
    said = [reason for reason in plan.reasons if used == {reason.removeprefix("use ").partition(" alone: ")[0]}]
    for why in dict.fromkeys(plan.left_out.values()):
        hosts = [host for host, other in plan.left_out.items() if other == why]
        said.append(f"{', '.join(hosts)} left out: {why}")
    return "".join(f"; {one_line(each, 200)}" for each in said)


def _usual_again(workers: tuple[WorkerView, ...]) -> tuple[WorkerView, ...]:
    """The workers once they are measured anew: their speeds of then count as the usual ones."""
    return tuple(replace(worker, slow_factor=None) for worker in workers)


def _change_worker(run: RunView, name: str, **changes: object) -> tuple[WorkerView, ...]:
    return tuple(
        replace(worker, **changes) if worker.worker == name else worker  # type: ignore[arg-type]
        for worker in run.workers
    )


def _joined(run: RunView, event: protocol.WorkerJoined) -> str:
    """What a worker that is there means: before there is a plan, it may yet be left out."""
    device = f"{one_line(event.name, 60)} ({event.device})" if event.name else event.device
    return f"{event.host} {'is ready' if run.plan is None or run.is_starting else 'takes part'}: {device}"


def _starting(run: RunView, event: protocol.WorkerStarting) -> tuple[RunView, Level, str]:
    """The run with a worker that is being started; the log says so of one that a user asked for."""
    known = next((worker for worker in run.workers if worker.worker == event.worker), None)
    if known is None:
        known = WorkerView(
            worker=event.worker, host=event.host, device=event.device, samples=0, fraction=0.0, alive=False
        )
        run = replace(run, workers=(*run.workers, known))
        is_asked_for = True
    else:
        is_asked_for = known.drained
    changed = _change_worker(run, event.worker, is_coming=True, drained=False, retry_at=None, slow_factor=None)
    run = replace(run, workers=changed)
    return run, Level.INFO, f"{event.host}: its worker is being started" if is_asked_for else ""


def _without(run: RunView, event: protocol.WorkerLost) -> tuple[RunView, Level, str]:
    """The run after a worker left it, on request, or was lost."""
    drained = event.cause == protocol.DRAINED
    workers = _change_worker(
        run,
        event.worker,
        alive=False,
        samples=0,
        fraction=0.0,
        drained=drained,
        is_coming=False,
        retry_at=None if event.retry_s is None else event.time + event.retry_s,
    )
    was_away = any(worker.worker == event.worker and not worker.alive for worker in run.workers)
    run = replace(run, workers=workers)
    if was_away and not drained:
        return run, Level.WARNING, f"{event.host} is not back: {event.words}"
    if drained:
        return run, Level.INFO, f"{event.host} left the run before step {event.step:,}, as asked (drained)"
    when = f"at step {event.step:,}" if event.step else "before the first step"
    return run, Level.WARNING, f"{event.host} lost {when}: {event.words}"
