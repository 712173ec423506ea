"""Cleans up after the demo however it ended: ``python -m hetero_tui.demo.guardian FOLDER``.

It is a process of its own, in its own session, and waits for the end of its stdin: a pipe whose other end only the demo
holds. The kernel closes that end even when the demo gets SIGKILL. Then whatever still runs inside FOLDER is ended, and
FOLDER is removed. After an orderly teardown there is nothing to end.

A process is the demo's when it is this user's and the mark that all of ours inherit
(:data:`remote_agent.protocol.CLUSTER_MARK`) names a folder inside FOLDER: no other process can carry it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from hetero_tui import deadlines
from remote_agent.protocol import CLUSTER_MARK, short_folder

NAME = re.compile(r"^ht-demo-[A-Za-z0-9_]+$")
"""What the guardian consents to remove: a folder of this name, of this user, directly in /tmp."""

_ROUNDS = 3
_GRACE = 5.0
_POLL = 0.05


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[None]:
    """Have ``folder`` cleaned up at the end of the context, or of this process, whichever comes first.

    Raises:
        ValueError: it is not a folder that :func:`hetero_tui.demo.machines.make_folder` made.
    """
    check(folder)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hetero_tui.demo.guardian",
        str(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        # Not ended when late: it goes on alone, which is what it is for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadlines.NODE_STOP):
                await process.wait()


def check(folder: Path) -> None:
    """Refuse anything but a demo's own folder. Raises ValueError."""
    folder = Path(os.path.normpath(folder))
    if folder.parent != Path("/tmp") or not NAME.match(folder.name):  # noqa: S108 - where make_folder makes it
        raise ValueError(f"{folder} is not a demo's folder")
    if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.getuid()):
        raise ValueError(f"{folder} belongs to another user")


def clean(folder: Path) -> None:
    """End all processes of the demo in ``folder`` (SIGTERM, then SIGKILL), and remove it and what it points at."""
    check(folder)
    for _ in range(_ROUNDS):  # something may be started while the first ones end, and shows no mark before it runs
        end(ours(folder))
    for extra in fallback_folders(folder):
        shutil.rmtree(extra, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def ours(folder: Path) -> list[psutil.Process]:
    """This user's processes whose cluster mark lies inside ``folder``, except this one."""
    root = str(folder.resolve()) + os.sep
    plain = str(folder) + os.sep
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.uids().real != os.getuid():
                continue
            if process.environ().get(CLUSTER_MARK, "").startswith((root, plain)):
                found.append(process)
    return found


def end(processes: Iterable[psutil.Process]) -> None:
    """SIGTERM, a few seconds, SIGKILL. Returns when all have ended, or a few seconds after the SIGKILL."""
    alive = list(processes)
    for kill in (False, True):
        for process in alive:
            with contextlib.suppress(psutil.Error):
                if kill:
                    process.kill()
                else:
                    process.terminate()
        ends = time.monotonic() + _GRACE
        while (alive := [process for process in alive if _lives(process)]) and time.monotonic() < ends:
            time.sleep(_POLL)


def _lives(process: psutil.Process) -> bool:
    """Whether it has not ended; one whose status was not fetched yet (a zombie) has."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def fallback_folders(folder: Path) -> list[Path]:
    """Folders outside that the agent chose for Ray's sockets, where the path of the cluster's own is too long."""
    expected = [Path(short_folder(str(cluster))) for cluster in folder.glob("*/.hetero-tui/*")]
    return [path for path in expected if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()]


def main(arguments: list[str]) -> int:
    """Wait for the end of stdin, then clean up the folder that is the only argument."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m hetero_tui.demo.guardian FOLDER\n")
        return 2
    folder = Path(arguments[0])
    try:
        check(folder)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a signal to the demo's group or terminal must not end this
    while os.read(sys.stdin.fileno(), 1024):
        pass
    deadline = time.monotonic() + deadlines.NODE_STOP
    while folder.exists() and time.monotonic() < deadline:
        clean(folder)
    return 0 if not folder.exists() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
