"""A terminal that goes away takes the app with it, and leaves no process that waits for ever."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest

DEADLINE = 120.0


def _ended(process: int) -> bool:
    ends = time.monotonic() + DEADLINE
    while time.monotonic() < ends:
        if os.waitpid(process, os.WNOHANG)[0]:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("wakes", [False, True], ids=["hung up", "hung up and continued"])
def test_an_app_whose_terminal_is_gone_ends(tmp_path: Path, wakes: bool) -> None:
    """Some terminals continue what they hang up on: Textual then begins anew on a terminal that is not there."""
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("cluster: {name: lone}\nhosts:\n  here: {connection: local}\n")
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm-256color", HOME=str(tmp_path), XDG_STATE_HOME=str(tmp_path))
        os.execv(sys.executable, [sys.executable, "-m", "hetero_tui", "-i", str(inventory)])
    try:
        shown, ends = b"", time.monotonic() + DEADLINE
        while b"Hosts" not in shown and time.monotonic() < ends:
            if select.select([terminal], [], [], 0.5)[0]:
                shown += os.read(terminal, 1 << 16)
        assert b"Hosts" in shown
        os.close(terminal)
        if wakes:
            os.kill(process, signal.SIGCONT)
        assert _ended(process)
    except BaseException:
        os.kill(process, signal.SIGKILL)
        raise
