"""``hetero-tui demo`` without a terminal: it trains for real, says how well, and leaves nothing, however it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from remote_agent.protocol import CLUSTER_MARK

pytestmark = pytest.mark.ray
CLEANED_WITHIN = 60.0


def demo(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hetero_tui", "demo", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
    )


def folders() -> set[Path]:
    return set(Path("/tmp").glob("ht-*"))


def listening() -> set[int]:
    """TCP ports of this computer that something listens on."""
    found = psutil.net_connections("tcp")
    return {connection.laddr.port for connection in found if connection.status == psutil.CONN_LISTEN}


def marked_processes(inside: set[Path]) -> list[psutil.Process]:
    """Processes of this user that belong to a cluster in one of the folders."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(CLUSTER_MARK, "")
        except psutil.Error:
            continue
        if any(mark.startswith(f"{folder}/") for folder in inside):
            found.append(process)
    return found


def wait_for_line(process: subprocess.Popen[str], wanted: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if wanted in line:
            return lines
    raise AssertionError(f"{wanted!r} never came: {''.join(lines)}")


def gone_within(seconds: float, nothing_left: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if nothing_left():
            return True
        time.sleep(0.2)
    return nothing_left()


def test_it_trains_digits_to_95_percent_and_leaves_no_process_port_or_folder() -> None:
    before, taken = folders(), listening()
    process = demo("--set", "num_iterations=100")  # 96.9% or more; all 150 are in tests/jobs/test_ready_jobs.py
    first = wait_for_line(process, "cluster demo-")
    ours = folders() - before
    assert ours, "the machines' homes lie there while it runs"
    rest, _ = process.communicate(timeout=240)
    output = "".join(first) + rest
    assert process.returncode == 0, output
    accuracy = re.search(r"test accuracy: ([\d.]+)%", output)
    assert accuracy is not None, output
    assert float(accuracy[1]) >= 95.0
    assert "\x1b" not in output
    assert marked_processes(ours) == []
    assert not (folders() & ours)
    assert not (listening() - taken) & set(range(6389, 6399))


@pytest.mark.parametrize(
    ("number", "once"), [(signal.SIGTERM, " is up"), pytest.param(signal.SIGKILL, "step ", marks=pytest.mark.long)]
)
def test_killed_while_it_starts_or_trains_it_leaves_nothing(number: signal.Signals, once: str) -> None:
    before = folders()
    process = demo("--chaos", "--set", "num_iterations=100000")
    lines = wait_for_line(process, once)
    ours = folders() - before
    assert marked_processes(ours), "".join(lines)
    process.send_signal(number)
    rest, _ = process.communicate(timeout=CLEANED_WITHIN)
    if number == signal.SIGTERM:
        assert process.returncode == 130, rest
    assert gone_within(CLEANED_WITHIN, lambda: not marked_processes(ours) and not (folders() & ours))
