"""A clock and threads that are simulated: code that waits takes no time, and one seed gives the same run each time.

The engine's modules ask ``time`` and ``threading`` for the time and for locks. In a simulation these names are objects
of this module (:func:`installed`): a thread is a real one, but only one runs at any moment, and it hands over to the
next where it waits. Who comes next is drawn from the seed; the time is that of the next event. So the code that is
tested is the product's, line by line, without a change to it. The idea is that of FoundationDB's simulation and of
MadSim.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

BEGIN_S = 1000.0
"""The clock's first time: not 0, which some code takes for "never"."""


class Killed(BaseException):
    """The process of this thread was ended."""


class Stuck(AssertionError):
    """All threads wait, and nothing will ever happen."""


@dataclass(eq=False)
class Owner:
    """Whose threads these are: a process. ``frozen``: it was stopped, and runs on later."""

    name: str
    frozen: bool = False
    dead: bool = False
    held: list[Task] = field(default_factory=list)


@dataclass(eq=False)
class Task:
    """A thread."""

    name: str
    owner: Owner | None
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    token: int = 0
    waiting: bool = False
    timed_out: bool = False
    ended: bool = False
    joining: list[tuple[Task, int]] = field(default_factory=list)


class Kernel:
    """Time, threads and events of one simulation.

    Args:
        seed: decides all that is left open.

    Attributes:
        now: seconds.
        random: draws.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = BEGIN_S
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._ready: list[Task] = []
        self._main = Task("main", None)
        self.current = self._main
        self._stopping: BaseException | None = None
        self._closing = self._is_told = False
        self._tasks: list[Task] = []

    # --- Events ------------------------------------------------------------------------------------------------------

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at that time."""
        heapq.heappush(self._events, (max(when, self.now), next(self._count), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self.at(self.now + seconds, action)

    # --- Threads -----------------------------------------------------------------------------------------------------

    def spawn(self, name: str, work: Callable[[], None], owner: Owner | None) -> Task:
        """A new thread, which begins when another one waits."""
        task = Task(name, owner, waiting=True)

        def run() -> None:
            task.turn.acquire()
            self.current = task
            try:
                self._check(task)
                work()
            except Killed:
                pass
            finally:
                task.ended = True
                for waiter, token in task.joining:
                    self.wake(waiter, token)
                following = self._main if self._closing else self._next()
                self.current = following
                following.turn.release()

        self._tasks = [each for each in self._tasks if not each.ended]
        self._tasks.append(task)
        threading.Thread(target=run, name=name, daemon=True).start()
        self.wake(task, task.token)
        return task

    def wait(self, deadline: float | None) -> bool:
        """The current thread waits until :meth:`wake`, or the deadline; whether it was woken.

        Raises:
            Killed: its process was ended meanwhile.
            Stuck: nothing will ever happen; in the main thread.
        """
        task = self.current
        self._check(task)
        if self._closing or self._is_told:
            return False  # what is left to do is to come to an end
        task.waiting, task.timed_out = True, False
        token = task.token
        if deadline is not None:
            self.at(deadline, lambda: self.wake(task, token, timed_out=True))
        following = self._next()
        if following is not task:
            self.current = following
            following.turn.release()
            task.turn.acquire()
            self.current = task
        if self._stopping is not None and task is self._main and not self._closing:
            self._is_told = True
            raise self._stopping
        self._check(task)
        return not task.timed_out

    def wake(self, task: Task, token: int, *, timed_out: bool = False) -> None:
        """Let a thread go on that waits since it had this ``token``."""
        if task.waiting and task.token == token:
            task.waiting, task.timed_out, task.token = False, timed_out, task.token + 1
            self._ready.append(task)

    def kill(self, owner: Owner) -> None:
        """End a process: each of its threads ends where it is."""
        owner.dead, owner.frozen = True, False
        self._ready += owner.held
        owner.held = []

    def thaw(self, owner: Owner) -> None:
        """A process that was stopped runs on."""
        owner.frozen = False
        self._ready += owner.held
        owner.held = []

    def _next(self) -> Task:
        while True:
            while not self._ready:
                if not self._events and self._stopping is None:
                    self._stopping = Stuck(f"at {self.now - BEGIN_S:.3f} s")
                if self._stopping is not None:
                    self._main.waiting = False
                    self._main.token += 1
                    return self._main
                self.now, _, action = heapq.heappop(self._events)
                action()
            task = self._ready.pop(self.random.randrange(len(self._ready)))
            if task.owner is not None and task.owner.frozen:
                task.owner.held.append(task)
                continue
            return task

    def stop(self, error: BaseException) -> None:
        """Raise ``error`` in the main thread."""
        self._stopping = self._stopping or error

    def close(self) -> None:
        """End all threads that are left."""
        self._closing = True
        for task in self._tasks:
            if not task.ended:
                task.turn.release()
                self._main.turn.acquire()

    def _check(self, task: Task) -> None:
        if self._closing and task is not self._main:
            raise Killed
        if task.owner is not None and task.owner.dead:
            raise Killed


# --- What modules see in the place of time and threading -------------------------------------------------------------


def installed(kernel: Kernel, modules: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Give all loaded modules whose names begin like these the simulated time and threads, until the block ends."""
    return _installed(kernel, tuple(modules))


@contextlib.contextmanager
def _installed(kernel: Kernel, prefixes: tuple[str, ...]) -> Iterator[None]:
    in_their_place = {time: _time_of(kernel), threading: _threading_of(kernel)}
    changed: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if name.startswith(prefixes):
            for attribute, real in (("time", time), ("threading", threading)):
                if getattr(module, attribute, None) is real:
                    changed.append((module, attribute, real))
                    setattr(module, attribute, in_their_place[real])
    try:
        yield
    finally:
        for module, attribute, real in changed:
            setattr(module, attribute, real)


def _time_of(kernel: Kernel) -> Any:
    def now() -> float:
        return kernel.now

    def sleep(seconds: float) -> None:
        kernel.wait(kernel.now + seconds)

    return types.SimpleNamespace(monotonic=now, time=now, perf_counter=now, sleep=sleep)


def _threading_of(kernel: Kernel) -> Any:
    def bound(kind: type) -> Callable[..., Any]:
        return lambda *given, **named: kind(kernel, *given, **named)

    return types.SimpleNamespace(
        Lock=bound(Lock), RLock=bound(Lock), Condition=bound(Condition), Event=bound(Event), Thread=bound(Thread)
    )


class Waiters:
    """Threads that wait for the same thing."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._waiting: list[tuple[Task, int]] = []

    def wait(self, deadline: float | None) -> bool:
        """Until :meth:`wake`, or the deadline; whether it was woken."""
        self.add(self._kernel.current)
        return self._kernel.wait(deadline)

    def add(self, task: Task) -> None:
        """Have a thread that is about to wait woken, too."""
        self._waiting.append((task, task.token))

    def wake(self) -> None:
        """Let all go on."""
        waiting, self._waiting = self._waiting, []
        for task, token in waiting:
            self._kernel.wake(task, token)


class Lock:
    """As ``threading.Lock``, and where the same thread may take it again, as ``RLock``."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._waiters = kernel, Waiters(kernel)
        self._holder: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._holder is not None and self._holder is not self._kernel.current:
            if self._holder.owner is not None and self._holder.owner.dead:
                break  # only what is dead can ask for it
            if not blocking:
                return False
            self._waiters.wait(None)
        self._holder = self._kernel.current
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._waiters.wake()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """As ``threading.Condition``."""

    def __init__(self, kernel: Kernel, lock: Lock | None = None) -> None:
        self._kernel, self._lock, self._waiters = kernel, lock or Lock(kernel), Waiters(kernel)

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        deadline = None if timeout is None else self._kernel.now + max(0.0, timeout)
        self._lock.release()
        try:
            return self._waiters.wait(deadline)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end = None if timeout is None else self._kernel.now + timeout
        while not predicate():
            left = None if end is None else end - self._kernel.now
            if left is not None and left <= 0:
                return predicate()
            self.wait(left)
        return True

    def notify_all(self) -> None:
        self._waiters.wake()

    def notify(self, n: int = 1) -> None:
        del n
        self._waiters.wake()  # who wakes in vain looks again


class Event:
    """As ``threading.Event``."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._waiters, self._is_set = kernel, Waiters(kernel), False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        end = None if timeout is None else self._kernel.now + max(0.0, timeout)
        while not self._is_set:
            if end is not None and self._kernel.now >= end:
                return False
            self._waiters.wait(end)
        return True


class Thread:
    """As ``threading.Thread``; it is of the process that starts it."""

    def __init__(
        self,
        kernel: Kernel,
        target: Callable[..., None],
        name: str = "",
        daemon: bool | None = None,
        args: tuple[Any, ...] = (),
    ) -> None:
        del daemon
        self._kernel, self._target, self.name, self._args = kernel, target, name, args
        self._task: Task | None = None

    def start(self) -> None:
        owner = self._kernel.current.owner
        self._task = self._kernel.spawn(self.name, lambda: self._target(*self._args), owner)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.ended

    def join(self, timeout: float | None = None) -> None:
        if self._task is None or self._task.ended:
            return
        me = self._kernel.current
        self._task.joining.append((me, me.token))
        self._kernel.wait(None if timeout is None else self._kernel.now + timeout)
