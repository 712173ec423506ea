"""Copies of the shards' state in the coordinator's memory, so that a run goes on when shards are lost.

What a shard holds is the weights and what the optimizer remembers. The weights every worker has too, and keeps those of
the copied step in its own memory (``Worker.keep``). What the optimizer remembers is copied: every so many steps each
shard puts it aside, between two steps; then training goes on, while the parts come here in the background. A copy is
valid once all parts of that step are here; until then the one before is kept. So all parts are always of one step.

Where no worker waits for a whole step (``ssp``, ``async``) no worker has the weights of one, and the shards put theirs
aside with the rest. Between two steps nothing is under way there but where all workers come together, which such a run
does for a copy as for a checkpoint; what that takes counts as time that training waits.

The coordinator holds them since its host is the only one whose loss ends the run's process anyway (the run then goes on
from a checkpoint): no set of other hosts that are lost at once takes the copies along.

How often is decided in :mod:`copy_interval`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remote_agent.strategies import spec_of
from remote_agent.training.checkpoint import optimizer_state
from remote_agent.training.checkpoint.optimizer_state import Snapshot, TrainingState
from remote_agent.training.coordinator import snapshots
from remote_agent.training.coordinator.recovery.copy_interval import CopyInterval
from remote_agent.training.coordinator.session import Session, StepReport
from remote_agent.training.deadlines import PING_S
from remote_agent.training.shared import rpc
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.shared.slices import SliceSpan


def about(session: Session, step_s: float, host: str) -> tuple[str, ...]:
    """For the plan: how often copies are made, and what the loss of a shard would cost; ``step_s`` is predicted."""
    if not is_restorable(session):
        return ()  # every worker holds everything
    steps = CopyInterval(bursts=_is_stale(session), step_s=step_s).steps
    text = (
        f"the shards' state is copied to {host} every {steps} steps, less often where that takes too much of the link;"
        f" a lost shard costs its new start there and {steps * step_s:.1f} s of steps that are made again"
    )
    return (text,)


def is_restorable(session: Session) -> bool:
    """Whether the run can go on when a shard is lost."""
    return session.stream is not None


def _is_stale(session: Session) -> bool:
    return not spec_of(session.config.strategy).waits


@dataclass(frozen=True, kw_only=True)
class Copy:
    """What the run can go back to.

    Attributes:
        step: the last step that is in it.
        position: of the order: where the step after it begins.
        state: what the optimizer on the shards remembers, by parameter.
        holders: keys of the actors that have kept the weights; a worker that is started again has not.
        weights: these, float32 of shape ``(layout.numel,)``, where it is the shards that keep them; None: the workers.
    """

    step: int
    position: int
    state: TrainingState
    holders: frozenset[str]
    weights: NDArray[np.float32] | None = None


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """A copy that has come, and how long it was on its way, in seconds."""

    copy: Copy
    sending_s: float


class Copies:
    """The newest whole copy of a run, and the one on its way; a context manager.

    Args:
        session: the run's, before its first step.

    Attributes:
        newest: the newest whole copy; that of the run's beginning is there from the start, if its state is known.
    """

    def __init__(self, session: Session) -> None:
        self._active = is_restorable(session)
        self._stale = _is_stale(session)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self._coming: Future[_Sent] | None = None
        self._unseen: list[SliceSpan] = []
        self._coming_slices: list[SliceSpan] = []
        self._interval = CopyInterval(bursts=self._stale)
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
        """A step was made: copy it if it is due, and say when the next one is.

        Samples are reported as counted to their source once no copy goes back before them.

        Args:
            session: the run's.
            report: of the step.
            position: of the order, after the step.
            snapshot: of the state after the step, if it was taken already, for a checkpoint.

        Raises:
            One of Ray's errors: a shard is gone.
        """
        if not self._active:
            session.source.counted(report.slices)
            return
        self._unseen.extend(report.slices)
        barrier_s = self._interval.over(report.seconds) if self._stale else 0.0
        self._interval = self._interval.after_step(report.seconds)
        self._take_over(session)
        if not session.goes_on(report.step, position):
            return  # there is nothing to go on with
        if self._stale:
            snapshot = None  # the weights are not in it
        if self._coming is None and (snapshot is not None or report.step == session.keeping.copy_due):
            self._begin(session, report.step, position, snapshot, barrier_s)
        if self._coming is None and (session.keeping.copy_due or 0) <= report.step:
            soonest = session.soonest(report.step)
            due = self.newest.step + self._interval.steps if self.newest is not None else soonest
            session.keeping.copy_due = max(soonest, due)

    def forget(self) -> None:
        """The run goes back to the newest copy: what came after it did not happen."""
        if self._coming is not None:
            self._coming.cancel()
            self._coming = None
        self._unseen, self._coming_slices = [], []

    def _begin(self, session: Session, step: int, position: int, snapshot: Snapshot | None, barrier_s: float) -> None:
        """Have the shards put their state aside, and the workers their weights; fetch it in the background."""
        began = time.monotonic()
        keeping = _keep(session, step, self.newest.step if self.newest is not None else step)
        taken = snapshot if snapshot is not None else snapshots.of_shards(session, weights=self._stale)
        if snapshot is None:
            self._interval = self._interval.after_copy(barrier_s + time.monotonic() - began)
        self._coming_slices, self._unseen = self._unseen, []
        self._coming = self._pool.submit(_fetch, step, position, taken, keeping)

    def _take_over(self, session: Session) -> None:
        """The copy on its way replaces the one before once it is whole; one that was lost on its way is forgotten."""
        if self._coming is None or not self._coming.done():
            return
        coming, self._coming = self._coming, None
        if isinstance(coming.exception(), (*rpc.Lost, rpc.CallFailed, rpc.Timeout)):
            self._unseen = self._coming_slices + self._unseen
            return
        sent = coming.result()
        self.newest, self._interval = sent.copy, dataclasses.replace(self._interval, sending_s=sent.sending_s)
        session.source.counted(self._coming_slices)
        self._coming_slices = []


def _fetch(step: int, position: int, snapshot: Snapshot, keeping: Sequence[tuple[str, Ref[bool]]]) -> _Sent:
    began = time.monotonic()
    state, weights = optimizer_state.without_weights(snapshot())
    kept = weights.numpy() if weights is not None else None
    copy = Copy(step=step, position=position, state=state, holders=_kept(keeping), weights=kept)
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
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
            continue  # the strategy finds out what it is; others have the weights too
    return frozenset(names)
