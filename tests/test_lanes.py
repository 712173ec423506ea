"""Whoever ends the tests early leaves no cluster behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = """
import pathlib, time, pytest

@pytest.fixture(scope="session")
def cluster():
    yield
    time.sleep(2)  # what a teardown takes, longer than xdist leaves to a lane here
    pathlib.Path("gone").touch()

def test_on_it(cluster):
    pathlib.Path("begun").touch()
    time.sleep(600)
"""


@pytest.mark.parametrize("lanes", [0, 1])
def test_sigterm_ends_the_tests_with_their_fixtures(tmp_path: Path, lanes: int) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    impatient = "from xdist import workermanage\nworkermanage.NodeManager.EXIT_TIMEOUT = 0.5\n"
    (tmp_path / "conftest.py").write_text(impatient)
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-n", str(lanes), "-p", "tests.lanes", "-p", "no:cacheprovider", "."]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            end = time.monotonic() + 60
            while not (tmp_path / "begun").exists():
                assert time.monotonic() < end
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, said
    assert (tmp_path / "gone").exists(), said
