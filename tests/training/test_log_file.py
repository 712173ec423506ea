"""A process's log: each line once and with its time, no larger than allowed, whoever forks or fills the disk."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from remote_agent.log_lines import stamped
from remote_agent.protocol import CLUSTER_MARK
from remote_agent.training.shared import log_file
from remote_agent.training.shared.log_file import LogFile


def texts(path: Path) -> list[str]:
    return [text for _, text in stamped(path.read_text().splitlines(), None, 0.0)]


def run(text: str, log: Path, *, stdout_is_log: bool) -> str:
    """Run ``text`` with this log in a fresh process; what it wrote to another stdout."""
    head = "import sys; from pathlib import Path; from remote_agent.training.shared.output import OUTPUT\n"
    head += "OUTPUT.install(Path(sys.argv[1]))\n"
    with log.open("a") as file:
        done = subprocess.run(
            [sys.executable, "-c", head + textwrap.dedent(text), str(log)],
            stdout=file if stdout_is_log else subprocess.PIPE,
            stderr=file if stdout_is_log else subprocess.STDOUT,
            text=True,
            timeout=60,
            check=True,
        )
    return done.stdout or ""


SPEAKS = """
import logging, os
print("printed")
logging.getLogger("remote_agent.training.roster").info("decided")
logging.getLogger("a library").info("quiet")
logging.getLogger("a library").warning("loud")
os.write(1, b"from C\\n")
"""


def test_prints_and_the_engines_decisions_are_there_once_where_stdout_is_the_log(tmp_path: Path) -> None:
    log = tmp_path / "coordinator.log"
    run(SPEAKS, log, stdout_is_log=True)
    said = ["printed", "INFO remote_agent.training.roster: decided", "WARNING a library: loud", "from C"]
    assert texts(log) == said
    assert [line.startswith("20") for line in log.read_text().splitlines()] == [True, True, True, False]


def test_they_are_in_the_log_and_on_stdout_where_that_is_another_file(tmp_path: Path) -> None:
    log = tmp_path / "cpu.log"
    elsewhere = run(SPEAKS, log, stdout_is_log=False)
    assert texts(log) == ["printed", "INFO remote_agent.training.roster: decided", "WARNING a library: loud"]
    assert "printed" in elsewhere
    assert "decided" not in elsewhere


def test_a_log_does_not_grow_for_ever_and_what_c_prints_follows_it(tmp_path: Path) -> None:
    log = tmp_path / "coordinator.log"
    text = """
    import os
    from remote_agent.training.shared import log_file
    log_file.MAX_BYTES = 4000
    for number in range(1000):
        print(f"line {number}")
    os.write(2, b"from C\\n")
    """
    run(text, log, stdout_is_log=True)
    former = log.with_name("coordinator.log.1")
    kept = texts(former) + texts(log)
    assert len(kept) > 100
    assert kept == [*(f"line {number}" for number in range(1001 - len(kept), 1000)), "from C"]
    assert max(log.stat().st_size, former.stat().st_size) < 4100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["coordinator.log", "coordinator.log.1"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_costs_the_line_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "cpu.log").symlink_to("/dev/full")
    LogFile(tmp_path / "cpu.log").write("lost")


def test_a_process_of_no_cluster_of_ours_has_no_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CLUSTER_MARK, raising=False)
    assert log_file.place("digits-1", "cpu") is None
    monkeypatch.setenv(CLUSTER_MARK, str(tmp_path))
    assert log_file.place("digits-1", "cpu") == tmp_path / "runs" / "digits-1" / "cpu.log"
    assert log_file.place("", "cpu") is None
