"""Computes the state that is shown: ``apply(state, event) -> state``, a pure fold over events.

Repeated events are harmless: an event of a run whose ``seq`` was seen is dropped, so following a file again from its
start changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from hetero_tui import events
from hetero_tui.event_log import is_data, logged, topic_of
from hetero_tui.events import ClusterState, Event, HostState, Level
from hetero_tui.run_fold import begun, fold_run, without_coordinator
from hetero_tui.state import IN_CLUSTER, Behind, HostView, Phase, RunView, State, Verdict
from hetero_tui.text import WHOLE, one_line
from remote_agent import protocol
from remote_agent.states import RayState, RunState, stands_at

_LEVELS = {
    HostState.UP: Level.GOOD,
    HostState.READY: Level.GOOD,
    HostState.UNFIT: Level.WARNING,
    HostState.RESTARTING: Level.WARNING,
    HostState.UNREACHABLE: Level.BAD,
    HostState.REFUSED: Level.BAD,
    HostState.FAILED: Level.BAD,
}
"""Host states that write a line to the log when a host enters them, with the line's level."""

_ANSWERED = (HostState.IDLE, HostState.READY, HostState.UNFIT, HostState.UP, HostState.RESTARTING, HostState.REFUSED)
"""Host states of hosts that answer."""

_AS_RAY_SAYS = (*IN_CLUSTER, HostState.UNREACHABLE, HostState.RESTARTING)
"""Host states that end when a sample shows no Ray."""

_CLEANED = (HostState.IDLE, HostState.READY)
"""States of hosts on which nothing of ours is known to run: what a sample still sees of a cluster that was taken down
ends in a moment."""

_BEGUN = (RayState.STARTING, RayState.RUNNING)
"""What only a user's command makes of a host without Ray."""

_AWAY = (HostState.UNREACHABLE, HostState.RESTARTING, HostState.FAILED)
"""Host states from which a host can come back."""


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
                time=event.time,
                host=event.host,
                state=HostState.UNREACHABLE,
                detail=event.cause,
                hint=event.hint,
            )
            next_try = None if event.retry_s is None else event.time + event.retry_s
            return _update_host(_host_changed(state, changed), event.host, next_try=next_try)
        case events.HostKeyOffered():
            key, server = one_line(event.fingerprint), one_line(event.endpoint)
            return _update_host(state, event.host, offered_key=key, offered_by=server)
        case events.ClusterChanged():
            return _cluster_changed(state, event)
        case events.RunChanged():
            return _run_changed(state, event)
        case events.RunProgressed():
            return _run_progressed(state, event)
        case events.RunBehind():
            run = state.run
            if run is None or run.run != event.run or event.seq <= run.last_seq:
                return state
            run = replace(run, behind=Behind(seq=event.seq, step=event.step))
            return _mark_training_hosts(replace(state, run=run))
        case events.RunRewound():
            run = state.run
            if run is None or run.run != event.run:
                return state
            told = (run.run, min(state.told[1], event.seq))
            return replace(state, run=replace(run, last_seq=min(run.last_seq, event.seq)), told=told)
        case events.RunsListed():
            return replace(state, runs=tuple(_listed(state, run) for run in event.runs))
        case events.Notice():
            text = event.text if event.host is None else f"{event.host}: {event.text}"
            return _logged(state, event.time, event.level, text)


def _logged(state: State, time: float, level: Level, text: str) -> State:
    return replace(state, log=logged(state.log, time, level, text))


# --- Hosts -----------------------------------------------------------------------------------------------------------


def _update_host(state: State, name: str, /, **changes: object) -> State:
    hosts = tuple(replace(host, **changes) if host.name == name else host for host in state.hosts)  # type: ignore[arg-type]
    return replace(state, hosts=hosts)


def _host_changed(state: State, event: events.HostChanged) -> State:
    host = state.host(event.host)
    if host is None:
        return state
    if event.state is HostState.IDLE and host.state in (HostState.UNREACHABLE, *IN_CLUSTER):  # it is as fit as before
        last = host.verdict
        event = replace(event, state=last.state, detail=event.detail or last.detail, hint=event.hint or last.hint)
    detail = one_line(event.detail, WHOLE)
    if event.state is HostState.CONNECTING and host.state is not HostState.UNKNOWN:
        return state  # keep the last state until there is a new one
    if event.state is HostState.IDLE and host.state in (HostState.READY, HostState.UNFIT):
        return _update_host(state, event.host, last_seen=event.time)  # its state is already more specific
    if event.state is HostState.UP and host.state in IN_CLUSTER:
        return _update_host(state, event.host, last_seen=event.time)
    verdict = _verdict(host, event)
    if host.state is event.state:
        return _update_host(state, event.host, detail=detail, hint=one_line(event.hint, WHOLE), verdict=verdict)
    seen = event.time if event.state in _ANSWERED else host.last_seen
    state = _update_host(
        state,
        event.host,
        state=event.state,
        detail=detail,
        hint=one_line(event.hint, WHOLE),
        since=event.time,
        last_seen=seen,
        next_try=None,
        verdict=verdict,
    )
    level, text = _words_for(host.state, event)
    state = _logged(state, event.time, level, text) if text else state
    return _mark_training_hosts(state) if event.state is HostState.UP else state


def _verdict(host: HostView, event: events.HostChanged) -> Verdict:
    """Whether the host is fit, once it is in its new state; most states say nothing about that."""
    if event.state in (HostState.IDLE, HostState.READY, HostState.UNFIT):
        return Verdict(state=event.state, detail=one_line(event.detail, WHOLE), hint=one_line(event.hint, WHOLE))
    return Verdict(state=HostState.READY) if event.state in IN_CLUSTER else host.verdict


def _words_for(before: HostState, event: events.HostChanged) -> tuple[Level, str]:
    """The log line for a host's new state, and its level; "" for none."""
    detail = f": {event.detail}" if event.detail else ""
    answers = before is HostState.UNREACHABLE and event.state in (HostState.READY, HostState.IDLE)
    if before in _AWAY and event.state in (HostState.RETURNING, HostState.PAUSED):
        return Level.GOOD, f"{event.host} is back in the cluster, and its worker not yet in the run"
    if answers or (before in _AWAY and event.state in IN_CLUSTER):
        return Level.GOOD, f"{event.host} is back{detail}"
    level = _LEVELS.get(event.state)
    if level is None:
        return Level.INFO, ""
    word = "failed" if event.state is HostState.FAILED else f"is {event.state}"
    hint = f" -> {event.hint}" if event.hint else ""
    return level, f"{event.host} {word}{detail}{hint}"


def _host_sampled(state: State, event: events.HostSampled) -> State:
    host = state.host(event.host)
    if host is None:
        return state
    changes: dict[str, object] = {"sample": event.sample, "sampled": event.time, "last_seen": event.time}
    if event.round_trip_s is not None:
        changes["round_trip_s"] = event.round_trip_s
    state = _update_host(state, event.host, **changes)
    if host.sample is not None and host.sample.ray is RayState.NONE and event.sample.ray in _BEGUN:
        state = replace(state, ended_epoch=0)  # a user started it again, perhaps in what is left of that cluster
    is_ended = state.is_taken_down(event.sample.epoch)
    if event.sample.epoch and not is_ended and (host.name == state.head or not state.epoch):
        state = replace(state, epoch=event.sample.epoch)
    transient = (HostState.INSTALLING, HostState.STARTING, HostState.STOPPING, HostState.CONNECTING)
    # A start by this laptop has a detail and reports its end; one by another laptop only shows in samples.
    starts_elsewhere = host.state is HostState.STARTING and not host.detail
    if host.state in transient and not starts_elsewhere:
        return state
    ray_runs = event.sample.ray is RayState.RUNNING
    now = host.state
    if event.sample.ray is RayState.STARTING:
        now = host.state if host.state in IN_CLUSTER else HostState.STARTING
    elif ray_runs and host.state not in IN_CLUSTER and not (is_ended and host.state in _CLEANED):
        now = _part_in(state.run if state.run is not None and not state.run.state.final else None, host.name)[0]
    elif event.sample.ray is RayState.RESTARTING:
        now = HostState.RESTARTING
    elif not ray_runs and (starts_elsewhere or host.state in _AS_RAY_SAYS):
        back = HostState.IDLE if host.state is HostState.UNREACHABLE else HostState.READY
        now = HostState.FAILED if event.sample.ray is RayState.STOPPED else back
    was_down = state.cluster_state is ClusterState.DOWN and not is_ended
    is_back = was_down and event.sample.ray in (RayState.RUNNING, RayState.RESTARTING)
    if is_back:  # another laptop started it, or the last state was wrong
        state = replace(state, cluster_state=ClusterState.DEGRADED)
    elif was_down and now is HostState.STARTING:
        state = _cluster_changed(state, events.ClusterChanged(time=event.time, state=ClusterState.STARTING))
    if now is not host.state:
        detail = "Ray has ended there" if now is HostState.FAILED else ""
        state = _host_changed(state, events.HostChanged(time=event.time, host=host.name, state=now, detail=detail))
        state = _mark_training_hosts(state)
    if event.sample.ray is RayState.NONE and _is_up(state) and (host.name == state.head or _has_no_ray(state)):
        # Ray was taken down by some laptop, it did not fail; and without a head there is no cluster.
        return _cluster_changed(state, events.ClusterChanged(time=event.time, state=ClusterState.DOWN))
    if state.cluster_state is ClusterState.STARTING and starts_elsewhere:
        return _once_started(state, event.time)
    return _with_cluster_state(state) if is_back or now is not host.state else state


def _once_started(state: State, time: float) -> State:
    """End the cluster's state "starting" once none of its hosts is starting."""
    if any(host.state is HostState.STARTING for host in state.hosts):
        return state
    word = ClusterState.UP if state.hosts_up == len(state.hosts) else ClusterState.DEGRADED
    word = word if state.hosts_up else ClusterState.DOWN
    return _cluster_changed(state, events.ClusterChanged(time=time, state=word, head=state.head))


def _has_no_ray(state: State) -> bool:
    """Whether no head is known, and Ray is on no host: a sample from before a teardown was the last to say so."""
    with_ray = (*IN_CLUSTER, HostState.STARTING, HostState.RESTARTING)
    return state.head is None and not any(host.state in with_ray for host in state.hosts)


def _is_up(state: State) -> bool:
    return state.cluster_state in (ClusterState.UP, ClusterState.DEGRADED)


def _with_cluster_state(state: State) -> State:
    """Set the cluster's state to up or degraded, by how many of the hosts that can be up are up."""
    if not _is_up(state):
        return state
    whole = all(host.state in IN_CLUSTER for host in state.hosts)
    return replace(state, cluster_state=ClusterState.UP if whole else ClusterState.DEGRADED)


def _cluster_changed(state: State, event: events.ClusterChanged) -> State:
    if event.state is not ClusterState.DOWN and state.is_taken_down(event.epoch):
        return state  # found in the middle of a teardown
    if event.state is ClusterState.STARTING and _is_up(state) and event.head in (None, state.head):
        return state  # it is there, and a host joins it
    changed = event.state is not state.cluster_state
    phase = state.cluster_phase
    if changed and event.state is ClusterState.STARTING:
        phase = Phase(name="cluster", began=event.time)
    elif phase is not None and phase.ended is None:
        phase = replace(phase, ended=event.time)
    if event.state is ClusterState.DOWN and _is_taken_down(state):
        state = replace(state, epoch=0, ended_epoch=state.epoch or state.ended_epoch)
    elif event.state is ClusterState.STARTING:
        state = replace(state, ended_epoch=0)
    head = None if event.state is ClusterState.DOWN else event.head or state.head
    state = replace(state, cluster_state=event.state, head=head, cluster_phase=phase)
    if not changed:
        return state
    level = {
        ClusterState.UP: Level.GOOD,
        ClusterState.DEGRADED: Level.WARNING,
    }.get(event.state, Level.WARNING if event.detail else Level.INFO)
    where = f", head {event.head}" if event.head and event.state in (ClusterState.UP, ClusterState.DEGRADED) else ""
    detail = f", {event.detail}" if event.detail else ""
    return _logged(state, event.time, level, f"cluster {state.cluster} is {event.state}{where}{detail}")


def _is_taken_down(state: State) -> bool:
    """Whether a cluster that is down was taken down: here, or its head answers. Else it may only be out of reach."""
    head = state.host(state.head) if state.head is not None else None
    answers = head is not None and head.state not in (HostState.UNREACHABLE, HostState.REFUSED)
    return answers or state.cluster_state is ClusterState.STOPPING


# --- Runs ------------------------------------------------------------------------------------------------------------


def _mark_training_hosts(state: State) -> State:
    """Set whether each host that is up trains, and if not why; without a run no host trains."""
    run = state.run if state.run is not None and not state.run.state.final else None
    hosts: list[HostView] = []
    for host in state.hosts:
        now, detail = _part_in(run, host.name) if host.state in IN_CLUSTER else (host.state, host.detail)
        if now is host.state and not detail:
            detail = host.detail  # details about its node, such as a supervisor that has ended
        next_try = _next_try(state, host.name) if now is HostState.PAUSED else host.next_try
        same = (now, detail, next_try) == (host.state, host.detail, host.next_try)
        hosts.append(host if same else replace(host, state=now, detail=detail, next_try=next_try))
    return replace(state, hosts=tuple(hosts))


def _part_in(run: RunView | None, host: str) -> tuple[HostState, str]:
    """The state of a host in the cluster with respect to the run, with a few words of detail."""
    if run is None or run.is_starting or run.behind is not None:
        return HostState.UP, ""
    workers = [worker for worker in run.workers if worker.host == host]
    living = [worker for worker in workers if worker.alive]
    if any(worker.samples > 0 for worker in living):
        factor = next((worker.slow_factor for worker in living if worker.slow_factor is not None), None)
        return (HostState.TRAINING, "") if factor is None else (HostState.SLOW, f"×{factor:.1f}")
    if any(worker.is_coming for worker in workers):
        return HostState.RETURNING, ""
    if living and run.stages:
        return HostState.BENCHED, "holds no blocks of the model: a step is shorter without it"
    if living:
        return HostState.BENCHED, "too slow to help just now; tried again by itself"
    if not workers and run.plan is not None and host in run.plan.left_out:
        return HostState.BENCHED, f"the plan leaves it out: {one_line(run.plan.left_out[host], 200)}"
    if not workers:
        return HostState.UP, ""
    return (HostState.DRAINED, "") if all(worker.drained for worker in workers) else (HostState.PAUSED, "")


def _next_try(state: State, host: str) -> float | None:
    """When the paused worker of a host is started again, on the laptop's clock as all times of hosts."""
    workers = state.run.workers if state.run is not None else ()
    known = (worker.retry_at for worker in workers if worker.host == host and worker.retry_at is not None)
    return next((state.here(time) for time in known), None)


def _run_changed(state: State, event: events.RunChanged) -> State:
    run, time = state.run, state.there(event.time)
    is_news = run is None or (run.run, run.state) != (event.run, event.state) or bool(event.detail)
    goes_on = event.state in (RunState.STARTING, RunState.RUNNING)
    if run is None or run.run != event.run:
        ended_at = event.history or _seq_of_ended(state, event.run)
        run = begun(event.run, event.job, time, ended_at if goes_on else 0)
        state = _with_listed(replace(state, run=run), event)
    elif run.state.final and goes_on:
        if state.told[0] == run.run:  # a resume removes its last event
            state = replace(state, told=(run.run, min(state.told[1], run.last_seq - 1)))
        run = begun(event.run, event.job, time, run.last_seq)  # its events arrive from the first one
    elif run.state.final:
        return state  # the run's own final event has priority
    elif event.state is RunState.STARTING:
        run = without_coordinator(run, time)
    if not run.last_seq and not run.history and event.state is not RunState.STARTING:
        run = replace(run, phases=())  # after attaching, the events show its start
    final = event.state.final
    ended = time if final else run.ended
    behind = None if final else run.behind  # a final run has no later events
    run = replace(run, state=event.state, detail=one_line(event.detail, WHOLE), ended=ended, behind=behind)
    state = replace(state, run=run)
    level = Level.BAD if event.state in (RunState.FAILED, RunState.LOST) else Level.INFO
    where = f" {stands_at(run.state, run.step)}" if final and run.step else ""
    detail = f": {event.detail}" if event.detail else ""
    word = f"is {event.state}" if not final or event.state is RunState.LOST else event.state.value
    state = _logged(state, event.time, level, f"{event.run} {word}{where}{detail}") if is_news else state
    return _mark_training_hosts(state)


def _listed(state: State, run: protocol.RunSummary) -> protocol.RunSummary:
    """A run with its times on the laptop's clock."""
    started, ended = (time and state.here(time, run.host) for time in (run.started, run.ended))
    return replace(run, started=started, ended=ended)


def _seq_of_ended(state: State, run: str) -> int:
    """The number of the last event of a run that is listed as ended; 0: it is not listed as ended."""
    return next((each.seq for each in state.runs or () if each.id == run and each.state.final), 0)


def _with_listed(state: State, event: events.RunChanged) -> State:
    """Add a run that started after the last listing to the listed runs."""
    if state.runs is None or any(run.id == event.run for run in state.runs):
        return state
    new = protocol.RunSummary(
        id=event.run, job=event.job, state=event.state, step=0, loss=None, started=event.time, host=state.head or ""
    )
    return replace(state, runs=(*state.runs, new))


def _run_progressed(state: State, wrapped: events.RunProgressed) -> State:
    event = wrapped.event
    run = state.run
    if run is None or run.run != wrapped.run:
        run = RunView(run=wrapped.run, job="", started=event.time)
    if event.seq <= run.last_seq:
        return state
    is_last = event.kind in protocol.FINAL_KINDS
    caught_up = run.behind is not None and (is_last or event.seq >= run.behind.seq)
    run = replace(run, last_seq=event.seq, behind=None if caught_up else run.behind)
    run, level, text = fold_run(run, event)
    state = replace(state, run=run)
    if caught_up or not isinstance(event, protocol.Step) or len(run.recent) == 1:
        state = _mark_training_hosts(state)
    told = state.told[1] if state.told[0] == wrapped.run else 0
    if event.seq <= told or run.is_past(event):
        return state  # it was followed before, or resumed, and its events arrive again from the start
    state = replace(state, told=(wrapped.run, event.seq))
    if not text:
        return state
    log = logged(state.log, state.here(event.time), level, text, topic=topic_of(event), is_data=is_data(event))
    return replace(state, log=log)
