"""Lets the workers evaluate the validation data between two steps; the coordinator's part.

The batches are given out in pieces, large ones first and by the devices' speed, so that all workers finish at about the
same time. A worker that dies, falls silent or hangs meanwhile gets no more, and another one repeats its pieces; the
strategy later detects the failure by itself.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from remote_agent.strategies import spec_of
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery.liveness import answer_of
from remote_agent.training.coordinator.session import Session
from remote_agent.training.deadlines import EXCHANGE_S, LOOK_S, PING_S, given_up_after
from remote_agent.training.shared import rpc
from remote_agent.training.shared.figures import Figures, whole
from remote_agent.training.shared.messages import EvaluationTask, Failed
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.user_code import sending

AHEAD = 2
"""Number of pieces that a worker has at a time: the current one, and the next."""

WATCHED_S = 1.0
"""Seconds without an answer after which the workers are pinged."""


class NoWorkerLeft(Exception):
    """No worker could evaluate all batches: all were lost meanwhile, or what failed at one of them."""

    def __init__(self, cause: str = "every worker was lost meanwhile") -> None:
        super().__init__(cause)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of an evaluation: the metrics over all samples, and its seconds."""

    metrics: dict[str, float | None]
    samples: int
    seconds: float


@dataclass(eq=False)
class _Piece:
    """Batches that were given to a worker."""

    member: WorkerHandle
    numbers: tuple[int, ...]
    answer: Ref[Any]
    expected_s: float
    given: float


class Evaluator:
    """Evaluates the weights of a session's workers, while none of them has other work.

    Args:
        session: the run's, whose validation data is sent to its workers.

    Raises:
        JobError: the data can't be sent.
    """

    def __init__(self, session: Session) -> None:
        assert session.validation is not None, "there is something to evaluate on"
        self._validation = session.validation
        with sending.packing("the validation data"):
            self._data: Ref[Any] = rpc.put(session.validation.data)

    def evaluate(
        self, session: Session, numbers: Collection[int] | None = None, *, checked: bool = False
    ) -> Evaluation:
        """Evaluate the weights after the last step.

        Args:
            numbers: numbers of the batches; default: all.
            checked: refuse metrics that keep what they saw; it takes more than twice as long.

        Raises:
            JobError: the job's metrics, model or data raised.
            NoWorkerLeft: no worker is left.
        """
        began = time.monotonic()
        batches = self._validation.batches
        wanted = sorted(numbers) if numbers is not None else list(range(len(batches)))
        if spec_of(session.config.strategy).split:
            done = _together(
                session,
                self._task([(number, batches[number]) for number in wanted], checked=checked),
                wanted,
            )
        else:
            done = _Work(session, self._task(checked=checked), batches, wanted).done()
        samples = sum(len(batches[number]) for number in wanted)
        figures = whole(done[number] for number in wanted)
        return Evaluation(metrics=figures, samples=samples, seconds=time.monotonic() - began)

    def _task(self, batches: Sequence[tuple[int, Any]] = (), *, checked: bool) -> EvaluationTask:
        return EvaluationTask(data=(self._data,), batches=batches, checked=checked)


def _together(session: Session, task: EvaluationTask, wanted: Collection[int]) -> dict[int, Figures]:
    """The metrics of each batch of a pipeline, whose workers evaluate all batches together.

    Raises:
        NoWorkerLeft: one was lost, or failed.
        JobError: the job's metrics, model or data raised.
    """
    figures: dict[int, Figures] = {}
    calls = [(member, member.actor.call("evaluate", task)) for member in session.members]
    with Heartbeat() as heartbeat:
        heartbeat.watch([member.actor for member in session.members])
        for member, call in calls:
            try:
                answer: dict[int, Figures] | Failed = answer_of(member, call, heartbeat, EXCHANGE_S)
            except rpc.NoAnswer as error:
                raise NoWorkerLeft(f"{member.host}: {rpc.describe(error)}") from error
            if isinstance(answer, Failed):
                raise answer.error(member.host)
            figures |= {number: found for number, found in answer.items() if found}
    if not figures.keys() >= set(wanted):
        raise NoWorkerLeft("a worker was lost meanwhile")
    return figures


@dataclass(eq=False)
class _Work:
    """A running evaluation."""

    session: Session
    task: EvaluationTask
    batches: tuple[Any, ...]
    waiting: list[int]
    pieces: list[_Piece] = field(default_factory=list)
    lost: set[WorkerHandle] = field(default_factory=set)
    figures: dict[int, Figures] = field(default_factory=dict)
    failed: str = ""

    def done(self) -> dict[int, Figures]:
        """The metrics of each batch, once all are there."""
        with ExitStack() as stack:
            heartbeat: Heartbeat | None = None
            heard = time.monotonic()
            while self.waiting or self.pieces:
                self._hand_out()
                position = rpc.first_ready([piece.answer for piece in self.pieces], LOOK_S)
                if position is not None:
                    heard = time.monotonic()
                    self._take(self.pieces.pop(position))
                elif heartbeat is not None:
                    self._look(heartbeat)
                elif time.monotonic() - heard > WATCHED_S:
                    heartbeat = stack.enter_context(Heartbeat())
                    heartbeat.watch([member.actor for member in self.session.members])
        return self.figures

    # --- Handing out -------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Give pieces to the worker that would finish them first, while it has room for one."""
        living = [member for member in self.session.members if member not in self.lost]
        if not living:
            raise NoWorkerLeft(self.failed) if self.failed else NoWorkerLeft
        speeds = {member: member.track.current.speed for member in living}
        total = sum(speeds.values())
        while self.waiting:
            size = len(self.batches[self.waiting[0]])
            busy = {member: self._busy_s(member) + size / speeds[member] for member in living}
            member = min(living, key=lambda each: busy[each])
            if sum(piece.member is member for piece in self.pieces) >= AHEAD:
                return
            # Half of its part of what is left: the rest follows what turns out.
            count = max(1, int(len(self.waiting) * speeds[member] / total / 2))
            numbers, self.waiting = tuple(self.waiting[:count]), self.waiting[count:]
            self._give(member, numbers)

    def _busy_s(self, member: WorkerHandle) -> float:
        now = time.monotonic()
        own = [piece for piece in self.pieces if piece.member is member]
        return max(0.0, sum(piece.expected_s for piece in own) - (now - own[0].given if own else 0.0))

    def _give(self, member: WorkerHandle, numbers: tuple[int, ...]) -> None:
        task = dataclasses.replace(self.task, batches=[(number, self.batches[number]) for number in numbers])
        expected_s = sum(len(self.batches[number]) for number in numbers) / member.track.current.speed
        answer = member.actor.call("evaluate", task)
        self.pieces.append(_Piece(member, numbers, answer, expected_s, time.monotonic()))

    # --- Taking in ---------------------------------------------------------------------------------------------------

    def _take(self, piece: _Piece) -> None:
        try:
            answer: dict[int, Figures] | Failed = rpc.get(piece.answer, PING_S)
        except rpc.NoAnswer as error:
            if isinstance(error, rpc.CallFailed):  # it lives: the others may fail at the same
                self.failed = f"{piece.member.host}: {rpc.describe(error)}"
            self._again(piece)
            self._lose(piece.member)
            return
        if isinstance(answer, Failed):
            raise answer.error(piece.member.host)
        self.figures |= answer
        for other in self.pieces:
            if other.member is piece.member:
                other.given = time.monotonic()  # it is begun now

    def _look(self, heartbeat: Heartbeat) -> None:
        """Give no more pieces to workers that do not answer, or take much too long."""
        for member in {piece.member for piece in self.pieces}:
            beat = heartbeat.of(member.actor)
            own = next(piece for piece in self.pieces if piece.member is member)
            patience = given_up_after(self.session.config.slice_deadline_s, own.expected_s)
            if beat.ended or beat.is_silent or time.monotonic() - own.given > patience:
                self._lose(member)

    def _lose(self, member: WorkerHandle) -> None:
        self.lost.add(member)
        for piece in [piece for piece in self.pieces if piece.member is member]:
            self.pieces.remove(piece)
            self._again(piece)

    def _again(self, piece: _Piece) -> None:
        self.waiting = sorted({*self.waiting, *piece.numbers})
