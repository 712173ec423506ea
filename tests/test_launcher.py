"""What a command's end waits for."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from hetero_tui.errors import UsageError
from hetero_tui.launcher import require_utf8

SCRIPT = """
import asyncio, threading
from hetero_tui.launcher import run_to_end

async def work():
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, int, "7") == 7
    try:
        await loop.run_in_executor(None, int, "seven")
    except ValueError:
        print("as a thread's error is told")
    try:
        await asyncio.wait_for(asyncio.to_thread(threading.Event().wait), 0.1)
    except TimeoutError:
        print("late")
    return 3

raise SystemExit(run_to_end(work))
"""


def test_a_name_that_no_server_resolves_does_not_keep_a_command_that_is_done() -> None:
    """A name server that is silent, or a command of ssh_config that hangs, is waited for in a thread."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (3, "as a thread's error is told\nlate\n", "")


CANCELLED = """
import asyncio, threading
from hetero_tui.launcher import run_to_end

ended = threading.Event()

def late(begun):
    begun.set()
    ended.wait()

async def work():
    loop, begun = asyncio.get_running_loop(), threading.Event()
    waiting = [loop.run_in_executor(None, late, begun) for _ in range(20)]
    begun.wait()
    for each in waiting:
        each.cancel()
    await asyncio.sleep(0)  # the loop hands it on to the thread's future
    before = [each for each in threading.enumerate() if each.daemon]
    ended.set()
    for each in before:
        each.join()
    return 0

raise SystemExit(run_to_end(work))
"""


def test_a_thread_that_ends_after_its_command_was_interrupted_prints_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", CANCELLED], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


INTERRUPTED = """
import signal, sys
from importlib.abc import MetaPathFinder

class Interrupts(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "hetero_tui.cli_options":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell ignore it
sys.meta_path.insert(0, Interrupts())
sys.argv = ["hetero-tui", "probe"]
from hetero_tui.__main__ import main
main()
"""


def test_ctrl_c_before_a_command_is_read_is_a_line() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "hetero-tui: interrupted before anything was done\n")


def test_the_app_needs_a_terminal_with_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in ("latin-1", "ascii"):
        monkeypatch.setattr(sys, "__stderr__", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        with pytest.raises(UsageError, match=encoding):
            require_utf8()
    monkeypatch.setattr(sys, "__stderr__", io.TextIOWrapper(io.BytesIO(), encoding="utf8"))
    require_utf8()
