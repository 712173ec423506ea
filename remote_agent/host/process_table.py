"""Reads the start time, session and owner of processes from the kernel. It never sends signals.

Linux is read from ``/proc`` (proc(5)); elsewhere psutil, which is part of the node's environment, is needed. A process
that has ended, or that may not be looked at, is None or left out: processes end while one looks at them.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from remote_agent import deadlines
from remote_agent.protocol import CLUSTER_MARK

_PROC = Path("/proc")
# Fields of /proc/PID/stat, counted from the state, which is the first after the command's closing bracket.
_PARENT_FIELD = 1
_SESSION_FIELD = 3
_FLAGS_FIELD = 6
_THREADS_FIELD = 17
_STARTED_FIELD = 19
_ENVIRONMENT_FIELD = 47  # where it begins; the next one is where it ends
_ENDING_OR_OF_THE_KERNEL = 0x4 | 0x200000  # PF_EXITING, PF_KTHREAD in linux/sched.h


@dataclass(frozen=True)
class Process:
    """A living process. ``started`` is in the platform's own unit: clock ticks since boot on Linux."""

    pid: int
    parent: int
    session: int
    started: float
    name: str


def find(pid: int) -> Process | None:
    """The living process with this PID; a zombie has ended and does not count."""
    return _find_in_proc(pid) if sys.platform == "linux" else _find_by_psutil(pid)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; one that a debugger looks at does not count, nor one that has ended."""
    return _stat(pid)[1][:1] == ["T"] if sys.platform == "linux" else _is_stopped_by_psutil(pid)


def mark_of(pid: int) -> str | None:
    """The cluster folder in the environment that the process was started with; None when it carries none."""
    return _mark_in_proc(pid) if sys.platform == "linux" else _mark_by_psutil(pid)


def find_marked(folder: Path) -> tuple[Process, ...]:
    """All living processes of this user that carry the cluster's mark, except this one and those above it."""
    spared = _self_and_ancestors()
    found = (find(pid) for pid in _own_pids() if pid not in spared and mark_of(pid) == str(folder))
    return tuple(process for process in found if process is not None)


def _self_and_ancestors() -> frozenset[int]:
    pids: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        process = find(pid)
        pid = process.parent if process else 0
    return frozenset(pids)


def _own_pids() -> list[int]:
    if sys.platform != "linux":
        return _own_pids_by_psutil()
    pids = []
    for entry in _PROC.iterdir():
        try:
            if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                pids.append(int(entry.name))
        except OSError:
            continue
    return sorted(pids)


def _stat(pid: int) -> tuple[str, list[str]]:
    """The command and the fields after it; no fields when there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return "", []
    # The command stands in brackets and may itself hold brackets and blanks: the last closing one ends it.
    command, _, rest = text.partition("(")[2].rpartition(")")
    return command, rest.split()


def _find_in_proc(pid: int) -> Process | None:
    command, fields = _stat(pid)
    # Its first thread may have ended before the others, which hold on to its files and ports until they have, too.
    if not fields or (fields[0] in "ZX" and int(fields[_THREADS_FIELD]) <= 1):
        return None
    parent, session = int(fields[_PARENT_FIELD]), int(fields[_SESSION_FIELD])
    return Process(pid=pid, parent=parent, session=session, started=float(fields[_STARTED_FIELD]), name=command)


def _mark_in_proc(pid: int) -> str | None:
    prefix = f"{CLUSTER_MARK}=".encode()
    ends = time.monotonic() + deadlines.EXEC_SECONDS
    seen_without = False
    while True:
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return None
        if environment:
            break
        without = _is_without_environment(pid)
        if without is None or (without and seen_without) or time.monotonic() >= ends:
            return None
        seen_without = without
        time.sleep(deadlines.EXEC_POLL_SECONDS)
    return next(
        (os.fsdecode(entry[len(prefix) :]) for entry in environment.split(b"\0") if entry.startswith(prefix)), None
    )


def _is_without_environment(pid: int) -> bool | None:
    """Whether a process was started with an empty environment; None when it ends, or is a thread of the kernel.

    In the middle of execve(2) its memory is a new one, in which the kernel notes the place of the environment later:
    first nothing (False), then its beginning for both ends (which looks like an empty one), then both.
    """
    _, fields = _stat(pid)
    if not fields or fields[0] in "ZX" or int(fields[_FLAGS_FIELD]) & _ENDING_OR_OF_THE_KERNEL:
        return None
    begins, ends = fields[_ENVIRONMENT_FIELD : _ENVIRONMENT_FIELD + 2]
    return begins == ends != "0"


def _find_by_psutil(pid: int) -> Process | None:
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return None
        return Process(
            pid=pid,
            parent=process.ppid(),
            session=os.getsid(pid),
            started=process.create_time(),
            name=process.name(),
        )
    except (psutil.Error, OSError):
        return None


def _is_stopped_by_psutil(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _mark_by_psutil(pid: int) -> str | None:
    import psutil

    try:
        environment: dict[str, str] = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return None
    return environment.get(CLUSTER_MARK)


def _own_pids_by_psutil() -> list[int]:
    import psutil

    pids = []
    for pid in psutil.pids():
        try:
            if psutil.Process(pid).uids().real == os.getuid():
                pids.append(pid)
        except psutil.Error:
            continue
    return sorted(pids)
