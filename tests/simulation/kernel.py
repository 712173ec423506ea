"""A clock and threads that are simulated: code that waits takes no time, and one seed gives the same run each time.

The engine's modules ask ``time`` and ``threading`` for the time and for locks. In a simulation these names are objects
of this module (:func:`installed`): a thread is a greenlet, a stack of its own in the one real thread, and hands over to
the next where it waits. Which comes next is drawn from the seed; the time is that of the next event. So the code that
is tested is the product's, line by line, without a change to it. The idea is that of FoundationDB's simulation and of
MadSim.

A schedule has some 800 waits. A greenlet hands over in 0.2 us; a real thread took 5 us and moved between cores: a third
of all processor time. A thread that waits for a condition is only woken once that is true: whoever notifies looks.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import heapq
import random
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from greenlet import getcurrent, greenlet

BEGIN_S = 1000.0
"""The clock's first time: not 0, which some code takes for "never"."""


class Killed(BaseException):
    """The simulation is over: what is left of this thread ends."""


class Stuck(AssertionError):
    """All threads wait, and nothing will ever happen."""


@dataclass(eq=False)
class Owner:
    """Whose threads these are: a process. ``frozen``: it was stopped, and runs on later."""

    name: str
    frozen: bool = False
    dead: bool = False
    held: list[Task] = field(default_factory=list)
    process: Any = None


class Task:
    """A thread."""

    __slots__ = ("ended", "joining", "name", "owner", "stack", "thread", "timed_out", "token", "waiting")

    def __init__(self, name: str, owner: Owner | None, stack: greenlet) -> None:
        self.name, self.owner, self.stack = name, owner, stack
        self.token = 0
        self.waiting = True
        self.timed_out = self.ended = False
        self.joining: list[tuple[Task, int]] = []
        self.thread: Thread | None = None


class Kernel:
    """Time, threads and events of one simulation.

    Args:
        seed: decides all that is left open.

    Attributes:
        now: seconds.
        random: draws.
        current: the thread that runs.
        errors: of threads that ended with one.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.errors: list[str] = []
        self.now = BEGIN_S
        self._events: list[tuple[float, int, Callable[[], None] | None, Task | None, int]] = []
        self._count = 0
        self._ready: list[Task] = []
        self._main = Task("main", None, getcurrent())
        self._main.waiting = False
        self.current = self._main
        self._stopping: BaseException | None = None
        self._closing = False
        self._tasks: list[Task] = []

    # --- Events ------------------------------------------------------------------------------------------------------

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at that time."""
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, action, None, 0))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later; ``seconds`` is not negative."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, action, None, 0))

    # --- Threads -----------------------------------------------------------------------------------------------------

    def spawn(self, name: str, work: Callable[[], None], owner: Owner | None) -> Task:
        """A new thread, which begins when another one waits."""

        def run() -> Task | None:
            torch.set_grad_enabled(True)  # torch knows it for each real thread, and here they share one
            try:
                if not self._closing:
                    work()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 - a thread that ends with an error tells nobody of it
                if not self._closing:
                    self.errors.append(f"the thread {name!r} ended with {error!r}")
            task.ended = True
            for waiter, token in task.joining:
                self.wake(waiter, token)
            if self._closing:
                return None
            self.current = following = self._next()
            return None if following is self._main else following  # the main thread hands over to it, see wait

        task = Task(name, owner, greenlet(run, self._main.stack))
        self._tasks.append(task)
        self.wake(task, 0)
        return task

    def wait(self, deadline: float | None) -> bool:
        """The current thread waits until :meth:`wake`, or the deadline; whether it was woken.

        A thread whose process is killed waits for good.

        Raises:
            Killed: the simulation is over.
            Stuck: nothing will ever happen; in the main thread.
        """
        task = self.current
        if getcurrent() is not task.stack:  # it would be this one's wait that ends
            raise RuntimeError("a real thread, which something else has left behind, waits in a simulation")
        if self._closing:
            raise Killed
        task.waiting, task.timed_out = True, False
        if deadline is not None:
            self._count += 1
            heapq.heappush(self._events, (max(deadline, self.now), self._count, None, task, task.token))
        following = self._next()
        if following is not task:
            self.current, computes_gradients = following, torch.is_grad_enabled()
            next_one: Task | None = following
            while next_one:  # a thread that has ended says which one is next
                next_one = next_one.stack.switch()
            if torch.is_grad_enabled() is not computes_gradients:
                torch.set_grad_enabled(computes_gradients)
        if task is self._main:
            if self._stopping is not None:
                raise self._stopping
        elif self._closing:
            raise Killed
        return not task.timed_out

    def wake(self, task: Task, token: int, *, timed_out: bool = False) -> None:
        """Let a thread go on that waits since it had this ``token``."""
        if task.waiting and task.token == token:
            task.waiting, task.timed_out, task.token = False, timed_out, token + 1
            self._ready.append(task)

    def kill(self, owner: Owner) -> None:
        """End a process: its threads do nothing any more. What they would do on their way out is not done either."""
        owner.dead, owner.frozen = True, False
        owner.held = []

    def thaw(self, owner: Owner) -> None:
        """A process that was stopped runs on."""
        owner.frozen = False
        self._ready += owner.held
        owner.held = []

    def alive(self, owner: Owner) -> list[str]:
        """The names of the process's threads that have not ended."""
        return [task.name for task in self._tasks if task.owner is owner and not task.ended]

    def _next(self) -> Task:
        ready, events = self._ready, self._events
        while True:
            while not ready:
                if not events and self._stopping is None:
                    self._stopping = Stuck(f"at {self.now - BEGIN_S:.3f} s")
                if self._stopping is not None:
                    self._main.waiting = False
                    self._main.token += 1
                    return self._main
                self.now, _, action, task, token = heapq.heappop(events)
                if action is not None:
                    action()
                elif task is not None and task.token == token:
                    self.wake(task, token, timed_out=True)
            count = len(ready)
            following = ready.pop(int(self.random.random() * count)) if count > 1 else ready.pop()
            owner = following.owner
            if owner is not None:
                if owner.dead:
                    continue
                if owner.frozen:
                    owner.held.append(following)
                    continue
            return following

    def stop(self, error: BaseException) -> None:
        """Raise ``error`` in the main thread."""
        self._stopping = self._stopping or error

    def close(self) -> None:
        """End all threads that are left."""
        self._closing = True
        for task in self._tasks:
            if not task.ended:
                self.current = task
                task.stack.switch()
        self.current = self._main


# --- What modules see in the place of time and threading -------------------------------------------------------------


_PLACES: dict[tuple[str, ...], list[tuple[Any, str, Any]]] = {}
"""For each tuple of prefixes: module, attribute, and what it really is."""


@contextlib.contextmanager
def installed(kernel: Kernel, prefixes: tuple[str, ...]) -> Iterator[None]:
    """Give all loaded modules whose names begin like these the simulated time and threads, until the block ends."""
    simulated: dict[Any, Any] = {
        time: _time_of(kernel),
        threading: _threading_of(kernel),
        concurrent.futures.Future: lambda: Future(kernel),
        concurrent.futures.ThreadPoolExecutor: lambda *_, **__: Pool(kernel),
    }
    if prefixes not in _PLACES:
        names = {"time": time, "threading": threading, "Future": concurrent.futures.Future}
        names["ThreadPoolExecutor"] = concurrent.futures.ThreadPoolExecutor
        _PLACES[prefixes] = [
            (module, attribute, real)
            for name, module in list(sys.modules.items())
            if name.startswith(prefixes)
            for attribute, real in names.items()
            if getattr(module, attribute, None) is real
        ]
    for module, attribute, real in _PLACES[prefixes]:
        setattr(module, attribute, simulated[real])
    try:
        yield
    finally:
        for module, attribute, real in _PLACES[prefixes]:
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
        Lock=bound(Lock),
        RLock=bound(Lock),
        Condition=bound(Condition),
        Event=bound(Event),
        Thread=bound(Thread),
        current_thread=lambda: kernel.current.thread,
    )


class Waiters:
    """Threads that wait for the same thing."""

    __slots__ = ("_kernel", "_waiting")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._waiting: list[tuple[Task, int, Callable[[], bool] | None]] = []

    def wait(self, deadline: float | None, until: Callable[[], bool] | None = None) -> bool:
        """Until :meth:`wake` (and ``until``), or the deadline; whether it was woken."""
        task = self._kernel.current
        self._waiting.append((task, task.token, until))
        return self._kernel.wait(deadline)

    def add(self, task: Task, until: Callable[[], bool] | None = None) -> None:
        """Have a thread that is about to wait woken, too."""
        self._waiting.append((task, task.token, until))

    def wake(self) -> None:
        """Let all go on for whom it is time."""
        waiting = self._waiting
        if not waiting:
            return
        self._waiting = []
        for entry in waiting:
            task, token, until = entry
            if not task.waiting or task.token != token:
                continue
            if until is None or until():
                self._kernel.wake(task, token)
            else:
                self._waiting.append(entry)


class Lock:
    """As ``threading.Lock``, and where the same thread may take it again, as ``RLock``."""

    __slots__ = ("_depth", "_holder", "_kernel", "_waiters")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._waiters: Waiters | None = None
        self._holder: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        del timeout
        current = self._kernel.current
        while self._holder is not None and self._holder is not current:
            if not blocking:
                return False
            if self._waiters is None:
                self._waiters = Waiters(self._kernel)
            self._waiters.wait(None)
        self._holder = current
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            if self._waiters is not None:
                self._waiters.wake()

    def __enter__(self) -> bool:
        if self._holder is not None:
            return self.acquire()
        self._holder, self._depth = self._kernel.current, 1
        return True

    def __exit__(self, *_: object) -> None:
        if self._depth == 1 and self._waiters is None:
            self._holder, self._depth = None, 0
        else:
            self.release()


class Condition:
    """As ``threading.Condition``."""

    __slots__ = ("_kernel", "_lock", "_waiters")

    def __init__(self, kernel: Kernel, lock: Lock | None = None) -> None:
        self._kernel, self._lock, self._waiters = kernel, lock or Lock(kernel), Waiters(kernel)

    def __enter__(self) -> bool:
        lock = self._lock
        if lock._holder is not None:
            return lock.acquire()
        lock._holder, lock._depth = self._kernel.current, 1
        return True

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        return self._wait(None if timeout is None else self._kernel.now + max(0.0, timeout), None)

    def _wait(self, deadline: float | None, until: Callable[[], bool] | None) -> bool:
        self._lock.release()
        try:
            return self._waiters.wait(deadline, until)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end = None if timeout is None else self._kernel.now + max(0.0, timeout)
        while not (result := predicate()):
            if end is not None and self._kernel.now >= end:
                return False
            self._wait(end, predicate)
        return result

    def notify_all(self) -> None:
        self._waiters.wake()

    def notify(self, n: int = 1) -> None:
        del n
        self._waiters.wake()  # who wakes in vain looks again


class Event:
    """As ``threading.Event``."""

    __slots__ = ("_is_set", "_kernel", "_waiters")

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
        self._task.thread = self

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.ended

    def join(self, timeout: float | None = None) -> None:
        if self._task is None or self._task.ended:
            return
        me = self._kernel.current
        self._task.joining.append((me, me.token))
        self._kernel.wait(None if timeout is None else self._kernel.now + timeout)


class Future:
    """As ``concurrent.futures.Future``."""

    def __init__(self, kernel: Kernel) -> None:
        self._done, self._value, self._error = Event(kernel), None, None
        self._callbacks: list[Callable[[Any], None]] = []
        self._cancelled = False

    def done(self) -> bool:
        return self._done.is_set()

    def cancel(self) -> bool:
        self._cancelled = True
        return False

    def cancelled(self) -> bool:
        return self._cancelled

    def set_result(self, value: Any) -> None:
        self._set(value, None)

    def set_exception(self, error: BaseException) -> None:
        self._set(None, error)

    def _set(self, value: Any, error: Any) -> None:
        self._value, self._error = value, error
        self._done.set()
        for callback in self._callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def exception(self, timeout: float | None = None) -> Any:
        if not self._done.wait(timeout):
            raise TimeoutError
        return self._error

    def result(self, timeout: float | None = None) -> Any:
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value


class Pool:
    """As ``concurrent.futures.ThreadPoolExecutor`` with one thread."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._work: deque[tuple[Future, Callable[[], Any]]] = deque()
        self._thread: Thread | None = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        future = Future(self._kernel)
        self._work.append((future, lambda: function(*arguments)))
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(self._kernel, self._run)
            self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            self._work.clear()
        if wait and self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._work:
            future, work = self._work.popleft()
            try:
                value = work()
            except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
                future.set_exception(error)
            else:
                future.set_result(value)
