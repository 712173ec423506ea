"""What is told of an exception of the user's code: their own function and line, and what it says."""

from __future__ import annotations

import importlib.util
import linecache
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from remote_agent.training import job
from remote_agent.training.errors import Interrupted, JobError
from remote_agent.training.user_code import sending
from remote_agent.training.user_code.user_errors import LOSS, as_job_error, is_device_failure

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A user's own file, imported."""

    def imported(text: str) -> ModuleType:
        path = tmp_path / "my_job.py"
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location("my_job", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return imported


def told(where: str, function: Callable[..., Any], *arguments: Any) -> JobError:
    """The error that a call of the user's function leads to."""
    with pytest.raises(JobError) as raised:
        job.guard(where, function, *arguments)
    return raised.value


MODEL = """
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(128, 10)

        def forward(self, x):
            return self.head(x)


    class Job:
        def loss(self, model, batch):
            return model(batch).sum()
"""


def test_the_users_innermost_function_and_line_are_named_and_no_line_of_torchs_is_shown(load: Load) -> None:
    module = load(MODEL)
    error = told(LOSS, module.Job().loss, module.Net(), torch.zeros(32, 64))
    assert error.cause == (
        "loss, in forward of Net (my_job.py:12):"
        " RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x64 and 128x10)"
    )
    assert error.detail.splitlines() == [
        "my_job.py:17 in Job.loss",
        "    return model(batch).sum()",
        "my_job.py:12 in Net.forward",
        "    return self.head(x)",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x64 and 128x10)",
    ]


def test_what_is_called_while_a_slice_is_computed_is_named_by_the_users_outermost_function(load: Load) -> None:
    module = load(
        """
        class Points:
            def __getitem__(self, index):
                return {"x": 1}["y"]
        """
    )
    assert told(LOSS, module.Points().__getitem__, 17).cause == "__getitem__ of Points (my_job.py:4): KeyError: 'y'"
    said = told("__getitem__ of sample 17", module.Points().__getitem__, 17).cause
    assert said == "__getitem__ of sample 17 (my_job.py:4): KeyError: 'y'"


def test_what_an_exception_was_raised_from_is_shown_first(load: Load) -> None:
    module = load(
        """
        def decode(index):
            raise OSError("truncated")

        def sample(index):
            try:
                return decode(index)
            except OSError as error:
                raise ValueError(f"image {index} can't be read") from error
        """
    )
    error = told("__getitem__", module.sample, 3)
    assert error.cause == "__getitem__ (my_job.py:9): ValueError: image 3 can't be read"
    assert error.detail.splitlines() == [
        "my_job.py:7 in sample",
        "    return decode(index)",
        "my_job.py:3 in decode",
        '    raise OSError("truncated")',
        "OSError: truncated",
        "which led to:",
        "my_job.py:9 in sample",
        """    raise ValueError(f"image {index} can't be read") from error""",
        "ValueError: image 3 can't be read",
    ]


def test_text_that_would_change_the_terminal_is_cleaned(load: Load) -> None:
    module = load(
        r"""
        def loss():
            raise ValueError("bad \x1b[31mred\x1b[0m \x07 name\u202e\nsecond line")
        """
    )
    error = told(LOSS, module.loss)
    assert error.cause == "loss (my_job.py:3): ValueError: bad red   name "
    assert all(each.isprintable() for line in error.detail.splitlines() for each in line)
    assert "second line" in error.detail


@pytest.mark.parametrize(
    ("call", "said"), [("sys.exit(3)", "it called sys.exit(3)"), ("exit()", "it called sys.exit()")]
)
def test_a_job_that_exits_is_an_error_of_the_job(load: Load, call: str, said: str) -> None:
    error = told(LOSS, load(f"import sys\n\ndef loss():\n    {call}\n").loss)
    assert error.cause.startswith("loss")
    assert error.cause.endswith(said)
    assert "raise an exception" in error.hint


def test_an_interrupt_of_the_users_own_is_an_error_and_ctrl_c_is_not(load: Load) -> None:
    module = load("def loss(kind):\n    raise kind\n")
    assert "KeyboardInterrupt" in told(LOSS, module.loss, KeyboardInterrupt).cause
    with pytest.raises(Interrupted):
        job.guard(LOSS, module.loss, Interrupted)


def test_an_error_that_says_what_is_wrong_stays_as_it_is() -> None:
    known = JobError("the data is empty", hint="give some")
    assert as_job_error(LOSS, known) is known


def test_a_file_that_does_not_parse_is_shown_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "my_job.py").write_text("def loss(:\n    pass\n")
    with pytest.raises(JobError) as raised:
        job.load("my_job.py:Job", tmp_path)
    assert raised.value.cause == "importing my_job.py: SyntaxError: invalid syntax (my_job.py, line 1)"
    assert "def loss(:" in raised.value.detail


def test_lines_of_a_script_are_known_where_there_is_no_copy_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "beside_a_script.py"
    path.write_text("class Job:\n    def create_model(self):\n        raise ValueError('no')\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "script.py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    blob = sending.dumps(importlib.import_module("beside_a_script").Job())
    path.unlink()
    linecache.clearcache()  # as on another host
    assert "    raise ValueError('no')" in told("create_model", sending.loads(blob).create_model).detail.splitlines()


def test_of_a_library_s_model_the_layer_is_named_and_no_line_of_torch_is_shown() -> None:
    error = told(LOSS, torch.nn.Sequential(torch.nn.Linear(6, 8)), torch.zeros(2, 5))
    assert error.cause.startswith("loss: RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert error.detail is not None
    assert error.detail.splitlines()[0] == "in forward of Linear; no line of the job's own code was running"
    assert ".py:" not in error.detail
    assert ".py:" not in str(told(LOSS, torch.nn.functional.cross_entropy, torch.zeros(2, 3), torch.zeros(3)).detail)


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might ..."), True),
        (RuntimeError("HIP error: unknown error"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),  # a target that is too large
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (OSError("CUDA error: no such file"), False),
    ],
)
def test_an_error_of_a_device_is_told_apart_from_a_mistake_of_the_jobs(error: BaseException, failed: bool) -> None:
    assert is_device_failure(error) == failed


@pytest.mark.parametrize(
    ("where", "text", "hint"),
    [
        ("importing it", "import argparse\nargparse.ArgumentParser().parse_args(['--lr'])", "without a command line"),
        ("importing it", "raise SystemExit(2)", "must not end its process"),
        ("the optimizer's step", "assert False, 'SAM requires closure'", "without a closure"),
        ("loading the job", "import torch\ntorch.not_there", "the same versions on all hosts"),
        ("loading the job", "import no_such_library.part", "install it there, or put a module of your own beside"),
        ("create_data", "import torch.no_such_part", "correct the job's code"),
        (
            "loss",
            "import torch\nx = torch.ones(1, requires_grad=True).exp()\nx.backward()\nx.backward()",
            "leave backward() to the run",
        ),
        ("create_model", "raise AssertionError('Torch not compiled with CUDA enabled')", "leave .cuda()"),
        ("create_model", "import torch\ntorch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))", "adds up"),
    ],
)
def test_what_is_of_another_way_to_train_gets_its_own_hint(load: Load, where: str, text: str, hint: str) -> None:
    module = load("def call():\n" + textwrap.indent(text, "    "))
    assert hint in told(where, module.call).hint


def test_a_model_that_needs_the_data_is_told_that_it_comes_first(load: Load) -> None:
    module = load("""
    class Job:
        def create_data(self):
            self.vocabulary = {}
        def create_model(self):
            return len(self.vocabulary)
    class Sized:
        def __init__(self, width): ...
    """)
    hint = told("create_model", module.Job().create_model).hint
    assert "before create_data" in hint
    assert "make vocabulary in __init__" in hint
    with pytest.raises(JobError, match="width") as error:
        job.from_object("my_job.py:Sized", module.Sized)
    assert "job = Mine(128)" in error.value.hint


@pytest.mark.parametrize(
    ("where", "text", "call"),
    [
        (LOSS, "def loss(model, x, y): ...", "loss(model, batch)"),
        (
            LOSS,
            "def loss(outputs, targets):\n    return torch.nn.functional.cross_entropy(outputs, targets)",
            "loss(model, batch), where a batch is a tuple",
        ),
        ("create_optimizer", "def create_optimizer(model): ...", "create_optimizer(model, config)"),
        ("create_scheduler", "def create_scheduler(): ...", "create_scheduler(optimizer, config)"),
        (LOSS, "def loss(model, batch):\n    return model(batch)", ""),
        (LOSS, "from torch.nn.functional import cross_entropy as loss", "loss(model, batch), where a batch is a tuple"),
    ],
)
def test_a_function_with_other_arguments_is_told_how_it_is_called(load: Load, where: str, text: str, call: str) -> None:
    module = load("import torch\n" + text)
    said = told(where, getattr(module, where), lambda batch, other: None, (torch.zeros(2), torch.zeros(2))).hint
    assert said.startswith(f"the engine calls it as {call}") if call else said == "correct the job's code"
