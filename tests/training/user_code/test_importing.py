"""One file serves as a script and under ``hetero-tui train``, where ``train()`` and ``ray.init()`` do nothing."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray

from remote_agent.training import job
from remote_agent.training.errors import JobError
from remote_agent.training.user_code import importing

HEAD = """
from remote_agent.training import DistributedTrainer
class Factory:
    def create_model(self): ...
def make(name):
    return DistributedTrainer(model_factory=Factory(), data_loader=[name])
"""


def load(folder: Path, text: str, name: str = "job") -> Any:
    place = Path(tempfile.mkdtemp(dir=folder))  # two of one length, written in one second, have one byte code
    (place / "script.py").write_text(HEAD + text)
    return job.load(f"script.py:{name}", place).create_data()


def test_the_file_runs_up_to_where_it_trains_what_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "job = make('a')\ntry:\n    result = job.train()\nexcept Exception:\n    raise SystemExit\n1 / 0\n"
    assert load(tmp_path, text) == ["a"]
    assert "script.py:9: train() is left out" in capsys.readouterr().err


def test_a_job_that_is_defined_after_the_call_is_found(tmp_path: Path) -> None:
    assert load(tmp_path, "first = make('first').train(num_iterations=3)\nassert first is None\njob = make('b')\n") == [
        "b"
    ]


def test_a_call_in_a_function_ends_the_import_as_well(tmp_path: Path) -> None:
    assert load(tmp_path, "job = make('c')\ndef main():\n    print(job.train().final_loss)\nmain()\n1 / 0\n") == ["c"]


def test_a_script_that_ends_its_process_is_taken_once_its_job_is_there(tmp_path: Path) -> None:
    assert load(tmp_path, "import sys\njob = make('e')\nsys.exit(3)\n") == ["e"]
    with pytest.raises(JobError, match=r"sys.exit\(3\)"):
        load(tmp_path, "import sys\nsys.exit(3)\njob = make('e')\n")


def test_the_command_line_of_the_coordinator_is_not_the_scripts(tmp_path: Path) -> None:
    before = list(sys.argv)
    assert load(tmp_path, "import argparse, sys\nargparse.ArgumentParser().parse_args()\njob = make(sys.argv)\n") == [
        ["script.py"]
    ]
    assert sys.argv == before


def test_afterwards_a_script_trains_again(tmp_path: Path) -> None:
    init = ray.init
    assert load(tmp_path, "import ray\nray.init('auto')\njob = make('f')\njob.train()\n") == ["f"]
    assert not importing.is_importing()
    assert not ray.is_initialized()
    assert ray.init is init


def test_without_a_name_the_only_job_is_meant(tmp_path: Path) -> None:
    base = "class Base:\n    def create_model(self): ...\n    def create_data(self): return [1]\n"
    assert load(tmp_path, f"{base}mine = Base()\nmake('g').train()\n1 / 0\n", "") == [1]
    for text, said in (
        (f"{base}job = make('h')\n", "script.py has several jobs: Base, job"),
        ("from remote_agent.jobs.digits import Digits\n", "script.py has no job"),
    ):
        with pytest.raises(JobError, match=said):
            load(tmp_path, text, "")
    with pytest.raises(JobError, match="has no 'jbo'; did you mean 'job'"):
        load(tmp_path, "job = make('i')\n", "jbo")
