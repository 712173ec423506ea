"""What lay beside a job is there where its code runs: modules, packages, data by relative paths."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import sys
import sysconfig
import types
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import cloudpickle

from hetero_tui.runs.code import collect
from remote_agent.protocol import CLUSTER_MARK, JOB_ARCHIVE, PLANS
from remote_agent.training import job
from remote_agent.training.coordinator import sources
from remote_agent.training.errors import JobError
from remote_agent.training.user_code import sending
from remote_agent.training.user_code.user_errors import as_job_error
from tests.training.conftest import Launch

WAIT_S = 60.0

FILES = {
    "script.py": """
import os
import torch
from torch import nn
import helper
from parts import net

class Points:
    def __len__(self):
        return 48
    def __getitem__(self, index):
        import lazy
        value = float(open("data/points.csv").read().split(",")[index % 4])
        return torch.full((4,), value), lazy.label(value)

class Job:
    def create_model(self):
        return net.Net()
    def create_data(self):
        assert open("data/points.csv").read() == (helper.HERE / "data/points.csv").read_text()
        return Points()
    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.01)
    def loss(self, model, batch):
        return helper.error(model(batch[0]), batch[1])

from script_again import Again
""",
    "script_again.py": "from script import Job\nclass Again(Job):\n    pass\n",
    "helper.py": """
from pathlib import Path
from torch.nn.functional import mse_loss
HERE = Path(__file__).parent
def error(a, b):
    return mse_loss(a, b)
""",
    "lazy.py": "import torch\ndef label(value):\n    return torch.tensor([value])\n",
    "parts/__init__.py": "",
    "parts/net.py": """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)
    def forward(self, x):
        return self.body(x)
""",
    "data/points.csv": "1,2,3,4",
    "data/unsent.txt": "",
    "plugin.py": "",
}


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """A run's folder with an archive of FILES, but for what is left."""
    for name, text in FILES.items():
        path = tmp_path / "laptop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run = tmp_path / "run0"
    run.mkdir()
    code = collect(tmp_path / "laptop/script.py", [str(tmp_path / "laptop/data/points.csv")])
    (run / JOB_ARCHIVE).write_bytes(code.archive())
    return run


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """What ``work`` returns in a process of its own: entering a job's files changes the whole process."""
    mine, theirs = multiprocessing.get_context("fork").Pipe()

    def carry_out() -> None:
        try:
            theirs.send((True, work(*arguments)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test fails with it
            theirs.send((False, repr(error)))
        finally:
            os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=carry_out)
    process.start()
    assert mine.poll(WAIT_S)
    fine, answer = mine.recv()
    process.join()
    assert fine, answer
    return answer


def packed(folder: Path) -> tuple[bytes, bytes]:
    loaded = job.load("script.py:Again", folder)
    factory = sending.dumps(loaded.factory)
    return factory, bytes(cloudpickle.dumps(loaded.create_data()))


def used(blob: bytes, data: bytes, home: Path) -> dict[str, Any]:
    """As a worker of another host does."""
    os.environ[CLUSTER_MARK] = str(home)
    factory = sending.loads(blob)
    points = cloudpickle.loads(data)
    model = factory.create_model()
    x, y = points[1]
    return {
        "loss": float(factory.loss(model, (x, y)).detach()),
        "value": y.item(),
        "where": str(Path.cwd()),
        "lazy": sys.modules["lazy"].__file__,
        "path": sys.path.index(str(Path.cwd())) < sys.path.index(sysconfig.get_path("purelib")),
    }


def test_a_host_without_the_files_has_them_all_where_relative_paths_and_imports_find_them(
    sent: Path, tmp_path: Path
) -> None:
    home = tmp_path / "elsewhere"
    blob, data = apart(packed, sent)
    (sent / JOB_ARCHIVE).unlink()
    for _ in range(2):  # the second process of a host finds it unpacked
        answer = apart(used, blob, data, home)
        assert answer["where"] == str(home / "runs/run0/job")
        assert answer["lazy"] == str(home / "runs/run0/job/lazy.py")
        assert answer["value"] == 2.0
        assert answer["path"]
    assert [path.name for path in (home / "runs/run0").iterdir()] == ["job"], "no draft is left"


def test_a_plan_leaves_nothing_among_the_runs_of_a_host(sent: Path, tmp_path: Path) -> None:
    """`down` keeps the runs, and takes the plans away."""
    place = tmp_path / PLANS / "plan-1"
    place.parent.mkdir()
    sent.rename(place)
    blob, data = apart(packed, place)
    home = tmp_path / "elsewhere"
    assert apart(used, blob, data, home)["where"] == str(home / "plans/plan-1/job")
    assert [path.name for path in home.iterdir()] == ["plans"]


def advice_for(folder: Path) -> list[str]:
    job.load("script.py:Job", folder)

    def told(action: Callable[[], object]) -> str:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the user's code can raise anything
            return as_job_error("create_data", error).hint
        raise AssertionError("it is there")

    return [
        told(lambda: Path("data/unsent.txt").open()),
        told(lambda: Path("data/unsent.txt").resolve().read_text()),
        told(lambda: Path("/no/such").read_text()),
        told(lambda: 1 / 0),
    ]


def test_a_file_that_is_not_there_is_named_with_what_sends_it(sent: Path) -> None:
    hints = apart(advice_for, sent)
    assert hints[0].endswith("start the run with --with data/unsent.txt")
    assert hints[1] == hints[0]
    assert hints[2].startswith("correct the job")
    assert hints[3].startswith("correct the job")


def test_an_archive_that_can_not_be_unpacked_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / JOB_ARCHIVE).write_bytes(b"no archive")
    with pytest.raises(JobError, match="can't unpack the job's files"):
        job.load("job.py:Job", tmp_path)
    with zipfile.ZipFile(tmp_path / JOB_ARCHIVE, "w") as files:
        files.writestr("other.txt", "")
    with pytest.raises(JobError, match="can't unpack"):
        job.load("job.py:Job", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [JOB_ARCHIVE]


@pytest.mark.ray
def test_a_run_trains_with_code_and_data_from_beside_the_job(sent: Path, launch: Launch) -> None:
    run = launch("script.py:Job", "ab", num_iterations=6, batch_size=12)
    assert run.folder == sent
    assert run.finish()[0] == 0, run.events()[-1]
    assert run.of_kind("run_finished")[0]["steps"] == 6
    again = launch("script.py:Job", "ab", num_iterations=9, batch_size=12, resume=run)
    assert again.finish()[0] == 0, again.events()[-1]
    assert again.of_kind("run_finished")[-1]["steps"] == 9


def scripts_blob(folder: Path, text: str) -> bytes:
    """The bytes of a factory that uses a module beside the script which runs."""
    sys.path.insert(0, str(folder))
    sys.modules["__main__"].__file__ = str(folder / "script.py")
    (folder / "near_by.py").write_text(f"{text}\ndef near(): return STATE\n")
    (folder / "beside.py").write_text("import near_by\nclass Factory:\n    def loss(self): return near_by.near()\n")
    beside = __import__("beside")
    __import__("near_by").STATE = 2
    return sending.dumps(beside.Factory())


def test_modules_beside_a_script_go_to_workers_that_have_no_copy_of_them(tmp_path: Path) -> None:
    blob = apart(scripts_blob, tmp_path, "STATE = 1")
    assert apart(lambda: sending.loads(blob).loss()) == 2, "with what they hold at that moment"


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


def test_a_scripts_object_that_can_not_be_pickled_is_refused_with_the_ways_out() -> None:
    with closing(sqlite3.connect(":memory:")) as opened, pytest.raises(JobError) as caught:
        sending.dumps(Holder(opened))
    assert caught.value.cause == (
        "the job can't be sent to the workers: TypeError: cannot pickle 'sqlite3.Connection' object"
    )
    assert "where they are used first" in caught.value.hint
    assert "`hetero-tui train FILE.py:NAME`" in caught.value.hint


BESIDE = """
import functools, os, sqlite3, threading
import torch
from torch import nn
from torch.nn import functional

gelu, forward = functional.gelu, nn.Linear.forward
functional.gelu = lambda x: 10 * gelu(x)
nn.Linear.forward = lambda self, x: 2 * forward(self, x)
torch.set_float32_matmul_precision("high")
torch.set_default_dtype(torch.float64)
os.environ["OF_THE_FILE"] = "set"

LOCK, ROWS = threading.Lock(), sqlite3.connect(":memory:")
DRAWN = torch.rand(1).item()

@functools.cache
def cached(x):
    return x

@torch.jit.script
def same(x: torch.Tensor) -> torch.Tensor:
    return x

@torch.library.custom_op("mine::same", mutates_args=())
def operator(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

class Settings:
    words = 0

class Job:
    def create_model(self): return nn.Linear(1, 1)
    def create_data(self):
        self.words = Settings()
        self.words.count = 7
        return [(torch.ones(1), torch.ones(1))]
    def loss(self, model, batch):
        with LOCK:
            assert ROWS.execute("select 1").fetchone() == (1,)
            return cached(operator(same(functional.gelu(torch.tensor(float(self.words.count))))))
"""


def test_each_worker_imports_the_file_and_gets_the_state_of_the_job(tmp_path: Path) -> None:
    """Patches, flags and variables hold there, and what no pickle can hold is made there."""
    (tmp_path / "mine.py").write_text(BESIDE)

    def made() -> tuple[bytes, float]:
        loaded = job.load("mine.py:Job", tmp_path)
        loaded.create_data()
        return sending.dumps(loaded.factory), sys.modules["hetero_job_mine"].DRAWN

    blob, drawn = apart(made)

    def used() -> tuple[Any, ...]:
        for _ in range(2):  # as when a process was warmed up: the file is imported once
            factory = sending.loads(blob)
        linear, x = torch.nn.Linear(1, 1), torch.ones(1)
        ratio = linear(x).item() / (linear.weight + linear.bias).item()
        here = torch.get_float32_matmul_precision(), str(x.dtype), os.environ["OF_THE_FILE"]
        return (factory.loss(None, None).item(), ratio, *here, sys.modules["hetero_job_mine"].DRAWN)

    loss, ratio, *here, there = apart(used)
    assert (round(loss, 3), round(ratio, 3)) == (70.0, 2.0)
    assert here == ["high", "torch.float64", "set"]
    assert there == drawn, "its random numbers are the same in each process"


def test_what_a_job_gives_ray_itself_goes_by_value(tmp_path: Path) -> None:
    """A task of Ray Data runs in a process that has not imported the file."""
    (tmp_path / "mine.py").write_text(
        "import torch\ndef rows(batch): return 2 * batch\n"
        "class Job:\n    def create_model(self): ...\n    def create_data(self): return rows\n"
    )

    def made() -> bytes:
        return bytes(cloudpickle.dumps(sources.given_by(job.load("mine.py:Job", tmp_path), 0)))

    blob = apart(made)
    assert apart(lambda: cloudpickle.loads(blob)(2)) == 4


def test_code_that_names_modules_of_unusual_types_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = types.ModuleType("naming")
    module.__file__ = str(tmp_path / "naming.py")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "script.py"), raising=False)
    monkeypatch.setitem(sys.modules, "naming", module)
    code = "import torch\nclass Job:\n    def loss(self, model, batch):\n"
    code += "        torch.backends.cudnn.benchmark = True\n        return model.ops(torch.ones(self.classes))\n"
    exec(code, vars(module))
    try:
        sent = sending.dumps(module.Job())
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert type(sending.loads(sent)).__name__ == "Job"
