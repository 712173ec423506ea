"""What it takes from starting the program to the first frame, beside an empty Textual app, on real terminals.

Seconds of the processor: other tests share this computer. ``benchmarks.ui`` has the seconds that a user waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

ROUNDS = 5
"""Of both, one after the other. Other work makes a start cost more, and never less: the least is the program's own."""

MAX = 1.5
ALTERNATE_SCREEN = b"\x1b[?1049h"
FRAME_BYTES = 3000
"""A first frame of 120x40 cells is at least so long, an empty one too: Textual sends the blanks."""


def _seconds_to_first_frame(argv: Sequence[str], home: Path) -> float:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a user has byte code from the second start on
        os.environ.update(TERM="xterm-256color", HOME=str(home), COLUMNS="120", LINES="40")
        os.execv(argv[0], list(argv))
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        seen = b""
        while len(seen.partition(ALTERNATE_SCREEN)[2]) < FRAME_BYTES:
            readable, _, _ = select.select([terminal], [], [], 30)
            assert readable, seen
            seen += os.read(terminal, 65536)
    finally:
        os.kill(pid, signal.SIGKILL)
        used = os.wait4(pid, 0)[2]
        with contextlib.suppress(OSError):
            os.close(terminal)
    return used.ru_utime + used.ru_stime


def test_the_first_frame_takes_at_most_one_and_a_half_times_of_an_empty_textual_app(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("from textual.app import App\nApp().run()\n")
    (tmp_path / "inventory.yaml").write_text("hosts:\n  laptop: {connection: local}\n")
    empty = [sys.executable, str(tmp_path / "empty.py")]
    ours = [sys.executable, "-m", "hetero_tui"]
    for program in (empty, ours):
        _seconds_to_first_frame(program, tmp_path)  # byte code and file cache warm for both
    rounds = [[_seconds_to_first_frame(program, tmp_path) for program in (empty, ours)] for _ in range(ROUNDS)]
    bare, own = map(min, zip(*rounds, strict=True))
    ratio = own / bare
    print(f"first frame: {ratio:.2f} times the processor time of an empty Textual app")
    assert ratio <= MAX
