"""`stop` ends a script with all processes that it started."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from remote_agent import deadlines
from remote_agent.raw_ray import _Child

SCRIPT = """
import signal, subprocess, sys, time
code = "import signal, time; {ignore}; print('ready', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
open("pid", "w").write(str(child.pid))
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _handlers_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("ignore", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_stopped_script_leaves_no_process_of_its_own(
    tmp_path: Path, ignore: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "STOP_SECONDS", 1.0)
    (tmp_path / "script.py").write_text(SCRIPT.replace("{ignore}", ignore or "0"))
    child, grandchild = _Child(), tmp_path / "pid"

    def stop() -> None:
        end = time.monotonic() + 30
        while (not grandchild.exists() or not grandchild.read_text()) and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    child.run([sys.executable, "script.py"], tmp_path, os.environ, tmp_path / "log")
    pid = int(grandchild.read_text())
    try:
        left = psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        if left:
            os.kill(pid, signal.SIGKILL)
        assert not left
    except psutil.NoSuchProcess:
        pass
    assert child.stopped
