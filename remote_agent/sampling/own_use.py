"""CPU and memory of one cluster's own processes: the use of a simulated machine, one of several on a computer."""

from __future__ import annotations

from pathlib import Path

import psutil

from remote_agent.host.process_table import Process, find_marked


class OwnUse:
    """Use by the processes that carry the cluster's mark, from one look to the next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: dict[tuple[int, float], float] = {}

    def look(self, elapsed: float, cpus: int) -> tuple[float | None, int | None]:
        """(CPU use as a fraction of the computer since the last look, bytes of memory); None at the first look.

        A process that came since then counts with all its time, one that went with none of it.
        """
        seconds: dict[tuple[int, float], float] = {}
        memory = 0
        for process in find_marked(self._folder):
            used = _read(process)
            if used is not None:
                seconds[process.pid, process.started] = used[0]
                memory += used[1]
        before, self._seconds = self._seconds, seconds
        if elapsed <= 0:
            return None, memory
        spent = sum(max(0.0, now - before.get(key, 0.0)) for key, now in seconds.items())
        return min(1.0, spent / elapsed / cpus), memory


def _read(process: Process) -> tuple[float, int] | None:
    """(CPU seconds, bytes that it shares with no other) of a process; None when it has just ended."""
    try:
        handle = psutil.Process(process.pid)
        times, memory = handle.cpu_times(), handle.memory_info()
    except psutil.Error:
        return None
    return times.user + times.system, max(0, memory.rss - getattr(memory, "shared", 0))
