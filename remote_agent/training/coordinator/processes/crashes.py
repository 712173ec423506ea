"""Finds, beside the run, the user's call that killed workers or hangs, so that the run can end for it.

The slice of a dead worker is reissued at once, so a sample that kills its process would kill one worker after the
other. A page on the host has the worker's current call (``current_call``); it is read after the worker has ended. A
living worker reports a long call with its answers to pings. ``culprit`` decides when the evidence is enough: the run
then ends and names the sample, the function and the line, and keeps its last checkpoint.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Self

from remote_agent.current_call import LastCall, last_call_here
from remote_agent.protocol import Notice
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.plan.placement import Placement
from remote_agent.training.coordinator.processes.culprit import Crash, culprit, one_sample
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.deadlines import CLOSE_S, LAST_CALL_S, LOOK_S, PING_S, given_up_after
from remote_agent.training.errors import JobError, TrainingError
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import Busy, Pulse
from remote_agent.training.shared.rpc import Actor
from remote_agent.training.user_code.ownership import is_users_own
from remote_agent.training.user_code.user_errors import DEVICE_FAILURES, Frame, clean, lines_of

_IF_FULL = "if the host's memory was full, lower batch_size, or set max_batch for the host"


class Crashes:
    """The crashes of one run; a context manager, which ends the reading of pages.

    Attributes:
        workers: number of workers at the run's start.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal
        self.workers = 0
        self._lock = threading.Lock()
        self._known: list[Crash] = []
        self._held_up: set[tuple[Actor, object]] = set()
        self._reading: list[threading.Thread] = []
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._await(CLOSE_S)

    def died(self, seat: Placement, actor: Actor, cause: str) -> None:
        """Read on its host the last call of a worker whose process ended, without waiting."""

        def read() -> None:
            away = cause == rpc.HOST_AWAY
            words = last_call_here(actor.key)
            if words is None or (not words.how and not away):
                words = self._words_there(seat.spec.host, actor.key)  # which shows that the host lives
            if words is not None and words.place is not None and (words.how or not away):
                self._add(_crash(seat, words, cause))

        self._reading = [thread for thread in self._reading if thread.is_alive()]
        self._reading.append(threading.Thread(target=read, name="last words", daemon=True))
        self._reading[-1].start()

    def hung(self, seat: Placement, actor: Actor, busy: Busy | None) -> None:
        """Record that a worker hangs: it has been ``busy`` with one call for too long."""
        if busy is not None and (actor, busy.place) not in self._held_up:
            self._held_up.add((actor, busy.place))
            self._add(_hang(seat, busy))

    def look(self, members: Iterable[WorkerHandle], heartbeat: Heartbeat, deadline_s: float) -> None:
        """Check with the heartbeat whether a worker hangs, and whether the run has to end.

        Args:
            deadline_s: deadline of a slice, in addition to ten times the expected time of its samples.

        Raises:
            JobError: a call of the user's code has killed workers, or hung, too often.
        """
        for member in members:
            busy = heartbeat.of(member.actor).pulse.busy
            if busy is not None:
                expected = member.track.current.seconds(max(1, busy.place.samples))
                if busy.seconds > given_up_after(deadline_s, expected):
                    self.hung(member.seat, member.actor, busy)
        error = self._verdict()
        if error is not None:
            raise error

    def not_measured(self, seat: Placement, actor: Actor, pulse: Pulse | None) -> JobError | None:
        """The reason why a worker was not measured in time, if a call of the user's code does not return.

        Args:
            pulse: its last answer to a ping; None: there was none.
        """
        if pulse is not None:
            busy = pulse.busy
        else:
            words = self._last_call(seat.spec.host, actor.key)  # it may hold Python's own lock
            busy = Busy(place=words.place, seconds=words.seconds) if words is not None and words.place else None
        return _error([_hang(seat, busy)]) if busy is not None else None

    def explained(self, error: TrainingError) -> TrainingError:
        """``error``, or the user's call that caused it; waits up to a limit until that is known."""
        self._await(LAST_CALL_S)
        found = self._verdict()
        if found is not None:
            return found
        with self._lock:
            mine = [crash for crash in self._known if crash.host == error.host]
        if not mine:
            return error
        known = _error(mine[-1:])
        cause = f"{error.cause}; {known.cause}"
        return type(error)(cause, hint=known.hint, host=error.host, detail=known.detail)

    def _verdict(self) -> JobError | None:
        with self._lock:
            found = culprit(self._known, self.workers)
        return _error(found) if found else None

    def _add(self, crash: Crash) -> None:
        with self._lock:
            self._known.append(crash)
        if self._journal is not None:
            with contextlib.suppress(TrainingError):  # the next write raises it too
                self._journal.write(Notice, step=crash.place.step, host=crash.host, text=_error([crash]).cause)

    def _await(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for thread in self._reading:
            thread.join(max(0.0, end - time.monotonic()))

    def _last_call(self, host: str, key: str) -> LastCall | None:
        here = last_call_here(key)
        return here if here is not None else self._words_there(host, key)

    def _words_there(self, host: str, key: str) -> LastCall | None:
        try:
            node = placement.node_of(host, placement.living_nodes())
            answer = rpc.run(last_call_here, placement.task_options(node), key)
            end = time.monotonic() + LAST_CALL_S
            while not self._stop.is_set() and time.monotonic() < end:
                if rpc.first_ready([answer], LOOK_S) is not None:
                    return rpc.get(answer, PING_S)
                placement.node_of(host, placement.living_nodes())
        except (TrainingError, rpc.Unexpected):
            return None  # the host is gone, too: that was no fault of the job's
        return None


def _crash(seat: Placement, words: LastCall, cause: str) -> Crash:
    assert words.place is not None, "it was in the user's code"
    frames = [frame for call in words.calls if is_users_own((frame := Frame(*call)).file)]
    said = [clean(line) for line in words.output]
    how = words.how or cause
    function = _function(words.place.function, frames)
    return Crash(
        worker=seat.worker,
        host=seat.spec.host,
        place=words.place,
        how=f"{how} in {function}" if words.how else f"{how} while it was in {function}",
        certain=bool(words.how),
        detail="\n".join([*lines_of(frames), how, *said]),
    )


def of_coordinator(words: LastCall) -> JobError | None:
    """The error if the user's code ended the coordinator's process; None: it did not."""
    if words.place is None or not words.how:
        return None
    frames = [frame for call in words.calls if is_users_own((frame := Frame(*call)).file)]
    where = _function(words.place.function, frames)
    return JobError(
        f"{words.place.function} ended the coordinator's process ({words.how} in {where})",
        hint="a job's code must not end its process",
        detail="\n".join([*lines_of(frames), words.how]),
    )


def _hang(seat: Placement, busy: Busy) -> Crash:
    return Crash(
        worker=seat.worker,
        host=seat.spec.host,
        place=busy.place,
        how=f"no return for {busy.seconds:.0f} s from {_function(busy.place.function, busy.frames)}",
        certain=True,
        hung=True,
        detail="\n".join(lines_of(list(busy.frames))),
    )


def _function(function: str, frames: Sequence[Frame]) -> str:
    """The user's innermost function with its line, if known."""
    own = [frame for frame in frames if is_users_own(frame.file)]
    if not own:
        return function
    name = own[-1].words
    return f"{name or function}, {own[-1].place}"


def _error(crashes: Sequence[Crash]) -> JobError:
    """Make the error for crashes of one call."""
    last = crashes[-1]
    place = last.place
    sample = one_sample(crashes)
    what = f"sample {sample}" if sample is not None else place.function
    verb = "held its worker up" if last.hung else "crashed its worker"
    times = {1: "", 2: " twice"}.get(len(crashes), f" {len(crashes)} times")
    when = f" in step {place.step}" if place.step else " before the first step"
    at = f", with the {place.samples} samples from {place.sample} on" if place.samples > 1 else ""
    workers = ", ".join(dict.fromkeys(crash.worker for crash in crashes))
    cause = f"{what} {verb}{times}{when} ({last.how}{at}): {workers}"
    hint = _hint(last, sample)
    if len(crashes) == 1 and not last.certain:  # whatever ended it may have nothing to do with the call
        at = f", at sample {sample}" if sample is not None else at
        cause = f"{last.how}{when}{at}: {workers}"
        hint = f"see what ended it; {_IF_FULL}"
    return JobError(
        cause,
        hint=hint,
        host=last.host,
        detail=last.detail,
    )


def _hint(crash: Crash, sample: int | None) -> str:
    look = f"look at sample {sample}" if sample is not None else "look at the code that is named here"
    if crash.hung:
        return f"{look} and at what it waits for; if it is only slow, raise slice_deadline_s"
    if crash.how.startswith(DEVICE_FAILURES):
        return f"look at the host's GPU and the messages of its driver (dmesg); if several devices fail so, {look}"
    if not crash.certain:
        return f"{look}; {_IF_FULL}"
    if crash.how.startswith("os._exit"):
        return f"{look}: a job's code must not end its process; raise an exception that says what is wrong"
    return f"{look}: the code that it calls ends the process, and so it does in a process of its own"
