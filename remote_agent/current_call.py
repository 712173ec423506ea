"""Records a worker's current call of the user's code in a page that outlives its process.

A process that is killed by a signal, or leaves by ``os._exit``, can't report it. So it notes which function of the
user's it calls, and for which sample, in a small file that is mapped into its memory: to write there costs less than a
microsecond, and the system keeps it. ``faulthandler`` writes the signal and the calls to a file beside it. Both lie in
the folder of Ray's logs, which goes with Ray's session, and are read by another process on the same host.

Without torch: a process that only reads this starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import re
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

NONE = -1
"""In the place of a sample: the function is not called for one."""

SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Floating-point exception": "SIGFPE",
    "Floating point exception": "SIGFPE",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
}
"""What ``faulthandler`` calls the signals that it handles."""

LAST_LINES = 5
"""Of what a process wrote to stderr before it died."""

_SIZE = 256
_STEP, _CALL, _EXIT, _FUNCTION = (
    struct.Struct("<qqq"),
    struct.Struct("<dqq"),
    struct.Struct("<q"),
    struct.Struct("<64s"),
)
_AT_STEP, _AT_CALL, _AT_EXIT, _AT_FUNCTION = 0, 64, 128, 136
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_RAYS_OWN = re.compile(
    r"^(\[[^\]]*\]|:job_id:|:actor_name:|\*\*\* SIG|PC: @|\s*@ |\s+File \"|Fatal Python|Stack \(|Extension modules)"
)


@dataclass(frozen=True)
class Place:
    """A call of the user's code.

    Attributes:
        step: of training; 0: before the first one.
        slice: number of the step's slice that is computed.
        function: the user's, or what was done, in words.
        sample: index of the sample that it is called for, or of the first of several.
        samples: how many; 0: it is called for none.
    """

    step: int
    slice: int
    function: str
    sample: int = NONE
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class LastCall:
    """What is known of a process that died, or does not answer.

    Attributes:
        place: the call that it was in; None: none of the user's.
        seconds: for how long it is in that, if it lives.
        how: ``SIGSEGV``, ``os._exit(3)``; empty: that is not known, or it lives.
        calls: of the thread that the signal met: (file, line, function), the outermost first.
        output: the last lines that it wrote to stderr.
    """

    place: Place | None
    seconds: float = 0.0
    how: str = ""
    calls: tuple[tuple[str, int, str], ...] = ()
    output: tuple[str, ...] = ()


class Page:
    """This process's place, in memory until :meth:`open` gives it a file. One call of the user's at a time is noted."""

    def __init__(self) -> None:
        self._memory: bytearray | mmap.mmap = bytearray(_SIZE)
        self._thread = 0
        self._report: TextIO | None = None  # is written to when the process dies

    def open(self, folder: Path, key: str) -> None:
        """Have it outlive the process, as ``key`` in ``folder``; what can't be written is gone without."""
        with contextlib.suppress(OSError):
            path = _page(folder, key)
            path.write_bytes(bytes(_SIZE))
            with path.open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), _SIZE)
            self._report_signals(_crash(folder, key))
            _STEP.pack_into(self._memory, _AT_STEP, 0, 0, os.getpid())
            self._note_exits()

    def slice(self, step: int, number: int) -> None:
        """Slice ``number`` of ``step`` is computed now."""
        _STEP.pack_into(self._memory, _AT_STEP, step, number, os.getpid())

    def enter(self, function: str, sample: int = NONE, samples: int = 0) -> None:
        """The user's ``function`` is called now, for these samples if for any."""
        self._thread = threading.get_ident()
        _FUNCTION.pack_into(self._memory, _AT_FUNCTION, function.encode()[:64])
        self.sample(sample, samples)

    def sample(self, index: int, samples: int = 1) -> None:
        """The function is called for this sample now."""
        _CALL.pack_into(self._memory, _AT_CALL, time.monotonic(), index, samples)

    def leave(self) -> None:
        """No code of the user's runs."""
        _FUNCTION.pack_into(self._memory, _AT_FUNCTION, b"")

    @contextlib.contextmanager
    def during(self, function: str) -> Iterator[None]:
        """While the block runs, the user's ``function`` does."""
        self.enter(function)
        try:
            yield
        finally:
            self.leave()

    def end(self, how: str, calls: Iterable[tuple[str, int, str]]) -> None:
        """End the process for a failure after which it can't work; without a file it goes on.

        Args:
            how: the failure, in words.
            calls: where it happened, as :class:`LastCall` has them.
        """
        if self._report is None:
            return
        lines = [f'  File "{file}", line {line} in {function}' for file, line, function in calls]
        self._report.write("\n".join([how, *reversed(lines)]))
        self._report.flush()
        os._exit(1)

    def now(self) -> tuple[Place, float, FrameType | None] | None:
        """The call under way, since how many seconds, and where its thread is; None: none is."""
        place, since = _place(self._memory)
        if place is None:
            return None
        frames = sys._current_frames()  # noqa: SLF001 - documented, for this
        return place, time.monotonic() - since, frames.get(self._thread)

    def quiet_s(self) -> float:
        """Seconds since a call of the user's code began last, which may have ended."""
        return time.monotonic() - _place(self._memory)[1]

    def _report_signals(self, path: Path) -> None:
        # Ray's own handler takes a second for what it writes, in which other threads go on to other samples.
        faulthandler.disable()
        for number in (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL):
            ctypes.CDLL(None).signal(int(number), 0)
        self._report = path.open("w")
        faulthandler.enable(self._report, all_threads=False)

    def _note_exits(self) -> None:
        leave = os._exit

        def noted(status: int) -> None:
            _EXIT.pack_into(self._memory, _AT_EXIT, status + 1)
            leave(status)

        os._exit = noted  # type: ignore[assignment]


HERE = Page()
"""This process's."""


def last_call(folder: Path, key: str) -> LastCall | None:
    """What the page of ``key`` in ``folder`` says; None: it is not on this host."""
    try:
        memory = _page(folder, key).read_bytes()
    except OSError:
        return None
    if len(memory) != _SIZE:
        return None
    place, since = _place(memory)
    _, _, pid = _STEP.unpack_from(memory, _AT_STEP)
    (status,) = _EXIT.unpack_from(memory, _AT_EXIT)
    signal, calls = _of_crash(_crash(folder, key))
    return LastCall(
        place=place,
        seconds=time.monotonic() - since,
        how=signal or (f"os._exit({status - 1})" if status else ""),
        calls=calls,
        output=_output(folder, pid),
    )


def rays_logs() -> Path:
    """The folder of Ray's logs on this host, for a process that is connected to Ray."""
    from ray._private.worker import global_worker

    return Path(global_worker.node.get_logs_dir_path())


def last_call_here(key: str) -> LastCall | None:
    """As :func:`last_call`, for a process of the same Ray node."""
    return last_call(rays_logs(), key)


def _page(folder: Path, key: str) -> Path:
    return folder / f"hetero-tui-{key}.page"


def _crash(folder: Path, key: str) -> Path:
    return folder / f"hetero-tui-{key}.crash"


def _place(memory: bytes | bytearray | mmap.mmap) -> tuple[Place | None, float]:
    """The place, and since when on the monotonic clock."""
    step, number, _ = _STEP.unpack_from(memory, _AT_STEP)
    since, sample, samples = _CALL.unpack_from(memory, _AT_CALL)
    (name,) = _FUNCTION.unpack_from(memory, _AT_FUNCTION)
    function = name.rstrip(b"\0").decode("utf-8", "replace")
    return (Place(step, number, function, sample, samples) if function else None), since


def _of_crash(path: Path) -> tuple[str, tuple[tuple[str, int, str], ...]]:
    """The signal's name and the calls that ``faulthandler`` wrote; empty where it wrote nothing."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ()
    said = text.partition("\n")[0].removeprefix("Fatal Python error: ")
    calls = tuple((file, int(line), name) for file, line, name in _FRAME.findall(text))
    return SIGNALS.get(said, said), calls[::-1]


def _output(folder: Path, pid: int) -> tuple[str, ...]:
    """The last lines that the process wrote to stderr, without those of Ray's own handler of signals."""
    for path in folder.glob(f"worker-*-{pid}.err"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
            lines = file.read().decode("utf-8", "replace").splitlines()
            said = [line for line in lines if line.strip() and not _RAYS_OWN.match(line)]
            return tuple(said[-LAST_LINES:])
    return ()
