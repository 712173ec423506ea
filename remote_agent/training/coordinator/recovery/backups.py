"""Keeps copies of the shards' state in the coordinator's memory, so that a run survives the loss of shards.

A shard holds weights and the optimizer's state. Every worker has the weights too, and keeps those of the copied step in
its own memory (``Worker.keep``). The optimizer's state is copied: at intervals, each shard puts it aside between two
steps; then training continues while the parts come here in the background. A copy is valid once all parts of its step
are here; until then the previous copy is kept. So all parts of a copy are of one step.

The copies are on the coordinator's host, because only the loss of this host ends the run's process anyway (the run then
continues from a checkpoint). The loss of any other hosts at the same time does not lose the copies.

:mod:`copy_interval` decides the interval.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from remote_agent.strategies import spec_of
from remote_agent.training.checkpoint.optimizer_state import Snapshot, TrainingState
from remote_agent.training.checkpoint.saver import Saver
from remote_agent.training.coordinator.recovery import shard_snapshots
from remote_agent.training.coordinator.recovery.copy_interval import CopyInterval
from remote_agent.training.coordinator.session import Session, StepReport
from remote_agent.training.deadlines import PING_S
from remote_agent.training.shared import rpc
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.shared.slices import SliceSpan


def about(session: Session, step_s: float, host: str) -> tuple[str, ...]:
    """Explain, for the plan, how often copies are made, and what the loss of a shard costs; ``step_s`` is predicted."""
    if not is_restorable(session):
        return ()  # every worker has the whole state
    steps = CopyInterval(step_s=step_s).steps
    interval = "step" if steps == 1 else f"{steps} steps"
    text = (
        f"the shards' state is copied to {host} every {interval}, less often where that takes too much of the link;"
        f" a lost shard costs its new start there and {steps * step_s:.1f} s of steps that are made again"
    )
    return (text,)


def is_restorable(session: Session) -> bool:
    """Whether the run can continue after the loss of a shard."""
    return session.stream is not None


def is_sent_back(session: Session) -> bool:
    """Whether the run returns to a checkpoint when a worker is lost, since each worker has a part of the weights."""
    config = session.config
    return spec_of(config.strategy).split and bool(config.checkpoint_every or config.checkpoint_seconds)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A state to which the run can return.

    Attributes:
        position: the position in the order at which the next step begins.
        state: the state of the shards' optimizer, by parameter.
        holders: keys of the actors that keep the weights; a restarted worker does not.
    """

    step: int
    position: int
    state: TrainingState
    holders: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """A copy that has arrived, and the seconds of its transfer."""

    copy: Copy
    sending_s: float


class Copies:
    """Holds the newest complete copy of a run, and the one in transfer; a context manager.

    Args:
        session: the run's, before its first step.
        saver: writes the checkpoints, to which a pipeline returns, as it has no copies.

    Attributes:
        newest: the newest complete copy; at first the initial state, if it is known.
    """

    def __init__(self, session: Session, saver: Saver) -> None:
        self._active = is_restorable(session)
        self._saver = saver if is_sent_back(session) else None
        self._made: list[StepReport] = []  # their samples are not reported to the source yet
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self._coming: Future[_Sent] | None = None
        self._unseen: list[SliceSpan] = []
        self._coming_slices: list[SliceSpan] = []
        self._interval = CopyInterval()
        order = session.order
        self.newest: Copy | None = None
        if session.first_state is not None:
            keeping = _keep(session, order.done, order.done) if self._active else []
            self.newest = Copy(step=order.done, position=order.start, state=session.first_state, holders=_kept(keeping))
        elif self._active:
            session.keeping.copy_due = order.done + 1

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def after(self, session: Session, report: StepReport, position: int, snapshot: Snapshot | None) -> None:
        """After a step, copy the state if a copy is due, and set the step of the next copy.

        Samples are reported to their source as counted once no copy can return to a position before them.

        Args:
            position: of the order, after the step.
            snapshot: of the state after the step, if it was taken already, for a checkpoint.

        Raises:
            ServerGone, or one of Ray's errors: a shard is gone.
        """
        if not self._active:
            self._count(session, report)
            return
        self._unseen.extend(report.slices)
        self._interval = self._interval.after_step(report.seconds)
        self._take_over(session)
        if not session.goes_on(report.step, position):
            return  # there is no copy to return to
        if self._coming is None and (snapshot is not None or report.step == session.keeping.copy_due):
            self._begin(session, report, position, snapshot)
        if self._coming is None and (session.keeping.copy_due or 0) <= report.step:
            soonest = session.soonest(report.step)
            due = self.newest.step + self._interval.steps if self.newest is not None else soonest
            session.keeping.copy_due = max(soonest, due)

    def _count(self, session: Session, report: StepReport) -> None:
        """Report samples to the source once they are in a checkpoint; at once if the run does not return to one."""
        newest = self._saver.newest if self._saver is not None else None
        step = report.step if self._saver is None else newest.step if newest is not None else 0
        self._made.append(report)
        for made in [made for made in self._made if made.step <= step]:
            session.source.counted(made.slices)
            self._made.remove(made)

    def forget(self, step: int) -> None:
        """Forget everything after ``step``, since the run returns to it."""
        self._made = [made for made in self._made if made.step <= step]
        if self._coming is not None:
            self._coming.cancel()
            self._coming = None
        self._unseen, self._coming_slices = [], []

    def _begin(self, session: Session, report: StepReport, position: int, snapshot: Snapshot | None) -> None:
        """Let shards put their state aside and workers keep their weights; fetch the state in the background."""
        began, step = time.monotonic(), report.step
        assert report.heartbeat is not None, "there are shards"
        keeping = _keep(session, step, self.newest.step if self.newest is not None else step)
        taken = snapshot if snapshot is not None else shard_snapshots.of_shards(session, report.heartbeat)
        if snapshot is None:
            self._interval = self._interval.after_copy(time.monotonic() - began)
        self._coming_slices, self._unseen = self._unseen, []
        self._coming = self._pool.submit(_fetch, step, position, taken, keeping)

    def _take_over(self, session: Session) -> None:
        """Replace the newest copy with the one in transfer once that is complete; forget one that was lost."""
        if self._coming is None or not self._coming.done():
            return
        coming, self._coming = self._coming, None
        if isinstance(coming.exception(), rpc.NoAnswer):
            self._unseen = self._coming_slices + self._unseen
            return
        sent = coming.result()
        self.newest, self._interval = sent.copy, dataclasses.replace(self._interval, sending_s=sent.sending_s)
        session.source.counted(self._coming_slices)
        self._coming_slices = []


def _fetch(step: int, position: int, snapshot: Snapshot, keeping: Sequence[tuple[str, Ref[bool]]]) -> _Sent:
    began = time.monotonic()
    copy = Copy(step=step, position=position, state=snapshot(), holders=_kept(keeping))
    return _Sent(copy=copy, sending_s=time.monotonic() - began)


def _keep(session: Session, step: int, still: int) -> list[tuple[str, Ref[bool]]]:
    """Tell the workers to keep their weights before their next step; the answers are not waited for."""
    return [(member.actor.key, member.call("keep", step, still)) for member in session.members]


def _kept(keeping: Sequence[tuple[str, Ref[bool]]]) -> frozenset[str]:
    names = []
    deadline = time.monotonic() + PING_S
    for name, call in keeping:
        try:
            if rpc.get(call, max(0.0, deadline - time.monotonic())):
                names.append(name)
        except rpc.NoAnswer:
            continue  # the strategy will detect the failure; others have the weights too
    return frozenset(names)
