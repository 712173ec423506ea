"""The demo cleans up however it ends."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero_tui.demo import guardian
from hetero_tui.demo.machines import make_folder
from remote_agent.protocol import CLUSTER_MARK, short_folder
from tests.processes import has_ended

# A demo in short: guarded, with two daemons on a "host", of which one ignores SIGTERM. It prints their ids and waits.
DEMO = """
import asyncio, os, subprocess, sys
from pathlib import Path
from hetero_tui.demo.guardian import guarded

async def main(folder):
    async with guarded(folder):
        marked = dict(os.environ, HETERO_TUI_CLUSTER=str(folder / "fast" / ".hetero-tui" / "demo"))
        for script in ("exec sleep 60", "trap '' TERM; while :; do sleep 0.1; done"):
            print(subprocess.Popen(["sh", "-c", script], env=marked, start_new_session=True).pid, flush=True)
        sys.stdout.write("ready\\n"); sys.stdout.flush()
        await asyncio.sleep(60 if sys.argv[2] == "wait" else 0)

asyncio.run(main(Path(sys.argv[1])))
"""


def _eventually(condition, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process has told the kernel that it ignores a signal (proc(5))."""
    (mask,) = re.findall(r"^SigIgn:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_nothing_is_left_whether_the_demo_returns_or_is_killed(number):
    folder = make_folder()
    cluster = folder / "fast" / ".hetero-tui" / "demo"
    cluster.mkdir(parents=True)
    fallback = Path(short_folder(str(cluster)))  # where Ray's sockets go when the cluster's own path is too long
    fallback.mkdir()
    unmarked = subprocess.Popen(["sleep", "60"], env={**os.environ, CLUSTER_MARK: "/somewhere/else"})
    demo = subprocess.Popen(
        [sys.executable, "-c", DEMO, folder, "wait" if number else "end"], stdout=subprocess.PIPE, text=True
    )
    try:
        pids = [int(line) for line in iter(demo.stdout.readline, "ready\n")]
        if number:
            demo.send_signal(number)
        demo.wait(40)
        assert _eventually(lambda: not folder.exists())
        assert len(pids) == 2
        assert all(has_ended(pid) for pid in pids)
        assert not fallback.exists()
        assert unmarked.poll() is None
    finally:
        demo.stdout.close()
        unmarked.kill()
        unmarked.wait()


@pytest.mark.parametrize(
    "path", ["/", "/tmp", "/tmp/ht-demo-x/../..", "/home/ht-demo-abc", "/tmp/other", "/tmp/ht-demo-"]
)
def test_only_a_demos_own_folder_is_ever_removed(path):
    with pytest.raises(ValueError, match="is not a demo's folder"):
        guardian.check(Path(path))


def test_a_link_of_that_name_is_refused(tmp_path):
    link = Path(f"/tmp/ht-demo-{os.urandom(4).hex()}")
    link.symlink_to(tmp_path)
    try:
        with pytest.raises(ValueError, match="belongs to another user"):
            guardian.clean(link)
        assert tmp_path.exists()
    finally:
        link.unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process ignores")
async def test_an_interrupt_of_the_terminal_does_not_end_the_guardian():
    folder = make_folder()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hetero_tui.demo.guardian", folder, stdin=subprocess.PIPE
    )
    assert await asyncio.to_thread(
        _eventually, lambda: _ignores(process.pid, signal.SIGTERM)
    )  # the signal after SIGINT
    process.send_signal(signal.SIGINT)
    await asyncio.sleep(0.2)
    assert process.returncode is None
    process.stdin.close()
    assert await process.wait() == 0
    assert not folder.exists()
