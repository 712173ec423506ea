"""The head imports a job and says what it is; a mistake is told before Ray starts."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hetero_tui.errors import OrderError
from hetero_tui.events import ClusterState
from hetero_tui.inventory import Host, Inventory
from hetero_tui.runs.code import collect
from hetero_tui.runs.description import described
from hetero_tui.runs.order import Order, read_order
from hetero_tui.runs.sweep import read_sweep
from hetero_tui.session import Session
from hetero_tui.ui import train_form
from remote_agent.describe import describe
from remote_agent.protocol import JobQuestion

FILE = '''
from dataclasses import dataclass
from typing import Annotated
import beside
from remote_agent.kinds import Range
from remote_agent.training import TrainingConfig

@dataclass(frozen=True)
class Mine:
    """Of this job.

    Attributes:
        depth: layers, ``2`` at
            least.
    """
    depth: Annotated[int, Range(least=2)] = 2
    path: str = "points.csv"

class Job:
    config = TrainingConfig(num_iterations=60)
    settings = Mine(depth=4)
    def create_model(self): ...
    def create_data(self): ...
'''


@pytest.fixture
async def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Session]:
    """A session on this computer, whose home is empty and where nothing runs."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "home").mkdir()
    inventory = Inventory(cluster=f"none-{secrets.token_hex(4)}", hosts=(Host(name="laptop", connection="local"),))
    async with Session(inventory, tmp_path / "inventory.yaml", ledger_folder=tmp_path / "ledger") as opened:
        await opened.probe()
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "code/own.py"
    path.parent.mkdir()
    path.write_text(FILE)
    (path.parent / "beside.py").write_text("print('{is imported}')\n")
    return path


async def asked(session: Session, order: Order) -> Order:
    assert order.code is not None
    return await described(session._fleet, order, order.code.archive(), lambda *_: None)


async def refusal(session: Session, order: Order) -> OrderError:
    with pytest.raises(OrderError) as caught:
        await asked(session, order)
    assert session.state.cluster_state is ClusterState.DOWN
    return caught.value


async def test_the_head_names_the_only_job_and_its_settings(session: Session, file: Path) -> None:
    order = await asked(session, read_order(str(file), ["lr=0.1", "depth=3"]))
    assert order.job.reference == "own.py:Job"
    assert order.settings == {"learning_rate": "0.1", "depth": "3"}
    shown = {each.name: each for each in train_form.settings_of(str(file))}
    assert next(iter(shown)) == "depth"
    assert (shown["depth"].default, shown["depth"].help) == ("4", "layers, 2 at least. (int, at least 2)")
    assert shown["num_iterations"].default == "60"
    place = Path.home() / ".hetero-tui" / session.inventory.cluster
    assert not any((place / "plans").iterdir())
    (place / "agent/run").write_text("exit 1")
    assert await asked(session, read_order(str(file), ["lr=0.1", "depth=3"])) == order, "it is known"


async def test_every_mistake_in_the_settings_comes_at_once(session: Session, file: Path) -> None:
    error = await refusal(session, read_order(f"{file}:Job", ["depth=1", "pth=x"]))
    assert error.mistakes == ("--set depth=1: must be at least 2", "--set pth: no such setting; did you mean 'path'?")
    order = read_sweep(f"{file}:Job", ["depth=0..4", "learnin_rate=1..2"], 4)
    said = " ".join((await refusal(session, order)).mistakes)
    assert "--param depth=0: must be at least 2" in said
    assert "did you mean 'learning_rate'?" in said


async def test_a_mistake_in_the_file_is_told_before_ray_starts(session: Session, file: Path) -> None:
    (file.parent / "beside.py").write_text("x = (")
    with pytest.raises(OrderError) as caught:
        await session.launch(read_order(f"{file}:Job", []))
    assert "'(' was never closed (beside.py, line 1)" in caught.value.mistakes[0]
    assert session.state.cluster_state is ClusterState.DOWN
    report = await session.down()
    assert report.leftovers == ()


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (f"import no_such_library\n{FILE}", "Job", "No module named 'no_such_library'"),
        (FILE, "Jbo", "own.py has no 'Jbo'; did you mean 'Job'?"),
        (FILE, "Mine", "is an object of Mine, and has no create_model and no create_data"),
        (FILE.replace("def create_data(self)", "def evaluate(self)"), "Job", "has no create_data"),
        (FILE + "    def check(self, config): raise OSError('no folder')\n", "Job", "OSError: no folder"),
    ],
)
def test_why_a_job_can_not_be_trained(tmp_path: Path, text: str, name: str, said: str) -> None:
    (tmp_path / "own.py").write_text(text.replace("import beside\n", ""))
    found = describe(tmp_path, JobQuestion(job=f"own.py:{name}", settings={}))
    assert said in found.failure
    assert found.hint


def test_a_file_that_was_never_described_shows_the_engines_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "new.py").touch()
    assert train_form.settings_of(f"{tmp_path}/new.py:Job") == train_form.settings()
    assert [*collect(tmp_path / "new.py").files] == ["new.py"]
