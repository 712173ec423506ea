"""A worker whose device has failed ends, since a new process may be able to use the device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from remote_agent.current_call import last_call

PROGRAM = """
import sys
from pathlib import Path
from remote_agent.training.user_code.user_errors import as_job_error
from remote_agent.current_call import HERE

def loss():
    raise RuntimeError("CUDA error: unspecified launch failure\\nCUDA kernel errors might be reported later.")

def step():
    try:
        loss()
    except RuntimeError as error:
        raise as_job_error("loss", error) from error

if len(sys.argv) > 1:
    HERE.open(Path(sys.argv[1]), "key")
HERE.slice(12, 1)
HERE.enter("loss", 417, 1)
step()
"""


def test_a_worker_whose_device_failed_ends_and_says_why(tmp_path: Path) -> None:
    program = tmp_path / "my_job.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")
    words = last_call(tmp_path, "key")
    assert words is not None
    assert words.place is not None
    assert (words.place.step, words.place.function, words.place.sample) == (12, "loss", 417)
    assert words.how == "CUDA error: unspecified launch failure"
    assert [function for _, _, function in words.calls] == ["step", "loss"]


def test_without_a_page_a_failed_device_is_an_error_of_the_job(tmp_path: Path) -> None:
    program = tmp_path / "my_job.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert "JobError: step, in loss (my_job.py:8): RuntimeError: CUDA error" in done.stderr
