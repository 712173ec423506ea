"""A job and its settings as a user gives them: what is taken, and that mistakes are found before anything starts."""

import os
from pathlib import Path

import pytest

from hetero_tui.errors import OrderError
from hetero_tui.runs.order import parse_job, parse_settings, read_changes, read_order


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "My Model.py"
    path.touch()
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


def test_a_pipe_is_not_waited_for_and_not_called_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert f"{tmp_path}/pipe.py is not a Python file -> a JOB is one of" in refusal(f"{tmp_path}/pipe.py:job")


def test_a_misspelled_file_gets_the_nearest(file: Path) -> None:
    assert f"did you mean '{file}:job'?" in refusal(f"{file.with_suffix('')}:job")
    assert "did you mean 'My Model.py'?" in refusal(f"{file.parent}/MyModel.py:job")
    assert "did you mean" not in refusal(f"{file.parent}/nofile.py:job")
    (file.parent / "unet.py").touch()
    assert "did you mean" not in refusal(f"{file.parent}/test.py:job"), "all end in .py"


def test_what_only_the_head_knows_is_left_to_it(file: Path) -> None:
    order = read_order(str(file), ["lr=0.1", "depth=deep"])
    assert (order.job.name, dict(order.settings)) == ("", {"lr": "0.1", "depth": "deep"})
    with pytest.raises(OrderError) as error:
        read_order(f"{file}:job", ["num_iterations=many", "codec=int9", "num_gpu_workers=1", "depth=deep"])
    assert len(error.value.mistakes) == 3
    assert "--set num_iterations=many: expected a whole number" in str(error.value)


def test_a_setting_that_a_ready_jobs_default_contradicts_is_refused() -> None:
    for pair, said in (("quantize=nf4", "set lora_rank=16"), ("early_stopping=3", "needs keep_best=METRIC")):
        with pytest.raises(OrderError, match=said):
            read_order("text", [pair])


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
