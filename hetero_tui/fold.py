"""``apply(state, event) -> state``: the pure fold from events to what is shown.

It is safe against repetition: an event of a run whose ``seq`` was seen is dropped, so following a file again from
its start changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hetero_tui import events
from hetero_tui.events import ClusterState, Event, HostState, Level, RunState
from hetero_tui.state import (
    LOG_LINES,
    LOSS_POINTS,
    RECENT_STEPS,
    HostView,
    LogLine,
    Marker,
    RunView,
    State,
    WorkerView,
)
from hetero_tui.text import one_line
from remote_agent import protocol

_LEVELS = {
    HostState.UP: Level.GOOD,
    HostState.READY: Level.GOOD,
    HostState.UNFIT: Level.WARNING,
    HostState.RESTARTING: Level.WARNING,
    HostState.UNREACHABLE: Level.BAD,
    HostState.REFUSED: Level.BAD,
    HostState.FAILED: Level.BAD,
}
"""Host states that are worth a line in the log, when a host enters them, and that line's weight."""

_ROUTINE = (protocol.CheckpointSaved, protocol.Evaluated)
"""Events that come again and again: of their lines in a row the newest is kept."""

_BUSY = (HostState.UP, HostState.TRAINING, HostState.SLOW)


def apply(state: State, event: Event) -> State:
    """The state after ``event``."""
    match event:
        case events.HostChanged():
            return _host_changed(state, event)
        case events.HostProbed():
            return _update_host(state, event.host, facts=event.facts, last_seen=event.time, offered_key=None)
        case events.HostSampled():
            return _host_sampled(state, event)
        case events.HostLost():
            changed = events.HostChanged(
                time=event.time, host=event.host, state=HostState.UNREACHABLE, detail=event.cause
            )
            return _host_changed(state, changed)
        case events.HostKeyOffered():
            return _update_host(state, event.host, offered_key=one_line(event.fingerprint))
        case events.ClusterChanged():
            return _cluster_changed(state, event)
        case events.RunChanged():
            return _run_changed(state, event)
        case events.RunProgressed():
            return _run_progressed(state, event)
        case events.RunRewound():
            run = state.run
            if run is None or run.run != event.run:
                return state
            return replace(state, run=replace(run, last_seq=min(run.last_seq, event.seq)))
        case events.Notice():
            text = event.text if event.host is None else f"{event.host}: {event.text}"
            return _logged(state, event.time, event.level, text)


def _logged(state: State, time: float, level: Level, text: str, is_routine: bool = False) -> State:
    before = state.log
    number = before[-1].number + 1 if before else 1
    if is_routine and before and before[-1].is_routine:
        before = before[:-1]
    line = LogLine(time=time, level=level, text=one_line(text, 400), number=number, is_routine=is_routine)
    return replace(state, log=(*before[-(LOG_LINES - 1) :], line))


# --- Hosts -----------------------------------------------------------------------------------------------------------


def _update_host(state: State, name: str, /, **changes: object) -> State:
    hosts = tuple(replace(host, **changes) if host.name == name else host for host in state.hosts)  # type: ignore[arg-type]
    return replace(state, hosts=hosts)


def _host_changed(state: State, event: events.HostChanged) -> State:
    host = state.host(event.host)
    if host is None:
        return state
    if host.state is event.state:
        return _update_host(state, event.host, detail=one_line(event.detail))
    seen = host.last_seen if event.state is HostState.UNREACHABLE else event.time
    state = _update_host(
        state, event.host, state=event.state, detail=one_line(event.detail), since=event.time, last_seen=seen
    )
    level = _LEVELS.get(event.state)
    if level is None:
        return state
    detail = f": {event.detail}" if event.detail else ""
    return _logged(state, event.time, level, f"{event.host} is {event.state}{detail}")


def _host_sampled(state: State, event: events.HostSampled) -> State:
    host = state.host(event.host)
    if host is None:
        return state
    changes: dict[str, object] = {"sample": event.sample, "sampled": event.time, "last_seen": event.time}
    if event.round_trip_s is not None:
        changes["round_trip_s"] = event.round_trip_s
    state = _update_host(state, event.host, **changes)
    transient = (HostState.STARTING, HostState.STOPPING, HostState.CONNECTING)
    if host.state in transient:
        return state
    ray_runs = event.sample.ray == "running"
    now = host.state
    if ray_runs and host.state not in _BUSY:
        now = HostState.TRAINING if _trains(state, host.name) else HostState.UP
    elif event.sample.ray == "restarting":
        now = HostState.RESTARTING
    elif not ray_runs and host.state in (*_BUSY, HostState.UNREACHABLE, HostState.RESTARTING):
        now = HostState.FAILED if event.sample.ray == "stopped" else HostState.READY
    was_down = state.cluster_state is ClusterState.DOWN and event.sample.ray in ("running", "restarting")
    if was_down:  # another laptop started it, or what was known of it was wrong
        state = replace(state, cluster_state=ClusterState.DEGRADED)
    if now is not host.state:
        detail = "Ray has ended there" if now is HostState.FAILED else ""
        state = _host_changed(state, events.HostChanged(time=event.time, host=host.name, state=now, detail=detail))
    return _with_cluster_state(state) if was_down or now is not host.state else state


def _with_cluster_state(state: State) -> State:
    """Up or degraded, by how many of the hosts that can be up are."""
    if state.cluster_state not in (ClusterState.UP, ClusterState.DEGRADED):
        return state
    whole = all(host.state in _BUSY for host in state.hosts)
    return replace(state, cluster_state=ClusterState.UP if whole else ClusterState.DEGRADED)


def _cluster_changed(state: State, event: events.ClusterChanged) -> State:
    changed = event.state is not state.cluster_state
    state = replace(state, cluster_state=event.state, head=event.head if event.head is not None else state.head)
    if not changed:
        return state
    level = {
        ClusterState.UP: Level.GOOD,
        ClusterState.DEGRADED: Level.WARNING,
    }.get(event.state, Level.INFO)
    head = f", head {event.head}" if event.head and event.state in (ClusterState.UP, ClusterState.DEGRADED) else ""
    return _logged(state, event.time, level, f"cluster {state.cluster} is {event.state}{head}")


# --- Runs ------------------------------------------------------------------------------------------------------------


def _trains(state: State, host: str) -> bool:
    run = state.run
    if run is None or run.state.final:
        return False
    return any(worker.host == host and worker.alive and worker.samples > 0 for worker in run.workers)


def _mark_training_hosts(state: State) -> State:
    """Hosts that are up show whether they train, and hosts that trained stop doing so with the run."""
    run = state.run
    slow = {worker.host: worker.slow_factor for worker in run.workers if worker.alive} if run is not None else {}
    hosts: list[HostView] = []
    for host in state.hosts:
        now, detail = host.state, host.detail
        if host.state in _BUSY:
            factor = slow.get(host.name)
            if not _trains(state, host.name):
                now, detail = HostState.UP, ""
            elif factor is not None:
                now, detail = HostState.SLOW, f"×{factor:.1f}"
            else:
                now, detail = HostState.TRAINING, ""
        hosts.append(host if (now, detail) == (host.state, host.detail) else replace(host, state=now, detail=detail))
    return replace(state, hosts=tuple(hosts))


def _run_changed(state: State, event: events.RunChanged) -> State:
    run = state.run
    if run is None or run.run != event.run:
        run = RunView(run=event.run, job=event.job, started=event.time)
        state = replace(state, run=run)
    elif run.state.final and event.state is RunState.STARTING:
        run = RunView(run=event.run, job=event.job, started=event.time)  # it is resumed: its events come from the first
    elif run.state.final:
        return state  # the run's own last word stands
    state = replace(state, run=replace(run, state=event.state, detail=one_line(event.detail)))
    level = Level.BAD if event.state in (RunState.FAILED, RunState.LOST) else Level.INFO
    detail = f": {event.detail}" if event.detail else ""
    return _mark_training_hosts(_logged(state, event.time, level, f"{event.run} is {event.state}{detail}"))


def _run_progressed(state: State, wrapped: events.RunProgressed) -> State:
    event = wrapped.event
    run = state.run
    if run is None or run.run != wrapped.run:
        run = RunView(run=wrapped.run, job="", started=event.time)
    if event.seq <= run.last_seq:
        return state
    run = replace(run, last_seq=event.seq)
    run, level, text = _fold_run(run, event)
    state = replace(state, run=run)
    if not isinstance(event, protocol.Step) or len(run.recent) == 1:
        state = _mark_training_hosts(state)
    return _logged(state, event.time, level, text, isinstance(event, _ROUTINE)) if text else state


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
                detail="measuring devices",
                iterations=event.iterations,
                batch_size=event.batch_size,
                parameters=event.parameters,
            )
            return run, Level.INFO, f"{event.job}: {event.parameters:,} parameters, {event.iterations:,} steps"
        case protocol.PlanMade():
            iterations = event.iterations or run.iterations
            run = replace(run, workers=_workers(run, event.shares), detail="", iterations=iterations)
            shares = ", ".join(f"{share.host} {share.samples}" for share in event.shares)
            return run, Level.INFO, f"samples of a step: {shares}"
        case protocol.Rebalanced():
            reason = f" ({event.reason})" if event.reason else ""
            shares = ", ".join(f"{share.host} {share.samples}" for share in event.shares)
            return replace(run, workers=_workers(run, event.shares)), Level.INFO, f"rebalanced{reason}: {shares}"
        case protocol.WorkerJoined():
            workers = _change_worker(run, event.worker, alive=True)
            return replace(run, workers=workers), Level.GOOD, f"{event.host} joined the run with {event.device}"
        case protocol.WorkerLost():
            marker = Marker(step=event.step, text=f"{event.host} lost")
            workers = _change_worker(run, event.worker, alive=False, samples=0, fraction=0.0)
            run = replace(run, workers=workers, markers=(*run.markers[-19:], marker))
            return run, Level.WARNING, f"{event.host} lost at step {event.step:,}: {event.cause}"
        case protocol.WorkerSlow() if event.factor >= 1:
            run = replace(run, workers=_change_worker(run, event.worker, slow_factor=None))
            return run, Level.GOOD, f"{event.host} is back at its usual speed"
        case protocol.WorkerSlow():
            run = replace(run, workers=_change_worker(run, event.worker, slow_factor=event.factor))
            return run, Level.WARNING, f"{event.host} slowed to ×{event.factor:.2f}"
        case protocol.SliceReissued():
            stall = "" if event.stall_s is None else f"; stall {event.stall_s:.1f} s"
            text = f"{event.samples} samples of step {event.step:,} went from {event.worker} to {event.to}{stall}"
            return run, Level.GOOD, f"{text}, nothing lost"
        case protocol.Evaluated():
            run = replace(run, evaluated=event, best=event if event.best else run.best)
            figures = ", ".join(f"{name} {_figure(value)}" for name, value in event.metrics.items())
            best = ", the best so far" if event.best else ""
            return run, Level.INFO, f"step {event.step:,} evaluated on {event.samples:,} samples: {figures}{best}"
        case protocol.Notice():
            return run, Level.WARNING, f"{event.host}, step {event.step:,}: {event.text}"
        case protocol.CheckpointSaved():
            run = replace(run, checkpoint=event.path, checkpoint_step=event.step)
            where = ", ".join(event.hosts) or event.host
            return run, Level.INFO, f"checkpoint of step {event.step:,} saved on {where}"
        case protocol.ServerLost() | protocol.HeadLost():
            return run, Level.BAD, f"{event.host} lost at step {event.step:,}: {event.cause}"
        case protocol.RunResumed():
            # What was known of later steps is superseded: they are made again.
            run = replace(
                run,
                state=run.state if run.state is RunState.STOPPING else RunState.RUNNING,
                ended=None,
                detail="measuring devices" if event.checkpoint else "",
                step=event.step,
                samples=event.samples or run.samples,
                iterations=event.iterations or run.iterations,
                losses=tuple(point for point in run.losses if point[0] <= event.step),
                recent=(),
                checkpoint=event.checkpoint or run.checkpoint,
                checkpoint_step=event.step if event.checkpoint else run.checkpoint_step,
                markers=(*run.markers[-19:], Marker(step=event.step, text="resumed")),
                evaluated=_unless_superseded(run.evaluated, event.step),
                best=_unless_superseded(run.best, event.step),
            )
            why = f" (it had {event.cause})" if event.cause else ""
            notes = "".join(f"; {note}" for note in event.notes)
            return run, Level.GOOD, f"resumed on {event.host} after step {event.step:,}{why}{notes}"
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
            figures = "".join(f", {name.replace('_', ' ')} {value:.4g}" for name, value in event.evaluation.items())
            word = "stopped" if event.stopped else "finished"
            speed = f"{event.samples_per_second:,.0f} samples/s"
            why = f" ({event.reason})" if event.reason else ""
            return run, Level.GOOD, f"{run.run} {word} after {event.steps:,} steps{why}, {speed}{figures}"
        case protocol.RunFailed():
            run = replace(run, state=RunState.FAILED, ended=event.time, detail=one_line(event.cause))
            hint = f" -> {event.hint}" if event.hint else ""
            return run, Level.BAD, f"{run.run} failed on {event.host} at step {event.step:,}: {event.cause}{hint}"
        case _:
            return run, Level.INFO, ""


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _unless_superseded(evaluated: protocol.Evaluated | None, step: int) -> protocol.Evaluated | None:
    return evaluated if evaluated is not None and evaluated.step <= step else None


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
        samples=run.samples + event.samples,
        recent=(*run.recent[-(RECENT_STEPS - 1) :], event),
        detail="",
    )


def _workers(run: RunView, shares: Iterable[protocol.Share]) -> tuple[WorkerView, ...]:
    """Each keeps its place, whatever order the shares come in: a row of the screen does not jump."""
    shares = tuple(shares)
    total = sum(share.samples for share in shares) or 1
    workers = {worker.worker: replace(worker, samples=0, fraction=0.0) for worker in run.workers}
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


def _change_worker(run: RunView, name: str, **changes: object) -> tuple[WorkerView, ...]:
    return tuple(
        replace(worker, **changes) if worker.worker == name else worker  # type: ignore[arg-type]
        for worker in run.workers
    )
