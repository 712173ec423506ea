"""Measures the speed of each device before training, on the job's own model and samples.

Devices of one physical computer share its cores and its memory's bandwidth, so their slices are timed one after the
other, those of different computers at the same time. Then all check at once what the job does with its samples.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from remote_agent.planning import shares
from remote_agent.planning.device_profile import SMALLEST, DeviceProfile
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.plan.measurements import Measurements
from remote_agent.training.coordinator.plan.placement import Placement
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.processes.heartbeat import pulse_of
from remote_agent.training.deadlines import MEASURE_S
from remote_agent.training.errors import LostAtStart, PlacementError, TooLarge, TrainingError
from remote_agent.training.shared import audit as audits
from remote_agent.training.shared import rpc
from remote_agent.training.shared.audit import Audit, Sketch
from remote_agent.training.shared.messages import AuditTask, Failed, Measured, Pulse, WorkerReady
from remote_agent.training.shared.rpc import Actor, Ref
from remote_agent.training.worker.device.simulation import SimulatedDevice

CALLS = 9
"""Times that all workers are called, and all answers waited for; the median counts."""

T = TypeVar("T")

HINT = "look at the host, or leave its device out of the run"


@dataclass(eq=False)
class Candidate:
    """A worker that is open and waits to be measured."""

    seat: Placement
    actor: Actor
    opened: WorkerReady


def share_cores(candidates: Sequence[Candidate]) -> None:
    """Limit the threads of all workers on one computer to its cores, also if they are on hosts with different names."""
    on = [(candidate.opened.machine, candidate.opened.cores) for candidate in candidates]
    seats = placement.without_sharing([candidate.seat for candidate in candidates], on)
    for candidate, seat in zip(candidates, seats, strict=True):
        if seat != candidate.seat:
            candidate.seat = seat
            candidate.actor.call("use_threads", seat.threads)


def sizes(batch: int, workers: int, max_batch: int | None) -> tuple[int, ...]:
    """Two slice sizes to measure: about what the device will get, and a small one that shows the fixed cost."""
    large = max(SMALLEST, batch // workers)
    if max_batch is not None:
        large = min(large, max_batch)
    small = max(min(SMALLEST, large), large // 8)
    return (small, large) if small < large else (large,)


def measure(
    candidates: Sequence[Candidate],
    batch: int,
    seconds: float,
    patience_s: float,
    crashes: Crashes | None = None,
    *,
    again: bool = False,
    audit: Audit | None = None,
) -> Measurements:
    """Measure every candidate; simulated ones share the measurement of one of them.

    Args:
        seconds: of the timing of one of them, beside the checks.
        patience_s: how long a call of the user's code may take, if that is longer than :data:`MEASURE_S`.
        crashes: is told of workers that die, and knows those that hang.
        again: the same job was measured on these devices a moment ago: each size is timed once.
        audit: that each of them is compared with; None: the first of them audits the job.

    Raises:
        TrainingError: a device could not be measured, with its host; or the audit found something.
    """
    simulated = [candidate for candidate in candidates if candidate.opened.simulated_speed is not None]
    queues: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        queues.setdefault(candidate.opened.machine, []).append(candidate)

    def timed(candidate: Candidate) -> Ref[Measured | Failed]:
        # The first simulated device stands for all; the others only warm up, which is the smallest measurement.
        brief = again or candidate in simulated[1:]
        wanted = sizes(batch, len(candidates), candidate.seat.spec.max_batch)
        return candidate.actor.call("measure", wanted, 0.0 if brief else seconds)

    results = _answers(queues.values(), timed, patience_s, crashes)
    reference = shares.fit(results[simulated[0]].points) if simulated else None
    profiles = []
    for candidate in candidates:
        limit = candidate.seat.spec.max_batch
        speed = candidate.opened.simulated_speed
        if speed is not None and reference is not None:
            stretched = SimulatedDevice(speed, reference).profile
            profiles.append(DeviceProfile(stretched.speed, stretched.overhead_s, limit))
        else:
            profiles.append(shares.fit(results[candidate].points, limit))
    usage = functools.reduce(operator.or_, (result.usage for result in results.values()))
    audit = _audited(candidates, audit, patience_s, crashes)
    if audit is not None:
        usage = dataclasses.replace(usage, buffers=usage.buffers | audit.moved)
    return Measurements(
        tuple(profiles),
        usage,
        audit,
        results[candidates[0]].loss,
        reference,
        _notes(results),
        costs=tuple(results[candidate].costs for candidate in candidates),
        calls_s=_calls_s(candidates),
    )


def _audited(
    candidates: Sequence[Candidate], found: Audit | None, patience_s: float, crashes: Crashes | None
) -> Audit | None:
    """Let all compute the audit's samples, and return the audit with what differs; None: no device has room for it."""
    others = list(candidates)
    if found is None:
        first = others.pop(0)
        task = AuditTask(alone=True)
        alone = _answers([[first]], lambda each: each.actor.call("audit", task), patience_s, crashes)[first]
        if not isinstance(alone, Audit):
            return None
        found = dataclasses.replace(alone, place=first.seat.spec.host)
    if found.finding is not None or not found.comparable or not others:
        return found
    task = AuditTask(indices=found.indices, evaluating=found.evaluating)
    answers = _answers([[each] for each in others], lambda each: each.actor.call("audit", task), patience_s, crashes)
    sketches = [(each.seat.worker, answer) for each, answer in answers.items() if isinstance(answer, Sketch)]
    return dataclasses.replace(found, finding=audits.compared(found, sketches))


def _answers(
    queues: Iterable[list[Candidate]],
    ask: Callable[[Candidate], Ref[T | Failed]],
    patience_s: float,
    crashes: Crashes | None,
) -> dict[Candidate, T]:
    """What each answers; those of a queue are asked one after the other. Raises as :func:`measure`."""
    waiting = [list(reversed(queue)) for queue in queues]
    running = [(queue[-1], ask(queue.pop()), queue) for queue in waiting]
    results: dict[Candidate, T] = {}
    while running:
        ready = rpc.first_ready([ref for _, ref, _ in running], MEASURE_S)
        if ready is None:
            for candidate, _, _ in running:
                pulse = pulse_of(candidate.actor)
                if pulse is None or pulse.quiet_s >= max(MEASURE_S, patience_s):
                    raise _hangs(candidate, pulse, crashes)
            continue
        candidate, ref, queue = running.pop(ready)
        results[candidate] = _result(candidate, ref, crashes)
        if queue:
            running.append((queue[-1], ask(queue.pop()), queue))
    return results


def _calls_s(candidates: Sequence[Candidate]) -> tuple[float, ...]:
    """Seconds until each of them has answered where all are called at once, as in a step: the median of some."""
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(CALLS):
        began = time.perf_counter()
        calls = [candidate.actor.call("ping") for candidate in candidates]
        for taken, call in zip(times, calls, strict=True):
            try:
                rpc.get(call, MEASURE_S)
            except rpc.NoAnswer:
                return (0.0,) * len(candidates)  # what comes next finds out
            taken.append(time.perf_counter() - began)
    return tuple(statistics.median(taken) for taken in times)


def _notes(results: Mapping[Candidate, Measured]) -> tuple[str, ...]:
    """The workers' notes, each once, after the names of the workers that it comes from."""
    saying: dict[str, list[str]] = {}
    for candidate, result in results.items():
        for note in (*candidate.opened.notes, *result.notes):
            saying.setdefault(note, []).append(candidate.seat.worker)
    return tuple(f"{', '.join(sorted(workers))}: {note}" for note, workers in saying.items())


def _hangs(candidate: Candidate, pulse: Pulse | None, crashes: Crashes | None) -> TrainingError:
    """The error for a worker that gave no answer, or in which no call of the user's code began for too long."""
    seat = candidate.seat
    error = crashes.not_measured(seat, candidate.actor, pulse) if crashes is not None else None
    cause = f"{seat.worker} stands still while it is measured"
    return error or LostAtStart(cause, hint=HINT, host=seat.spec.host)


def _result(candidate: Candidate, ref: Ref[T | Failed], crashes: Crashes | None) -> T:
    host = candidate.seat.spec.host
    try:
        result = rpc.get(ref, MEASURE_S)
    except (*rpc.Lost, rpc.CallFailed) as error:
        cause = f"{candidate.seat.worker} was lost while it was measured: {rpc.describe(error)}"
        if crashes is not None:
            crashes.died(candidate.seat, candidate.actor, rpc.describe(error))
        kind = PlacementError if isinstance(error, rpc.CallFailed) else LostAtStart
        raise kind(cause, hint=HINT, host=host) from error
    if isinstance(result, Failed):
        failure = result.error(host)
        if isinstance(failure, TooLarge):
            failure.specs = (candidate.seat.spec,)
        raise failure
    return result
