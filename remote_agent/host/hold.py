"""Holds this machine for one command of one laptop, so that no other changes the cluster at the same time.

One file, the standard library only: it is sent as an argument, before anything else of ours is on a machine::

    python3 -c "$(cat hold.py)" PATH OWNER SILENCE

It prints a line of JSON (:class:`remote_agent.protocol.Hold`) at each change: ``ready`` with what names this machine;
after a ``take`` on stdin, ``waits`` with the command that holds the machine, or ``held``. The kernel's lock on PATH is
held until stdin ends or is silent for SILENCE seconds: a laptop that was killed, or fell asleep, blocks nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

POLL_SECONDS = 0.2
"""Between two looks whether the other command has ended."""


class Ended(Exception):
    """The laptop let go, or is gone."""


class Laptop:
    """The laptop at the other end of stdin and stdout."""

    def __init__(self, silence: float) -> None:
        """``silence``: seconds without a byte after which it is gone."""
        self._silence = silence
        self._heard = time.monotonic()
        self.took = False

    def wait(self, seconds: float) -> None:
        """Wait so long, or until it has said something; raises Ended if it let go, or was silent for too long."""
        if select.select([0], [], [], seconds)[0]:
            said = os.read(0, 4096)
            if not said:
                raise Ended
            self._heard = time.monotonic()
            self.took = self.took or b"take" in said
        if time.monotonic() - self._heard > self._silence:
            raise Ended


def say(hold: str, **words: object) -> None:
    """Print one line."""
    print(json.dumps({"hold": hold, **words}), flush=True)


def take(path: Path, owner: dict[str, str], laptop: Laptop) -> int:
    """The descriptor of the locked file, once no other command holds it; -1: this command does so already."""
    told = ""
    while True:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(owner).encode(), 0)
                return descriptor
        except FileNotFoundError:
            pass  # the last holder has removed it: make a new one
        except BlockingIOError:
            text = os.pread(descriptor, 4096, 0).decode(errors="replace")
            other = read(text)
            if other.get("id") == owner["id"]:  # a machine with two names, or a home folder of several
                os.close(descriptor)
                return -1
            if text and text != told:
                told = text
                say("waits", by=other.get("by", ""), command=other.get("command", ""))
            laptop.wait(POLL_SECONDS)
        os.close(descriptor)


def read(text: str) -> dict[str, str]:
    """Who holds it, from the file's text."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {key: str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def end(number: int, frame: object) -> None:
    """For SIGTERM: let go as if the laptop had."""
    raise Ended


def main() -> None:
    """See the module's docstring."""
    path, owner, silence = Path(sys.argv[1]).expanduser(), json.loads(sys.argv[2]), float(sys.argv[3])
    laptop, descriptor = Laptop(silence), -1
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)
        say("ready", machine=os.uname().nodename + str(path.parent.parent.stat().st_ino))
        while not laptop.took:
            laptop.wait(silence)
        try:
            descriptor = take(path, owner, laptop)
        except OSError as error:  # a home folder that is full, read-only, or without locks
            say("none", by=error.strerror or str(error))
            return
        say("held")
        while True:
            laptop.wait(silence)
    except (Ended, BrokenPipeError):
        pass
    finally:
        if descriptor >= 0:
            path.unlink(missing_ok=True)
            os.close(descriptor)
        with contextlib.suppress(OSError):  # more is in it
            path.parent.rmdir()


if __name__ == "__main__":
    main()
