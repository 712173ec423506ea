"""Settings that a job declares are filled by `--set`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest

from hetero_tui.ui import train_form
from remote_agent.errors import ConfigError
from remote_agent.kinds import Range, Required
from remote_agent.settings import TrainingConfig
from remote_agent.training import job as jobs
from remote_agent.training.errors import JobError


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


def test_the_form_shows_the_values_that_a_ready_job_has() -> None:
    def shown(job: str) -> dict[str, str]:
        return {each.name: each.default for each in train_form.settings_of(job)}

    ready = shown("digits")
    assert (ready["num_iterations"], ready["batch_size"], ready["seed"]) == ("150", "256", shown("nothing")["seed"])
    assert shown("hf-lm")["schedule"] == "cosine"
