"""A run's faults, as its events tell them: one row for what several events say. Pure.

A fault is what nobody asked for and what may cost time, so also a new start of the run for a better plan. A host that a
user drained, and a run that was stopped, are none.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace

from hetero_tui.state import FAULTS, Fault, RunView
from hetero_tui.text import one_line
from remote_agent import protocol, wording

LOST, LATE, SLOW, SHARD, HEAD = "lost", "late", "slow", "shard lost", "head lost"
COORDINATOR = "coordinator lost"
STARTED_OVER = "started over"

USUAL_NOW = "counts as usual"
"""How a slowdown ends when the device is measured anew: no event tells then when it is as fast as before."""

_UNTIL_RESUMED = (SHARD, HEAD, COORDINATOR)
"""Faults that are over, and whose cost is known, once the run is resumed."""

_WRITTEN_AT_ONCE = 1.0
"""Seconds before a run goes on in which a new coordinator writes the steps that the lost one did not: to start takes it
longer, where nothing on its machine has told of the loss."""

_STALLED = 2.0
"""Times the usual time between two steps from which a fault between them has made the run stand still."""

Faults = tuple[Fault, ...]


def after(run: RunView, event: protocol.Event) -> Faults:
    """The faults once ``event`` is known; ``run`` is as it was before it."""
    faults = run.faults
    match event:
        case protocol.Step():
            return _stalled(run, event)
        case protocol.WorkerLost() if event.cause != protocol.DRAINED:
            return _lost(run, event)
        case protocol.WorkerLost():
            return faults
        case protocol.WorkerStarting():
            return _ended(faults, event.time, _is_slow(event.worker), USUAL_NOW)
        case protocol.WorkerJoined():
            return _ended(faults, event.time, lambda fault: fault.worker == event.worker and fault.word != SLOW)
        case protocol.SliceReissued():
            return _reissued(run, event)
        case protocol.WorkerSlow() if event.factor >= 1:
            return _ended(faults, event.time, _is_slow(event.worker))
        case protocol.WorkerSlow():
            faults = _ended(faults, event.time, _is_slow(event.worker), "slowed again")
            what = f"slowed to ×{event.factor:.2f}"
            return _added(faults, event.time, event.step, event.host, SLOW, what, worker=event.worker)
        case protocol.Rebalanced():
            return _rebalanced(run, event)
        case protocol.ServerLost():
            return _added(faults, event.time, event.step, event.host, SHARD, event.cause)
        case protocol.HeadLost():
            return _added(faults, event.time, event.step, event.host, HEAD, event.cause)
        case protocol.CoordinatorLost():
            return _added(faults, event.time, event.step, event.host, COORDINATOR, "its process was killed")
        case protocol.RunResumed():
            return _resumed(run, event)
        case _:
            return faults


def _added(
    faults: Faults,
    time: float,
    step: int,
    host: str,
    word: str,
    what: str,
    *,
    worker: str = "",
    retry_s: float | None = None,
) -> Faults:
    number = faults[-1].number + 1 if faults else 1
    fault = Fault(
        number=number,
        time=time,
        step=step,
        host=host,
        worker=worker,
        word=word,
        what=one_line(what, 160),
        retry_s=retry_s,
    )
    return (*faults[-(FAULTS - 1) :], fault)


def _lost(run: RunView, event: protocol.WorkerLost) -> Faults:
    faults, retry_s = run.faults, event.retry_s
    known = _open(faults, lambda fault: fault.worker == event.worker and fault.word == LOST)
    if known is None:
        rows = _added(
            faults, event.time, event.step, event.host, LOST, event.cause, worker=event.worker, retry_s=retry_s
        )
        return _with(rows, replace(rows[-1], stall_s=_stalled_before(run, event)))
    waited = None if retry_s is None else event.time - known.time + retry_s
    return _with(faults, replace(known, tries=known.tries + 1, retry_s=waited))


def _is_slow(worker: str) -> Callable[[Fault], bool]:
    return lambda fault: fault.worker == worker and fault.word == SLOW


def _reissued(run: RunView, event: protocol.SliceReissued) -> Faults:
    faults = run.faults
    if any(worker.worker == event.worker and worker.drained for worker in run.workers):
        return faults  # a user took it out of the run in the middle of its slice
    host, to = event.worker.partition("/")[0], event.to.partition("/")[0]
    known = _open(faults, lambda fault: fault.worker == event.worker and fault.word in (LOST, LATE))
    if known is None:
        late = _added(faults, event.time, event.step, host, LATE, "its slice was late", worker=event.worker)
        known, faults = late[-1], late
    if known.word == LATE:  # the slice is done; when the worker follows the run again, no event tells
        known = replace(known, back=event.time, over="mended")
    before = dict(known.moved)
    moved = before | {to: before.get(to, 0) + event.samples}
    said, now = _moved_words(before), _moved_words(moved)
    done = known.done.replace(said, now, 1) if said else _joined(known.done, now)
    return _with(faults, replace(known, done=one_line(done, 160), moved=tuple(moved.items())))


def _moved_words(moved: Mapping[str, int]) -> str:
    return "; ".join(f"{samples:,} samples went to {host}" for host, samples in moved.items())


def _stalled(run: RunView, event: protocol.Step) -> Faults:
    """What a fault since the last new step cost: the time to the next one, less the usual.

    One row has it, so that the sum is right; those of others in that time name this row. What was known once the run
    was resumed is a part of it.
    """
    last = furthest(run)
    if last is None or event.step <= last.step:
        return run.faults
    run = replace(run, faults=_ended(run.faults, event.time, lambda fault: fault.word == STARTED_OVER))
    hit = [fault for fault in run.faults if fault.time >= last.time]
    told = next((fault for fault in hit if fault.stall_s is not None and fault.word in _UNTIL_RESUMED), None)
    cost = _cost(run, last, event) if hit else None
    if told is None and cost is None:
        return run.faults
    told = told or next((fault for fault in hit if fault.word != SLOW), hit[0])
    told = replace(told, stall_s=max(told.stall_s or 0.0, cost or 0.0))
    others = {fault.number for fault in hit if fault.stall_s is None and fault.word != SLOW} - {told.number}
    rows = _with(run.faults, told)
    return tuple(replace(row, stall_with=told.number) if row.number in others else row for row in rows)


def _stalled_before(run: RunView, event: protocol.WorkerLost) -> float | None:
    """What it cost before it was known that a worker is lost: others may have ended the step that waited for it."""
    if event.silent_s is None:
        return None
    began = event.time - event.silent_s
    told = max((fault.time for fault in run.faults if fault.stall_s is not None), default=0.0)
    costs = [
        _cost(run, before, after)
        for before, after in itertools.pairwise(run.recent)
        if after.time > began and before.time > told
    ]
    return max((cost for cost in costs if cost is not None), default=None)


def _cost(run: RunView, before: protocol.Step, after: protocol.Step) -> float | None:
    """By how much the time between two steps exceeds the usual one; None: by too little to be a fault's doing."""
    usual = (_usual(run) or after.seconds) * max(1, after.step - before.step)
    gap = after.time - before.time
    return None if gap < _STALLED * usual else gap - usual


def _usual(run: RunView) -> float:
    """Seconds of a step in the middle of the recent ones: a long one among them does not count."""
    # Where time goes back, a clock was set back.
    pairs = [pair for pair in itertools.pairwise(run.recent) if pair[1].time > pair[0].time]
    gaps = [(after.time - before.time) / max(1, after.step - before.step) for before, after in pairs]
    return statistics.median(gaps) if gaps else run.interval or 0.0


def _rebalanced(run: RunView, event: protocol.Rebalanced) -> Faults:
    """Say of slow devices what became of their shares."""
    total = sum(share.samples for share in event.shares) or 1
    now = {share.worker: share.samples / total for share in event.shares}
    before = {worker.worker: worker.fraction for worker in run.workers}
    faults = run.faults
    for fault in faults:
        if fault.word == SLOW and fault.back is None and not fault.done:
            was, share = before.get(fault.worker), now.get(fault.worker, 0.0)
            if was is not None and round(was * 100) != round(share * 100):
                faults = _with(faults, replace(fault, done=f"share {wording.share(was)} → {wording.share(share)}"))
    return faults


def furthest(run: RunView) -> protocol.Step | None:
    """The last step that was new: those that are made again after the run went back are not."""
    return run.superseded or run.stood_after or (run.recent[-1] if run.recent else None)


def _resumed(run: RunView, event: protocol.RunResumed) -> Faults:
    """A run that goes on mends what was lost with its shards, its head or its coordinator.

    The first step beyond the furthest one tells for how long it stood still; until then it is the time up to here.
    """
    done, back = f"resumed on {event.host} after step {event.step:,}", _back(run, event)
    known, found = run.faults, []
    time = event.time if run.last_event is None else run.last_event
    if _is_taken_over(run, event):
        known = _taken_over(run, event, time)
    elif event.went_back and not event.lost and furthest(run) is not None:
        known = _started_over(run, event, time)
    if is_measured_anew(event):
        known = _ended(known, event.time, lambda fault: fault.word == SLOW, USUAL_NOW)
    for fault in known:
        if fault.back is None and fault.word in _UNTIL_RESUMED:
            stall = max(0.0, event.time - fault.time) if fault.stall_s is None else fault.stall_s
            found.append(replace(fault, done=_joined(fault.done, done), stall_s=stall, back=event.time))
        elif fault.back is None and fault.word == LOST and fault.host == event.lost:
            found.append(replace(fault, done=_joined(fault.done, back)))
        else:
            found.append(fault)
    return tuple(found)


def is_measured_anew(event: protocol.RunResumed) -> bool:
    """Whether the devices' speeds of then count as usual; else only a shard was restored, and all stays as it was."""
    return bool(event.went_back or event.checkpoint or event.cause)


def _started_over(run: RunView, event: protocol.RunResumed, time: float) -> Faults:
    """With a row for a run that starts over though nothing was lost, since the job asks for it.

    It ends with the first new step, which also tells what it cost.
    """
    row = _added(run.faults, time, run.step, event.host, STARTED_OVER, event.cause)
    return _with(row, replace(row[-1], done=one_line(_back(run, event), 160)))


def was_lost(run: RunView, event: protocol.RunResumed) -> bool:
    """Whether a run that goes on had lost something it can't do without; else it had ended, or went back by itself."""
    is_open = any(fault.back is None and fault.word in _UNTIL_RESUMED for fault in run.faults)
    return is_open or _is_taken_over(run, event)


def _taken_over(run: RunView, event: protocol.RunResumed, time: float) -> Faults:
    """With a row for the loss of a coordinator, from the last step that it has written; ``time``: of the last event."""
    written = [step for step in run.recent if step.time < event.time - _WRITTEN_AT_ONCE]
    late = run.recent[len(written) :]
    if not (written and late):
        return _added(run.faults, time, run.step, event.host, COORDINATOR, "its process ended")
    last = written[-1]
    rows = _added(run.faults, last.time, last.step, event.host, COORDINATOR, "its process ended")
    return _with(rows, replace(rows[-1], stall_s=_cost(run, last, late[0])))


def _is_taken_over(run: RunView, event: protocol.RunResumed) -> bool:
    """Whether a run goes on that lost its coordinator, which no event told: what writes it was lost as well."""
    is_told = any(fault.back is None and fault.word in _UNTIL_RESUMED for fault in run.faults)
    return bool(event.cause) and not (event.checkpoint or event.went_back or is_told)


def _back(run: RunView, event: protocol.RunResumed) -> str:
    last = furthest(run)
    again = max(0, (last.step if last is not None else run.step) - event.step)
    steps = "1 step" if again == 1 else f"{again:,} steps" if again else "no step"
    anew = "; the model is cut anew" if run.stages else ""
    return f"back to step {event.step:,}, {steps} made again{anew}"


def _open(faults: Faults, wanted: Callable[[Fault], bool]) -> Fault | None:
    return next((fault for fault in reversed(faults) if fault.back is None and wanted(fault)), None)


def _ended(faults: Faults, time: float, wanted: Callable[[Fault], bool], over: str = "") -> Faults:
    return tuple(
        replace(fault, back=time, over=over) if fault.back is None and wanted(fault) else fault for fault in faults
    )


def _with(faults: Faults, changed: Fault) -> Faults:
    return tuple(changed if fault.number == changed.number else fault for fault in faults)


def _joined(before: str, more: str) -> str:
    return more if not before or before == more else one_line(f"{before}; {more}", 160)
