"""A run's faults, as its events tell them: one row for what several events say. Pure.

A fault is what nobody asked for. A host that a user drained, and a run that was stopped, are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from hetero_tui.state import FAULTS, Fault, RunView
from hetero_tui.text import one_line
from remote_agent import protocol

LOST, LATE, SLOW, SHARD, HEAD = "lost", "late", "slow", "shard lost", "head lost"

DRAINED = "drained"
"""The cause of a worker's loss that a user asked for."""

_STALLED = 2.0
"""Times the usual time between two steps from which a fault between them has made the run stand still."""

_RETRY = re.compile(r" \(tried again in (\d+) s\)$")

Faults = tuple[Fault, ...]


def after(run: RunView, event: protocol.Event) -> Faults:
    """The faults once ``event`` is known; ``run`` is as it was before it."""
    faults = run.faults
    match event:
        case protocol.Step():
            return _stalled(run, event)
        case protocol.WorkerLost() if event.cause != DRAINED:
            return _lost(faults, event)
        case protocol.WorkerLost():
            return faults
        case protocol.WorkerJoined():
            return _ended(faults, event.time, lambda fault: fault.worker == event.worker and fault.word != SLOW)
        case protocol.SliceReissued():
            return _reissued(faults, event)
        case protocol.WorkerSlow() if event.factor >= 1:
            return _ended(faults, event.time, lambda fault: fault.worker == event.worker and fault.word == SLOW)
        case protocol.WorkerSlow():
            known = _open(faults, lambda fault: fault.worker == event.worker and fault.word == SLOW)
            what = f"slowed to ×{event.factor:.2f}"
            if known is not None:
                return _with(faults, replace(known, what=what))
            return _added(faults, event.time, event.step, event.host, SLOW, what, worker=event.worker)
        case protocol.Rebalanced():
            return _rebalanced(run, event)
        case protocol.ServerLost():
            return _added(faults, event.time, event.step, event.host, SHARD, event.cause)
        case protocol.HeadLost():
            return _added(faults, event.time, event.step, event.host, HEAD, event.cause)
        case protocol.RunResumed():
            return _resumed(faults, event)
        case _:
            return faults


def retry_seconds(cause: str) -> float | None:
    """Seconds until a lost worker is started again, as the coordinator says it at the end of the cause."""
    found = _RETRY.search(cause)
    return float(found[1]) if found else None


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
        what=one_line(_RETRY.sub("", what), 160),
        retry_s=retry_s,
    )
    return (*faults[-(FAULTS - 1) :], fault)


def _lost(faults: Faults, event: protocol.WorkerLost) -> Faults:
    retry_s = retry_seconds(event.cause)
    known = _open(faults, lambda fault: fault.worker == event.worker and fault.word == LOST)
    if known is None:
        return _added(
            faults, event.time, event.step, event.host, LOST, event.cause, worker=event.worker, retry_s=retry_s
        )
    waited = None if retry_s is None else event.time - known.time + retry_s
    return _with(faults, replace(known, tries=known.tries + 1, retry_s=waited))


def _reissued(faults: Faults, event: protocol.SliceReissued) -> Faults:
    host, to = event.worker.partition("/")[0], event.to.partition("/")[0]
    done = f"{event.samples:,} samples went to {to}"
    known = _open(faults, lambda fault: fault.worker == event.worker and fault.word in (LOST, LATE))
    if known is None:
        late = _added(faults, event.time, event.step, host, LATE, "its slice was late", worker=event.worker)
        known, faults = late[-1], late
    stall = known.stall_s
    if event.stall_s is not None:
        stall = (stall or 0.0) + event.stall_s
    back = event.time if known.word == LATE else None
    return _with(faults, replace(known, done=_joined(known.done, done), stall_s=stall, back=back))


def _stalled(run: RunView, event: protocol.Step) -> Faults:
    """What the newest fault since the last step cost, by the gap between the steps, where no event has said it."""
    faults = run.faults
    if not faults or not run.recent or faults[-1].time < run.recent[-1].time:
        return faults
    usual = (run.step_seconds or 0.0) * max(1, event.step - run.recent[-1].step)
    gap = event.time - run.recent[-1].time
    is_told = any(fault.stall_s is not None for fault in faults if fault.time >= run.recent[-1].time)
    if is_told or gap < _STALLED * usual:
        return faults
    return _with(faults, replace(faults[-1], stall_s=gap - usual))


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
                faults = _with(faults, replace(fault, done=f"share {was:.0%} → {share:.0%}"))
    return faults


def _resumed(faults: Faults, event: protocol.RunResumed) -> Faults:
    """A run that goes on mends what was lost with its shards or its head; what it stood still for is known then."""
    done = f"resumed on {event.host} after step {event.step:,}"
    return tuple(
        replace(fault, done=_joined(fault.done, done), stall_s=max(0.0, event.time - fault.time), back=event.time)
        if fault.back is None and fault.word in (SHARD, HEAD)
        else fault
        for fault in faults
    )


def _open(faults: Faults, wanted: Callable[[Fault], bool]) -> Fault | None:
    return next((fault for fault in reversed(faults) if fault.back is None and wanted(fault)), None)


def _ended(faults: Faults, time: float, wanted: Callable[[Fault], bool]) -> Faults:
    return tuple(replace(fault, back=time) if fault.back is None and wanted(fault) else fault for fault in faults)


def _with(faults: Faults, changed: Fault) -> Faults:
    return tuple(changed if fault.number == changed.number else fault for fault in faults)


def _joined(before: str, more: str) -> str:
    return more if not before or before == more else one_line(f"{before}; {more}", 160)
