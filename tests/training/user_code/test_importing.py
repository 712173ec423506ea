"""One file serves as a script and under ``hetero-tui train``, where ``train()`` is inert."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from remote_agent.training import DistributedTrainer, job
from remote_agent.training.errors import JobError
from remote_agent.training.user_code import inert

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
    assert load(tmp_path, "first = make('first').train(num_iterations=3)\nprint(first)\njob = make('b')\n") == ["b"]


def test_a_call_in_a_function_ends_the_import_as_well(tmp_path: Path) -> None:
    assert load(tmp_path, "job = make('c')\ndef main():\n    print(job.train().final_loss)\nmain()\n1 / 0\n") == ["c"]


@pytest.mark.parametrize(
    "use", ["r.final_loss", "r['loss']", "list(r)", "len(r)", "bool(r)", "float(r)", "hasattr(r, 'model')"]
)
def test_a_result_that_is_used_before_the_job_is_there_says_what_to_do(tmp_path: Path, use: str) -> None:
    with pytest.raises(JobError) as raised:
        load(tmp_path, f"r = make('first').train()\n{use}\njob = make('d')\n")
    assert raised.value.cause == (
        "the result of train() at script.py:7 is used, and train() trains nothing under `hetero-tui train`"
    )
    assert "__main__" in raised.value.hint


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
    load(tmp_path, "job = make('f')\njob.train()\n")
    assert not inert.applies()
    assert isinstance(inert.NoResult("x.py:1"), inert.NoResult)
    assert DistributedTrainer.train is not None
