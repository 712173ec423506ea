"""How long it takes from starting the program to the first frame, beside an empty Textual app, on real terminals."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

ROUNDS = 9
"""Other work on this computer makes a start slower and never faster: the fastest of these is the program's own."""

MAX = 1.5
ALTERNATE_SCREEN = b"\x1b[?1049h"
FRAME_BYTES = 3000
"""A first frame of 120x40 cells is at least so long, an empty one too: Textual sends the blanks."""


def _seconds_to_first_frame(argv: Sequence[str], home: Path) -> float:
    began = time.monotonic()
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
        return time.monotonic() - began
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.close(terminal)


def test_the_first_frame_comes_within_one_and_a_half_times_of_an_empty_textual_app(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("from textual.app import App\nApp().run()\n")
    (tmp_path / "inventory.yaml").write_text("hosts:\n  laptop: {connection: local}\n")
    empty = [sys.executable, str(tmp_path / "empty.py")]
    ours = [sys.executable, "-m", "hetero_tui"]
    for program in (empty, ours):
        _seconds_to_first_frame(program, tmp_path)  # byte code and file cache warm for both
    rounds = [[_seconds_to_first_frame(program, tmp_path) for program in (empty, ours)] for _ in range(ROUNDS)]
    bare, own = map(min, zip(*rounds, strict=True))
    print(f"first frame: empty Textual app {1000 * bare:.0f} ms, ours {1000 * own:.0f} ms, ratio {own / bare:.2f}")
    assert own <= MAX * bare


def test_the_screens_load_neither_torch_ray_asyncssh_nor_pydantic_before_the_first_frame() -> None:
    program = "import sys, hetero_tui.ui.app; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["torch", "ray", "numpy", "asyncssh", "pydantic"]
    answer = subprocess.run(
        [sys.executable, "-c", program, *heavy], check=True, capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.strip() == "[]"
