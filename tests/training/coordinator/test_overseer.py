"""The overseer: it has its work done, again if that is killed, and leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from remote_agent.training.coordinator import overseer as product
from remote_agent.training.coordinator.overseer import Coordinate, Overseer

END_S = 60.0

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])  # torch is loaded once for all overseers


def counts_then_waits(folder: Path, stop: threading.Event) -> int:
    """Leaves a file with its PID, and waits until it is told to stop."""
    (folder / str(os.getpid())).touch()
    stop.wait()
    return 7


def ends(folder: Path, stop: threading.Event) -> int:
    return 5


def raises(folder: Path, stop: threading.Event) -> int:
    raise RuntimeError


def oversee(work: Coordinate, folder: Path, times: int, forks: bool) -> None:
    product.LOOK_S = 0.1
    asked = iter(range(times))
    may_go_on, said = lambda: next(asked, None) is not None, lambda: None
    sys.exit(Overseer(work, folder, may_go_on, said, forks=forks).oversee())


@contextmanager
def overseer(work: Coordinate, folder: Path, times: int = 100, *, forks: bool = False) -> Iterator[BaseProcess]:
    """An overseer that lets its work be done again so many times."""
    process = PROCESSES.Process(target=oversee, args=(work, folder, times, forks))
    process.start()
    try:
        yield process
    finally:
        if process.is_alive():
            process.kill()
        process.join(END_S)


def worker_after(folder: Path, known: set[int]) -> int:
    """The PID of the next one that works."""
    end = time.monotonic() + END_S
    while not (new := {int(path.name) for path in folder.iterdir()} - known):
        assert time.monotonic() < end
        time.sleep(0.01)
    (pid,) = new
    return pid


@pytest.mark.parametrize(("work", "code"), [(ends, 5), (raises, 1)])
def test_the_exit_code_is_that_of_the_work(tmp_path: Path, work: Coordinate, code: int) -> None:
    with overseer(work, tmp_path, forks=True) as process:
        process.join(END_S)
        assert process.exitcode == code


@pytest.mark.long
@pytest.mark.parametrize("forks", [True, False])
def test_work_that_is_killed_is_done_again_as_often_as_it_may(tmp_path: Path, forks: bool) -> None:
    known: set[int] = set()
    with overseer(counts_then_waits, tmp_path, times=2, forks=forks) as process:
        for _ in range(3):
            pid = worker_after(tmp_path, known)
            known.add(pid)
            os.kill(pid, signal.SIGKILL)
        process.join(END_S)
        assert process.exitcode == 1
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_overseer_lets_the_work_end_well(tmp_path: Path, number: signal.Signals) -> None:
    with overseer(counts_then_waits, tmp_path, forks=True) as process:
        worker_after(tmp_path, set())
        assert process.pid is not None
        os.kill(process.pid, number)
        process.join(END_S)
        assert process.exitcode == 7


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which signals wait for a process")
def test_work_that_is_killed_after_it_was_told_to_stop_is_not_done_again(tmp_path: Path) -> None:
    with overseer(counts_then_waits, tmp_path, forks=True) as process:
        pid = worker_after(tmp_path, set())
        os.kill(pid, signal.SIGSTOP)  # it does not see that it is to stop
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        process.terminate()
        until(lambda: is_told_to_end(pid))
        os.kill(pid, signal.SIGKILL)
        process.join(END_S)
        assert process.exitcode == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("forks", [True, False])
def test_work_that_is_stopped_is_killed_and_done_again(tmp_path: Path, forks: bool) -> None:
    with overseer(counts_then_waits, tmp_path, forks=forks) as process:
        first = worker_after(tmp_path, set())
        os.kill(first, signal.SIGSTOP)
        worker_after(tmp_path, {first})
        assert not psutil.pid_exists(first)  # so it can do no harm when it goes on
        process.terminate()
        process.join(END_S)
        assert process.exitcode == 7


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_told_to_end(pid: int) -> bool:
    """Whether SIGTERM waits for a process (proc(5))."""
    (mask,) = re.findall(r"^ShdPnd:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("forks", [True, False])
def test_the_work_ends_with_its_overseer(tmp_path: Path, forks: bool) -> None:
    with overseer(counts_then_waits, tmp_path, forks=forks) as process:
        work = psutil.Process(worker_after(tmp_path, set()))
        process.kill()
        work.wait(END_S)
