"""States to look at, made by folding real events; one clock for all of them.

A state never changes: those that many tests begin with are made once.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hetero_tui import events as ev
from hetero_tui.errors import HeteroTuiError, Unreachable
from hetero_tui.events import ClusterState, HostState
from hetero_tui.facts import HostFacts, parse_facts
from hetero_tui.fold import apply
from hetero_tui.intents import HostItem, LoggedLine, TeardownPreview, TeardownReport
from hetero_tui.outcomes import BAD, FIX, WARNING, BootstrapReport, Checked, CheckReport, Finding, Installed
from hetero_tui.state import RunView, State, initial
from remote_agent import protocol as p
from remote_agent.states import RayState, RunState

NOW = 1_790_000_460.0
"""The frozen clock: 2026-09-21, 14:21:00 UTC."""

GB = 2**30
FLEET = (("mercer", "mercer.local"), ("crosby", "192.168.1.12"), ("macbook", "studio.local"), ("nas", "nas.local"))


def facts(host: str, **changes: object) -> HostFacts:
    linux = {"system": "Linux", "release": "6.8.0", "name": "Ubuntu 24.04", "machine": "x86_64"}
    document: dict[str, object] = {
        "hostname": host,
        "user": "me",
        "home": "/home/me",
        "os": linux,
        "python": {"version": "3.11.9", "executable": "/usr/bin/python3"},
        "packages": {"ray": "2.60.0", "torch": "2.13.0"},
        "cpu": {"model": "Intel Core i7-5930K", "physical": 6, "logical": 12},
        "memory": {"total_bytes": 32 * GB, "available_bytes": 25 * GB},
        "disk": {"path": "/home", "total_bytes": 480 * GB, "free_bytes": 211 * GB},
        "addresses": [{"interface": "eno1", "address": "192.168.1.11", "prefix": 24, "speed_mbps": 1000}],
        "clock": NOW,
    }
    return parse_facts(document | changes)


def fleet_facts() -> dict[str, HostFacts]:
    titan = {"kind": "cuda", "name": "NVIDIA GeForce GTX TITAN X", "memory_bytes": 12 * GB, "driver": "550.90"}
    mac = {"system": "Darwin", "release": "24.5", "name": "macOS 15.5", "machine": "arm64"}
    return {
        "mercer": facts("mercer", accelerators=[titan]),
        "crosby": facts("crosby", accelerators=[titan]),
        "macbook": facts(
            "macbook",
            os=mac,
            accelerators=[{"kind": "mps", "name": "Apple M4 Max"}],
            memory={"total_bytes": 48 * GB, "available_bytes": 27 * GB},
        ),
        "nas": facts(
            "nas",
            cpu={"model": "Intel Celeron J4125", "physical": 4, "logical": 4},
            memory={"total_bytes": 8 * GB, "available_bytes": 5 * GB},
        ),
    }


def sample(
    host: str,
    use: float | None,
    used: float,
    total: float,
    *,
    ray: RayState = RayState.RUNNING,
    traffic: float = 0.0,
    delay: float | None = None,
) -> p.HostSample:
    """A sample of one of the fleet's hosts; memory in GB, traffic in Mbit/s, seconds to the head and back."""
    device = {"mercer": "cuda:0", "crosby": "cuda:0", "macbook": "mps"}.get(host)
    return p.HostSample(
        time=NOW,
        cpu_use=use if device is None else 0.12,
        memory_used=int(used * GB) if device in (None, "mps") else 7 * GB,
        memory_total=int(total * GB) if device in (None, "mps") else 32 * GB,
        ray=ray,
        devices=()
        if device is None
        else (
            p.DeviceSample(
                device=device,
                name="",
                use=use,
                memory_used=None if device == "mps" else int(used * GB),
                memory_total=None if device == "mps" else int(total * GB),
                temperature_c=None if device == "mps" else 71.0,
            ),
        ),
        bytes_sent_per_s=traffic * 1e6 / 8,
        bytes_received_per_s=traffic * 0.9e6 / 8,
        head_delay_s=delay,
    )


def fold(state: State, happened: Iterable[ev.Event]) -> State:
    for event in happened:
        state = apply(state, event)
    return state


def empty() -> State:
    return initial("rc-lab", ())


def fresh() -> State:
    """Four machines, nothing known of them yet."""
    return initial("rc-lab", FLEET)


@functools.cache
def probed(now: float = NOW) -> State:
    """All four looked at: one is not fit, one shows a new key."""
    found = fleet_facts()
    found["nas"] = found["nas"].model_copy(
        update={"packages": {"ray": None, "torch": None}, "problems": ("Ray and torch are missing",)}
    )
    happened: list[ev.Event] = []
    for host, _ in FLEET:
        happened.append(ev.HostChanged(time=now - 9, host=host, state=HostState.CONNECTING))
        if host == "macbook":
            happened.append(ev.HostKeyOffered(time=now - 8, host=host, fingerprint=FINGERPRINT))
            happened.append(
                ev.HostChanged(time=now - 8, host=host, state=HostState.REFUSED, detail="its host key is new")
            )
            continue
        happened.append(ev.HostProbed(time=now - 7, host=host, facts=found[host]))
        if host == "nas":
            missing = "Ray and torch are missing"
            happened.append(ev.HostChanged(time=now - 7, host=host, state=HostState.UNFIT, detail=missing))
        else:
            happened.append(ev.HostChanged(time=now - 7, host=host, state=HostState.READY))
    use = {"mercer": (0.0, 0.4, 12.0), "crosby": (0.02, 0.5, 12.0), "nas": (0.03, 2.9, 8.0)}
    delay = {"mercer": 0.0004, "crosby": 0.0005, "nas": 0.0011}
    for host, (fraction, used, total) in use.items():
        seen = sample(host, fraction, used, total, ray=RayState.NONE, traffic=0.1)
        happened.append(ev.HostSampled(time=now - 1, host=host, sample=seen, round_trip_s=delay[host]))
    return fold(fresh(), happened)


FINGERPRINT = "SHA256:oG5hQ1cVbT0ZqW8dq2k3YVxJmT9vZ4yJr7rDkq1mX3E"
_SHARES = {"mercer": (52, 1420.0), "crosby": (48, 1310.0), "macbook": (28, 760.0), "nas": (12, 210.0)}


def _share(host: str, samples: int) -> p.Share:
    device = {"mercer": "cuda:0", "crosby": "cuda:0", "macbook": "mps", "nas": "cpu"}[host]
    return p.Share(worker=f"{host}/{device}", host=host, device=device, samples=samples, speed=_SHARES[host][1])


def loss_at(step: int) -> float:
    """A loss that falls as losses do, with noise that is the same every time."""
    noise = 0.10 * math.sin(step * 12.9898) + 0.06 * math.sin(step * 4.1414)
    return 1.35 + 3.45 * math.exp(-step / 260) + noise * (0.35 + math.exp(-step / 300))


LOST_AT, HOT_FROM, SLOW_AT = 706, 1172, 1181
"""Steps at which nas falls silent, from which macbook is slower, and at which its share follows."""


def run_events(steps: int = 1204, ended: float = NOW, iterations: int = 5000) -> list[p.Event]:
    """A run's own events up to ``ended``: four workers, of which one is lost and another slows down."""
    seconds = [0.0, *(_seconds_of(step) for step in range(1, steps + 1))]
    at = ended - sum(seconds)
    happened: list[p.Event] = []

    def add(event: Callable[..., p.Event], at: float, **fields: object) -> None:
        happened.append(event(seq=len(happened) + 1, time=at, **fields))

    def rebalance(at: float, step: int, reason: str) -> None:
        shares = tuple(_share(host, samples) for host, samples in slices.items())
        add(p.Rebalanced, at, step=step, shares=shares, reason=reason)

    add(
        p.RunStarted,
        at - 4,
        run="text-7f3",
        job="text",
        host="mercer",
        iterations=iterations,
        batch_size=140,
        parameters=1_048_576,
    )
    for host in _SHARES:
        add(p.WorkerJoined, at - 3, worker=_share(host, 0).worker, host=host, device=_share(host, 0).device)
    shares = tuple(_share(host, samples) for host, (samples, _) in _SHARES.items())
    add(p.PlanMade, at - 1, strategy="sync", shares=shares, predicted_step_s=0.25)
    slices = {host: samples for host, (samples, _) in _SHARES.items()}
    for step in range(1, steps + 1):
        at += seconds[step]
        if step == LOST_AT:
            add(p.WorkerLost, at, worker="nas/cpu", host="nas", device="cpu", step=step, cause="silent for 1.1 s")
            add(p.SliceReissued, at, step=step, worker="nas/cpu", to="mercer/cuda:0", samples=12, stall_s=0.9)
            slices = {"mercer": 57, "crosby": 52, "macbook": 31}
            rebalance(at, step, "nas is away")
        if step == 1000:
            add(p.CheckpointSaved, at, step=step, path="~/.hetero-tui/rc-lab/runs/text-7f3/step-1000", host="mercer")
        if step == SLOW_AT:
            add(p.WorkerSlow, at, worker="macbook/mps", host="macbook", step=step, factor=0.6)
            slices = {"mercer": 64, "crosby": 58, "macbook": 18}
            rebalance(at, step, "macbook slowed down")
        workers = tuple(_worker_step(host, samples, seconds[step], step) for host, samples in slices.items())
        add(
            p.Step,
            at,
            step=step,
            loss=loss_at(step),
            samples=140,
            seconds=seconds[step],
            bytes_pushed=12_000_000,
            bytes_pulled=12_000_000,
            workers=workers,
        )
    return happened


def _seconds_of(step: int) -> float:
    usual = 0.249 * (1 + 0.02 * math.sin(step * 1.7) + 0.015 * math.sin(step * 0.31))
    if step == LOST_AT:
        return usual + 0.9
    return usual * 1.45 if HOT_FROM <= step < SLOW_AT else usual


_PARTS = {
    "mercer": (0.72, 0.12, 0.09),
    "crosby": (0.70, 0.13, 0.10),
    "macbook": (0.43, 0.30, 0.26),
    "nas": (0.61, 0.2, 0.15),
}


def _worker_step(host: str, samples: int, seconds: float, step: int) -> p.WorkerStep:
    wobble = 1 + 0.02 * math.sin(step * 2.1 + len(host))
    compute, push, pull = (seconds * part * wobble for part in _PARTS[host])
    share = _share(host, samples)
    return p.WorkerStep(
        worker=share.worker,
        host=host,
        device=share.device,
        samples=samples,
        compute_s=compute,
        push_s=push,
        pull_s=pull,
        wait_s=max(0.0, seconds - compute - push - pull),
    )


@functools.cache
def up(now: float = NOW) -> State:
    """The cluster is up on all four."""
    happened: list[ev.Event] = [ev.ClusterChanged(time=now - 340, state=ClusterState.STARTING, head="mercer")]
    for host, known in fleet_facts().items():
        happened.append(ev.HostProbed(time=now - 350, host=host, facts=known))
        happened.append(ev.HostChanged(time=now - 345, host=host, state=HostState.STARTING))
        happened.append(ev.HostChanged(time=now - 335, host=host, state=HostState.UP, detail="joined in 5.2 s"))
    happened.append(ev.ClusterChanged(time=now - 334, state=ClusterState.UP, head="mercer"))
    return fold(fresh(), happened)


@functools.cache
def training(now: float = NOW, iterations: int = 5000) -> State:
    """Four mixed machines train: one is slow, one has been unreachable for two minutes."""
    run = run_events(ended=now, iterations=iterations)
    started = run[0].time - 4
    away = next(event.time for event in run if isinstance(event, p.WorkerLost))
    last_of_nas = sample("nas", 0.62, 3.1, 8.0, traffic=230)
    others: list[tuple[float, ev.Event]] = [
        (started, ev.RunChanged(time=started, run="text-7f3", job="text", state=RunState.STARTING)),
        (away - 3, ev.HostSampled(time=away - 3, host="nas", sample=last_of_nas, round_trip_s=0.0011)),
        (away + 12, ev.HostLost(time=away + 12, host="nas", cause="no answer for 15 s")),
        (away + 12, ev.ClusterChanged(time=away + 12, state=ClusterState.DEGRADED, head="mercer")),
    ]
    live = {
        "mercer": (0.84, 9.1, 12.0, 0.0004, 941.0),
        "crosby": (0.79, 8.7, 12.0, 0.0005, 939.0),
        "macbook": (None, 21.0, 48.0, 0.0021, 310.0),
    }
    for host, (use, used, total, delay, traffic) in live.items():
        seen = sample(host, use, used, total, traffic=traffic, delay=None if host == "mercer" else delay)
        others.append((now - 1, ev.HostSampled(time=now - 1, host=host, sample=seen, round_trip_s=delay)))
    wrapped = [(event.time, ev.RunProgressed(run="text-7f3", event=event)) for event in run]
    happened = sorted([*others, *wrapped], key=lambda pair: pair[0])
    return fold(up(now), (event for _, event in happened))


def pipeline(now: float = NOW, steps: int = 60) -> State:
    """A model of 14 blocks cut over three machines; the fourth got none."""
    cuts = {"mercer": (0, 7), "crosby": (7, 12), "macbook": (12, 14), "nas": None}
    parts = {"mercer": (0.61, 0.03, 0.02), "crosby": (0.55, 0.04, 0.05), "macbook": (0.31, 0.02, 0.09)}
    shares = tuple(_share(host, 64 if cut else 0) for host, cut in cuts.items())
    names = {host: _share(host, 0).worker for host in cuts}
    stages = tuple(
        p.Stage(
            worker=names[host], first=cut[0], last=cut[1], seconds=0.006 * (cut[1] - cut[0]), memory=cut[1] * GB // 4
        )
        for host, cut in cuts.items()
        if cut
    )
    fields = {"run": "text-9a1", "job": "text", "host": "mercer"}
    happened: list[p.Event] = [
        p.RunStarted(seq=1, time=now - 40, iterations=2000, batch_size=64, parameters=9_437_184, **fields),
        p.PlanMade(
            seq=2, time=now - 31, strategy="pipeline", shares=shares, predicted_step_s=0.42, stages=stages,
            micro_batches=8, in_flight=5,
            reasons=("mercer/cuda:0: blocks 1 to 7 of 14, 42.0 ms a micro-batch",),
        ),
    ]  # fmt: skip
    for step in range(1, steps + 1):
        workers = tuple(
            p.WorkerStep(
                worker=names[host], host=host, device=_share(host, 0).device, samples=64,
                compute_s=0.45 * compute, push_s=0.45 * sent, pull_s=0.45 * received,
                wait_s=0.45 * (1 - compute - sent - received),
            )
            for host, (compute, sent, received) in parts.items()
        )  # fmt: skip
        happened.append(
            p.Step(
                seq=2 + step, time=now - 0.45 * (steps - step), step=step, loss=loss_at(step * 10), samples=64,
                seconds=0.45, bytes_pushed=8_400_000, bytes_pulled=8_400_000, workers=workers,
            )
        )  # fmt: skip
    started = ev.RunChanged(time=now - 44, run="text-9a1", job="text", state=RunState.STARTING)
    return fold(up(now), [started, *(ev.RunProgressed(run="text-9a1", event=event) for event in happened)])


def finished(now: float = NOW) -> State:
    """The same run to its end, nas back in time."""
    state = training(now, iterations=1204)
    assert state.run is not None
    last = state.run.last_seq
    end = p.RunFinished(
        seq=last + 1,
        time=now - 2,
        steps=1204,
        samples=168_560,
        final_loss=1.374,
        samples_per_second=541.0,
        checkpoint="~/.hetero-tui/rc-lab/runs/text-7f3/final",
        evaluation={"test_accuracy": 0.9731},
    )
    return fold(state, [ev.RunProgressed(run="text-7f3", event=end)])


def torn_down(now: float = NOW) -> State:
    """The cluster was taken down in mid-run: the run was stopped with a checkpoint, and the hosts are as before."""
    state = training(now)
    assert state.run is not None
    end = p.RunFinished(
        seq=state.run.last_seq + 1,
        time=now - 9,
        steps=1204,
        samples=168_560,
        final_loss=1.4,
        samples_per_second=541.0,
        checkpoint="~/.hetero-tui/rc-lab/runs/text-7f3/step-1204",
        stopped=True,
    )
    happened: list[ev.Event] = [
        ev.ClusterChanged(time=now - 10, state=ClusterState.STOPPING),
        ev.RunProgressed(run="text-7f3", event=end),
        *(ev.HostChanged(time=now - 4, host=host, state=HostState.READY) for host, _ in FLEET if host != "nas"),
        ev.ClusterChanged(time=now - 4, state=ClusterState.DOWN),
    ]
    return listed(fold(state, happened))


def failed(now: float = NOW) -> State:
    """The run ended badly."""
    state = training(now)
    assert state.run is not None
    cause, hint = "the loss is not a number", "lower the learning rate"
    end = p.RunFailed(seq=state.run.last_seq + 1, time=now, step=1204, host="mercer", cause=cause, hint=hint)
    return fold(state, [ev.RunProgressed(run="text-7f3", event=end)])


def two_devices(now: float = NOW) -> State:
    """A run on two accelerators of one host."""
    shares = tuple(
        p.Share(worker=f"mercer/cuda:{index}", host="mercer", device=f"cuda:{index}", samples=8, speed=100.0)
        for index in (0, 1)
    )
    parts = tuple(
        p.WorkerStep(
            worker=share.worker, host=share.host, device=share.device, samples=8,
            compute_s=0.1, push_s=0.02, pull_s=0.02, wait_s=0.01,
        )
        for share in shares
    )  # fmt: skip
    happened = [
        p.PlanMade(seq=1, time=now - 1, strategy="sync", shares=shares),
        p.Step(
            seq=2, time=now, step=1, loss=2.3, samples=16, seconds=0.15, bytes_pushed=1, bytes_pulled=1, workers=parts
        ),
    ]
    return fold(up(now), [ev.RunProgressed(run="text-1", event=event) for event in happened])


def demo(now: float = NOW) -> State:
    """Three simulated machines on this computer, up."""
    names = (("ash", "127.0.0.2"), ("birch", "127.0.0.3"), ("cedar", "127.0.0.4"))
    happened: list[ev.Event] = []
    for (host, _), speed in zip(names, (1.0, 0.5, 0.25), strict=True):
        happened.append(ev.HostProbed(time=now - 20, host=host, facts=facts(host, simulated_speed=speed)))
        happened.append(ev.HostChanged(time=now - 10, host=host, state=HostState.UP))
    happened.append(ev.ClusterChanged(time=now - 9, state=ClusterState.UP, head="ash"))
    return fold(initial("demo", names), happened)


def listed(state: State, now: float = NOW) -> State:
    """The same fleet once it said which runs it has."""
    runs = [
        ("digits-4b26", "digits", "finished", 150, 0.566, 9 * 3600, 24.0),
        ("text-e2c0", "text", "stopped", 155, 2.931, 5 * 3600, 61.0),
        ("text-91aa", "text", "failed", 12, None, 2 * 3600, 9.0),
    ]
    summaries = tuple(
        p.RunSummary(
            id=run,
            job=job,
            state=word,
            step=step,
            loss=loss,
            started=now - ago,
            ended=now - ago + took,
            host="mercer",
            iterations=step,
            parameters=40_602 if job == "digits" else 1_048_576,
            curve=tuple(loss_at(index * 20) for index in range(24)) if loss else (),
            checkpoint=step if loss else None,
        )
        for run, job, word, step, loss, ago, took in runs
    )
    live = state.run
    if live is not None:
        curve = tuple(loss_at(index * 50) for index in range(24))
        started, ended = live.started, live.ended
        word = "running" if ended is None else live.state.value
        summaries += (
            p.RunSummary(id=live.run, job="text", state=word, step=live.step, loss=live.loss, started=started,
                         ended=ended, host="mercer", curve=curve),
        )  # fmt: skip
    return apply(state, ev.RunsListed(time=now, runs=summaries))


def sweeping(state: State, word: RunState = RunState.RUNNING, host: str = "mercer") -> State:
    """The same fleet with a sweep, which makes no steps of its own."""
    sweep = p.RunSummary(
        id="sweep-12ab", job="digits", state=word, step=0, loss=None, started=1.0, host=host, script=True
    )
    return apply(state, ev.RunsListed(runs=(*(state.runs or ()), sweep)))


def starting(now: float = NOW) -> State:
    """The cluster is up since a moment ago, and the run's workers are being started."""
    happened: list[ev.Event] = [
        ev.ClusterChanged(time=now - 60, state=ClusterState.DOWN),
        ev.ClusterChanged(time=now - 30, state=ClusterState.STARTING, head="mercer"),
        ev.ClusterChanged(time=now - 19, state=ClusterState.UP, head="mercer"),
        ev.RunChanged(time=now - 18, run="text-7f3", job="text", state=RunState.STARTING),
        ev.RunProgressed(
            run="text-7f3",
            event=p.RunStarted(
                seq=1, time=now - 12, run="text-7f3", job="text", host="mercer", iterations=5000, batch_size=140,
                parameters=1_048_576,
            ),
        ),
    ]  # fmt: skip
    return fold(up(now), happened)


def faulty(now: float = NOW) -> State:
    """The run of :func:`training` in trouble: one host drained, one paused after failures, one benched, one away."""
    state = training(now)
    assert state.run is not None
    seq = state.run.last_seq
    shares = (_share("mercer", 140), _share("macbook", 0))
    lost = p.WorkerLost(
        seq=seq + 2, time=now - 4, worker="nas/cpu", host="nas", device="cpu", step=1203,
        cause="its process was killed", retry_s=16.0,
    )  # fmt: skip
    happened: list[p.Event] = [
        p.WorkerLost(
            seq=seq + 1, time=now - 5, worker="crosby/cuda:0", host="crosby", device="cuda:0", step=1203,
            cause="drained",
        ),
        lost,
        p.Rebalanced(seq=seq + 3, time=now - 3, step=1204, shares=shares, reason="the devices' speeds changed"),
    ]  # fmt: skip
    state = fold(state, [ev.RunProgressed(run="text-7f3", event=event) for event in happened])
    return fold(
        listed(state),
        [
            ev.HostSampled(time=now - 1, host="nas", sample=sample("nas", 0.1, 3.0, 8.0), round_trip_s=0.001),
            ev.HostLost(time=now - 2, host="macbook", cause="no answer for 15 s", retry_s=6.0),
        ],
    )


def log_line(host: str, process: str, ago: float, line: str) -> LoggedLine:
    return LoggedLine(host, p.LogLine(time=NOW - ago, process=process, line=line))


def logged(host: str = "") -> list[LoggedLine]:
    """A job's prints, its traceback, and what was decided."""
    lines = [
        log_line("mercer", "coordinator", 30, "INFO plan: mercer 52, crosby 48, macbook 28, nas 12"),
        log_line("mercer", "cuda:0", 28, "epoch 1, batch 20"),
        log_line("nas", "supervisor", 26, "the node has joined 192.168.1.11:6380"),
        log_line("mercer", "raylet", 25, "(raylet.err) WARNING: slow disk"),
        log_line("crosby", "cuda:0", 24, "Traceback (most recent call last):"),
        log_line("crosby", "cuda:0", 24, '  File "job.py", line 12, in loss'),
        log_line("crosby", "cuda:0", 24, "ValueError: \x1b[2Jlabels out of range [red]7[/red]"),
    ]
    return [line for line in lines if host in ("", line.host)]


@functools.cache
def many(count: int = 50, now: float = NOW) -> State:
    """A large fleet, all up."""
    names = tuple((f"node-{index:02}", f"10.0.0.{index}") for index in range(1, count + 1))
    happened: list[ev.Event] = []
    for index, (host, _) in enumerate(names):
        happened.append(ev.HostProbed(time=now - 20, host=host, facts=facts(host)))
        happened.append(ev.HostChanged(time=now - 10, host=host, state=HostState.UP))
        seen = p.HostSample(
            time=now, cpu_use=index % 10 / 10, memory_used=9 * GB, memory_total=32 * GB, ray=RayState.RUNNING
        )
        happened.append(ev.HostSampled(time=now - 1, host=host, sample=seen, round_trip_s=0.0004))
    happened.append(ev.ClusterChanged(time=now - 9, state=ClusterState.UP, head="node-01"))
    return fold(initial("hall", names), happened)


@dataclass
class FixedIntents:
    """A session that stands still: it answers from what it was given, and notes what it was asked for."""

    state: State
    busy: str = ""
    jobs: tuple[str, ...] = ("digits", "text")
    inventory_path: str = "/home/me/inventory.yaml"
    failure: Exception | None = None
    report: TeardownReport = field(default_factory=lambda: left_behind())
    asked: list[tuple[object, ...]] = field(default_factory=list)
    listeners: list[Callable[[State], None]] = field(default_factory=list)
    gate: asyncio.Event | None = None

    def subscribe(self, listener: Callable[[State], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def change(self, state: State) -> None:
        """Another state, told to the listeners as a live session does."""
        self.state = state
        for listener in self.listeners:
            listener(state)

    async def _asked(self, *what: object) -> None:
        self.asked.append(what)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure

    async def probe(self) -> None:
        await self._asked("probe")

    async def up(self) -> None:
        await self._asked("up")

    async def install(self, extras: Sequence[str], *, from_laptop: bool) -> BootstrapReport:
        await self._asked("install", *extras, from_laptop)
        return installed()

    async def look_for_problems(self, *, mends: bool) -> CheckReport:
        await self._asked("check", mends)
        return checked()

    def mistakes_in(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> tuple[str, ...]:
        return ("no job 'digit'; did you mean 'digits'?",) if job == "digit" else ()

    async def train(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> str:
        await self._asked("train", job, dict(settings), *paths)
        return f"{job}-1"

    async def stop_run(self, run: str | None = None) -> None:
        await self._asked("stop", *([run] if run else []))

    async def resume(self, run: str | None = None) -> str:
        await self._asked("resume", *([run] if run else []))
        return "digits-1"

    async def drain(self, host: str) -> str:
        await self._asked("drain", host)
        return "digits-1"

    async def bring_back(self, host: str) -> None:
        await self._asked("bring back", host)

    async def list_runs(self) -> None:
        await self._asked("list runs")

    async def read_run(self, run: str) -> RunView:
        await self._asked("read run", run)
        found = training().run
        assert found is not None
        return replace(found, run=run, state=RunState.STOPPED, ended=NOW - 3000)

    async def logs(self, run: str | None, host: str) -> AsyncGenerator[LoggedLine]:
        await self._asked("logs", run, host)
        for line in logged(host):
            yield line

    def shell_command(self, host: str) -> tuple[str, ...]:
        return ("true", host)

    async def save(self, name: str, text: str) -> str:
        await self._asked("save", name, text)
        return f"/home/me/{name}"

    def accept_host_key(self, host: str, fingerprint: str | None = None) -> None:
        self.asked.append(("accept", host, *([fingerprint] if fingerprint else [])))

    def teardown_preview(self) -> TeardownPreview:
        return PREVIEW

    async def down(self) -> TeardownReport:
        await self._asked("down")
        return self.report

    async def close(self) -> None:
        self.asked.append(("close",))


def installed() -> BootstrapReport:
    """One machine was done, one could not be."""
    detail = "Python 3.11.9, torch 2.13.0+cu126, works on cuda:0"
    done = Installed("mercer", "3.11", detail, "cu126", changed=True, seconds=93)
    return BootstrapReport((done,), {"nas": Unreachable("nas", "no answer from nas.local:22", step="connect")})


def checked() -> CheckReport:
    """One thing that can be mended from here, one that the user mends, and a machine without a fault."""
    crosby = Finding("crosby", BAD, "torch can't be imported", "training there would fail with it", FIX)
    mac = Finding("macbook", WARNING, "it goes to sleep after 10 min", "it is lost to the run", "sudo pmset -c sleep 0")
    hosts = (Checked("mercer", "192.168.1.11", ("cuda:0",), 0.0004), Checked("crosby"), Checked("macbook"))
    return CheckReport(hosts, (crosby, mac), "mercer", "for trusted networks only")


PREVIEW = TeardownPreview(
    cluster="rc-lab",
    running="text-7f3 at step 1,204 (last checkpoint: step 1,000)",
    stops=("Ray on mercer, crosby and macbook (11 processes)",),
    unreachable=("nas",),
)


def left_behind() -> TeardownReport:
    """A teardown that could not reach nas."""
    return TeardownReport(
        removed=tuple(
            HostItem(host=host, kind="process", detail=f"ray {number}")
            for host, count in (("mercer", 5), ("crosby", 3), ("macbook", 3))
            for number in range(count)
        ),
        leftovers=(HostItem(host="nas", kind="host", detail="not reached; run hetero-tui down when it is back"),),
    )


def refused(cause: str = "mercer does not answer") -> HeteroTuiError:
    return HeteroTuiError(cause, step="up", hint="check its cable")
