"""What happens to machines in homes: a cron job cleans up, a user logs out, a disk fails or fills up.

As in :mod:`benchmarks.faulty.rare`, all hosts have to be in the run again at the end.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress

from benchmarks.faulty.rare import Begin, Place, Undo, first, head, nothing
from benchmarks.faulty.stage import Stage
from tests.lab import disks
from tests.lab.following import Following, RunError
from tests.lab.machines import Host
from tests.lab.network import LabError

_OF_ALL = ("/tmp", "/dev/shm")  # noqa: S108 - what is deleted there is the fault
"""Where others clean up: a cron job, and systemd's RemoveIPC when the user logs out."""


def cleaned(place: Place = first) -> Begin:
    """All that lies in the folders for temporary files and for shared memory is deleted."""

    def begin(stage: Stage, follower: Following) -> Undo:
        _done(place(stage, follower), ["find", *_OF_ALL, "-xdev", "-mindepth", "1", "-delete"])
        return nothing

    return begin


def logged_out(place: Place = first) -> Begin:
    """All processes on a host are killed, as by systemd's KillUserProcesses when the user logs out."""

    def begin(stage: Stage, follower: Following) -> Undo:
        host = place(stage, follower)
        for one in host.processes():
            with suppress(LabError):  # it ended with another one
                host.signal(one.pid, signal.SIGKILL)
        return nothing

    return begin


def read_only(place: Place = first) -> Begin:
    """No file in the home folder can be opened for writing, as on a disk with errors; open ones can be written to."""

    def begin(stage: Stage, follower: Following) -> Undo:
        host = place(stage, follower)
        _done(host, ["sh", "-c", 'mount --bind "$HOME" "$HOME" && mount -o remount,bind,ro "$HOME"'])
        return lambda: _done(host, ["sh", "-c", 'cd / && umount -l "$HOME"'])

    return begin


def slow_disk(bytes_s: int, place: Place = head) -> Begin:
    """A host's disk writes so many bytes a second, as a worn card does."""

    def begin(stage: Stage, follower: Following) -> Undo:
        home = place(stage, follower).home
        disks.limit(home, bytes_s)
        return lambda: disks.limit(home, None)

    return begin


def _done(host: Host, command: Sequence[str]) -> None:
    done = host.exec(command)
    if done.returncode != 0:
        raise RunError(f"{host.name}: {done.stderr.strip()[-300:]}")
