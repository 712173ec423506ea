"""Settings that a job declares are filled by `--set`: checked on the laptop by the text, on the host by the class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from hetero_tui.errors import OrderError
from hetero_tui.runs.order import read_order
from hetero_tui.ui import train_form
from remote_agent.errors import ConfigError
from remote_agent.kinds import Range, Required
from remote_agent.settings import TrainingConfig
from remote_agent.training import job as jobs
from remote_agent.training.errors import JobError

FILE = '''
from dataclasses import dataclass, replace

@dataclass(frozen=True)
class Mine:
    """Of this job.

    Attributes:
        depth: layers, ``2`` at
            least.
    """
    depth: int = 2
    path: str = "points.csv"
    wide: bool = False
    rate: "Annotated[float, Range(above=0)]" = 1.0

class Job:
    settings = Mine(depth=4)
    def create_model(self): ...
    def create_data(self): ...

class Inherited(Elsewhere):
    def create_model(self): ...
    def create_data(self): ...
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(FILE)
    return path


def test_the_laptop_reads_them_from_the_text(file: Path) -> None:
    order = read_order(f"{file}:Job", ["depth=3", "wide=true", "rate=2", "seed=1"])
    assert [(own.name, own.default) for own in order.job.own] == [
        ("depth", "4"),
        ("path", "points.csv"),
        ("wide", "false"),
        ("rate", "1.0"),
    ]
    (depth, *_) = train_form.settings_of(f"{file}:Job")
    assert (depth.name, depth.default, depth.help) == ("depth", "4", "layers, 2 at least.")


def test_every_mistake_comes_at_once_before_anything_starts(file: Path) -> None:
    with pytest.raises(OrderError) as caught:
        read_order(f"{file}:Job", ["depth=deep", "wide=perhaps", "pth=x", "seed=1.5"])
    assert [mistake.partition(";")[0] for mistake in caught.value.mistakes] == [
        "--set depth=deep: expected a whole number",
        "--set wide=perhaps: expected true or false",
        "--set pth: no such setting",
        "--set seed=1.5: expected a whole number",
    ]
    assert "did you mean 'path'?" in caught.value.mistakes[2]


def test_what_only_the_host_knows_is_left_to_it(file: Path) -> None:
    assert read_order(f"{file}:Inherited", ["anything=1"]).job.is_open


@dataclass(frozen=True)
class Own:
    model: Annotated[str, Required("a folder")] = ""
    depth: Annotated[int, Range(least=1)] = 2


class Job:
    settings: Any = Own()

    def create_model(self) -> None: ...

    def create_data(self) -> None: ...


def test_the_host_fills_them_and_the_configuration() -> None:
    made = jobs.from_object("own", Job)
    config = jobs.configured(made, {"model": "here", "depth": "5", "batch_size": "8"})
    assert (made.factory.settings, config.batch_size) == (Own("here", 5), 8)
    assert Job.settings == Own(), "it is of this run alone"


@pytest.mark.parametrize(
    ("own", "given", "strategy"),
    [
        (None, {}, "auto"),
        (TrainingConfig(batch_size=8), {}, "auto"),
        (TrainingConfig(strategy="sync"), {}, "sync"),
        (TrainingConfig(strategy="local_sgd"), {"strategy": "allreduce"}, "allreduce"),
        (None, {"strategy": "local_sgd"}, "local_sgd"),
    ],
)
def test_where_neither_order_nor_job_names_a_strategy_the_planner_chooses(
    own: TrainingConfig | None, given: dict[str, str], strategy: str
) -> None:
    made = replace(jobs.from_object("own", Job), config=own)
    assert jobs.configured(made, {"model": "here", **given}).strategy == strategy


def test_the_host_names_every_mistake_and_what_is_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        jobs.configured(jobs.from_object("own", Job), {"depth": "0", "batch_size": "x"})
    assert caught.value.mistakes == (
        "depth=0: must be at least 1",
        "batch_size=x: expected a whole number",
        "model: has to be given: a folder",
    )


@pytest.mark.parametrize(("settings", "said"), [({"a": 1}, "are a dict"), (Own, "are a type")])
def test_settings_that_are_no_object_of_a_dataclass_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(JobError, match=said):
        jobs.configured(jobs.from_object("own", type("Other", (Job,), {"settings": settings})), {})


def test_a_setting_of_the_engines_name_is_refused() -> None:
    @dataclass(frozen=True)
    class Clash:
        seed: int = 1

    with pytest.raises(JobError, match="'seed' is called as one of the engine's"):
        jobs.configured(jobs.from_object("own", type("Other", (Job,), {"settings": Clash()})), {})


def test_the_form_shows_the_values_that_the_job_itself_has(tmp_path: Path) -> None:
    def shown(job: str) -> dict[str, str]:
        return {each.name: each.default for each in train_form.settings_of(job)}

    ready = shown("digits")
    assert (ready["num_iterations"], ready["batch_size"], ready["seed"]) == ("150", "256", shown("nothing")["seed"])
    assert shown("hf-lm")["schedule"] == "cosine"
    file = tmp_path / "own.py"
    file.write_text(
        "from remote_agent.training import TrainingConfig\n\n\n"
        "class Job:\n    config = TrainingConfig(num_iterations=60)\n\n"
        "    def create_model(self): ...\n\n"
        "    def create_optimizer(self, model, config): ...\n\n"
        "    def create_data(self): ...\n"
    )
    assert shown(f"{file}:Job")["num_iterations"] == "60"
