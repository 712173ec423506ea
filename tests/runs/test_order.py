"""A job and its settings as a user gives them: what is taken, and that mistakes are found before anything starts."""

import ast
import os
from pathlib import Path

import pytest

from hetero_tui.errors import OrderError
from hetero_tui.runs.order import parse_job, parse_settings, read_changes, read_order
from hetero_tui.runs.outline import outline

JOB = """
from remote_agent.training import DistributedTrainer, TrainingConfig
class Base:
    def create_model(self): ...
class Whole(Base):
    def create_data(self): ...
class Factory(Base):
    def loss(self, model, batch): ...
class Unknown(Elsewhere):
    pass
def function(): ...
job = DistributedTrainer(model_factory=Factory(), data_loader=[], config=TrainingConfig(batch_size=8))
whole = Whole()
number = 3
if __name__ == "__main__":
    late = job.train()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "My Model.py"
    path.write_text(JOB)
    return path


def refusal(text: str) -> str:
    with pytest.raises(OrderError) as error:
        parse_job(text)
    return str(error.value)


def test_a_ready_job_is_its_name() -> None:
    assert parse_job("digits").reference == "digits"


def test_a_job_of_the_users_is_a_file_and_a_name(file: Path) -> None:
    job = parse_job(f"{file}:job")
    assert (job.reference, job.slug, job.file) == ("My Model.py:job", "my-model", file)


@pytest.mark.parametrize("name", ["job", "whole", "Whole", "Unknown"])
def test_what_can_be_a_job_is_taken(file: Path, name: str) -> None:
    assert parse_job(f"{file}:{name}").name == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("digit", "did you mean 'digits'?"),
        ("", "no job ''"),
        (":", "no job ':'"),
        ("a.py", "no file a.py"),
        ("a.py:", "no file a.py"),
        ("a.py:not a name", "'not a name' can't be a name"),
        ("/no/such.py:Job", "no file /no/such.py"),
        ("digits:x", "did you mean 'digits'?"),
        ("a.ipynb:job", "no job 'a.ipynb:job'"),
        ("/tmp:job", "/tmp is a folder"),
    ],
)
def test_anything_else_is_refused_with_what_is_possible(text: str, said: str) -> None:
    assert said in refusal(text)
    assert "digits, text" in refusal(text)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jbo", "has no 'jbo'; did you mean 'job'?"),
        ("other", "it defines: Base, Whole, Factory, Unknown, function, job, whole, number"),
        ("late", "My Model.py:16: 'late' is defined under `if __name__ == \"__main__\":` only"),
        ("function", "My Model.py:11: 'function' is a function"),
        ("Factory", "My Model.py:7: 'Factory' has no create_data"),
        ("number", "My Model.py:14: 'number' is 3"),
    ],
)
def test_a_name_that_is_no_job_is_refused_with_its_line(file: Path, name: str, said: str) -> None:
    assert said in refusal(f"{file}:{name}")


def test_a_pipe_is_not_waited_for_and_not_called_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert f"{tmp_path}/pipe.py is not a Python file -> a JOB is one of" in refusal(f"{tmp_path}/pipe.py:job")


def test_a_misspelled_file_gets_the_nearest(file: Path) -> None:
    assert f"did you mean '{file}:job'?" in refusal(f"{file.with_suffix('')}:job")
    assert "did you mean 'My Model.py'?" in refusal(f"{file.parent}/MyModel.py:job")
    assert "did you mean" not in refusal(f"{file.parent}/nofile.py:job")
    (file.parent / "unet.py").touch()
    assert "did you mean" not in refusal(f"{file.parent}/test.py:job"), "all end in .py"


def test_a_file_that_is_not_python_is_refused_with_its_line(file: Path) -> None:
    file.write_text("import torch\njob = (\n")
    assert "My Model.py:2: '(' was never closed: job = (" in refusal(f"{file}:job")
    file.write_bytes(b"job = '\0'\n")
    assert "My Model.py" in refusal(f"{file}:job")


def test_without_a_name_the_only_job_is_meant(file: Path) -> None:
    assert "has several jobs: job, whole" in refusal(str(file))  # the class of `whole` is the same job
    file.write_text(JOB.replace("whole = Whole()", ""))
    assert "has several jobs: Whole, job" in refusal(str(file))
    file.write_text("from remote_agent.training import DistributedTrainer\nmine = DistributedTrainer()\n")
    assert parse_job(str(file)).name == "mine"
    file.write_text("mine = make()\n")
    assert "My Model.py:Name: mine" in refusal(str(file))
    assert "a class with create_model() and create_data()" in refusal(str(file))
    file.write_text("if '__main__' == __name__:\n    job = DistributedTrainer()\n")
    assert "defines job (line 2) under `if __name__" in refusal(str(file))


@pytest.mark.parametrize(
    "text",
    [
        "from elsewhere import *",
        "globals()['job'] = 1",
        "def __getattr__(name): ...",
        "def make():\n    global job\n    job = 1",
        "try:\n    job = a()\nexcept E:\n    pass",
        "with a() as job:\n    pass",
        "for job in a():\n    pass",
        "import a as job",
        "(job := a())",
        "if x:\n    pass\nelse:\n    job, y = a()",
        "match x:\n    case [job]:\n        pass",
        "job: object = a()",
    ],
)
def test_a_name_that_only_running_the_file_would_tell_is_left_to_the_host(file: Path, text: str) -> None:
    file.write_text(text + "\n")
    assert parse_job(f"{file}:job").name == "job"


@pytest.mark.parametrize(
    "text",
    [
        "class Job:\n    create_model = create_data = print",
        "class Job(B):\n    pass",
        "@made\nclass Job:\n    pass",
        "class Job:\n    def __init__(self):\n        self.create_model = self.create_data = print",
        "class Job(metaclass=M):\n    pass",
    ],
)
def test_a_class_whose_parts_do_not_stand_there_as_methods_is_taken(text: str) -> None:
    assert outline(ast.parse(text)).verdict("Job")[0] != "no job"


def test_settings_in_the_file_and_on_the_command_line_are_refused_together(file: Path) -> None:
    file.write_text(JOB.replace("batch_size=8", "batch_size=2.5, learning_rte=1, seed=other, rebalance='no'"))
    with pytest.raises(OrderError) as error:
        read_order(f"{file}:job", ["num_iterations=many", "codec=int9", "num_gpu_workers=1"])
    assert len(error.value.mistakes) == 6
    assert f"{file}:12: TrainingConfig: learning_rte: no such setting; did you mean 'learning_rate'?" in str(
        error.value
    )
    assert "--set num_iterations=many: expected a whole number" in str(error.value)


def test_a_setting_that_a_ready_jobs_default_contradicts_is_refused() -> None:
    for pair, said in (("quantize=nf4", "set lora_rank=16"), ("early_stopping=3", "needs keep_best=METRIC")):
        with pytest.raises(OrderError, match=said):
            read_order("text", [pair])


MADE = """
from dataclasses import dataclass
from elsewhere import build


@dataclass(frozen=True)
class Mine:
    depth: int = 4


class Job:
    settings = Mine()
    create_model = create_data = print


def make(size=3):
    job = Job()
    return job


def twice():
    return make(2)


def changed():
    job = Job()
    job.settings = build()
    return job


def given(Job):
    return Job()


def one_of(size):
    if size:
        return Job()
    return build()


job = make()
again = twice()
other = changed()
passed = given(build)
some = one_of(1)
outside = build()
"""


@pytest.mark.parametrize("name", ["other", "passed", "some", "outside"])
def test_settings_that_only_running_the_file_would_tell_are_left_to_the_host(file: Path, name: str) -> None:
    file.write_text(MADE)
    assert read_order(f"{file}:{name}", ["width=2", "depth=2", "size=3"]).job.is_open is True


@pytest.mark.parametrize("pair", ["lora_targets=q_proj", "quantize=nf4"])
def test_settings_that_do_not_go_with_a_ready_jobs_own_are_refused(pair: str) -> None:
    given = ["model=a", "data=b"]
    with pytest.raises(OrderError, match="set lora_rank=16"):
        read_order("hf-lm", [*given, pair])
    assert read_order("hf-lm", [*given, pair, "lora_rank=4"]).settings["lora_rank"] == "4"


def test_a_run_goes_on_with_other_settings_where_that_contradicts_nothing() -> None:
    assert read_changes(["learning_rate=1e-4", "num_iterations=500"]) == {
        "learning_rate": "1e-4",
        "num_iterations": "500",
    }
    with pytest.raises(OrderError) as error:
        read_changes(["seed=1", "batch_size=8", "learning_rate=no", "oops", "learnin_rate=1"])
    assert len(error.value.mistakes) == 5
    assert "--set seed: a run keeps it from its start; for another value start a new run" in str(error.value)
    assert "did you mean 'learning_rate'?" in str(error.value)
    assert "resume run: " in str(read_changes_refusal(["seed=1"]))
    assert "num_iterations, epochs, learning_rate" in str(error.value)


def read_changes_refusal(pairs: list[str]) -> OrderError:
    with pytest.raises(OrderError) as error:
        read_changes(pairs)
    return error.value


def test_settings_are_split_at_the_first_equals_sign_and_all_wrong_ones_named() -> None:
    assert parse_settings(["a=1", "b=x=y", "oops", "c=", "=3"]) == ({"a": "1", "b": "x=y", "c": ""}, ["oops", "=3"])
    with pytest.raises(OrderError) as error:
        read_order("digits", ["seed=1", "oops", "=3", "seeds=1"])
    assert len(error.value.mistakes) == 3


@pytest.mark.parametrize("pair", ["evaluate_every=10", "keep_best=val_loss", "early_stopping=3"])
@pytest.mark.parametrize("job", ["digits", "text"])
def test_a_setting_that_needs_validation_data_is_refused_of_a_ready_job_without(job: str, pair: str) -> None:
    with pytest.raises(OrderError, match=f"--set {pair}: the job has no validation data"):
        read_order(job, [pair, "keep_best=val_loss"])
