"""Settings that a job leaves out are told before anything starts; a sweep over one is refused."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import optimizer_check
from remote_agent.training.coordinator.request import Request
from remote_agent.training.errors import JobError
from remote_agent.training.job import Job

MODEL = nn.Linear(2, 2)


class Default:
    """Neither an optimizer nor a scheduler of its own."""


class FixedRate:
    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)


class UsesRate:
    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate)


class UsesAll:
    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Any:
        return torch.optim.SGD(model.parameters(), lr=asdict(config)["learning_rate"])


class RateOfScheduler(FixedRate):
    def create_scheduler(self, optimizer: Any, config: TrainingConfig) -> Any:
        steps = config.num_iterations
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=config.learning_rate, total_steps=steps)


class WarmsUp(UsesRate):
    def create_scheduler(self, optimizer: Any, config: TrainingConfig) -> Any:
        whole = replace(config, num_iterations=5)
        return torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=whole.warmup_steps)


class GoesByValidation(UsesRate):
    def create_scheduler(self, optimizer: Any, config: TrainingConfig) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")


def request(factory: Any, config: TrainingConfig, **more: Any) -> Request:
    made = Job("test", factory, list)
    return Request(run="r", job=made, config=config, devices=(), server_host="", host="", folder=Path(), **more)


@pytest.mark.parametrize(
    ("factory", "idle"),
    [
        (Default(), []),
        (FixedRate(), ["learning_rate"]),
        (UsesRate(), []),
        (UsesAll(), []),
        (RateOfScheduler(), ["schedule", "warmup_steps"]),
        (WarmsUp(), []),
    ],
)
def test_a_setting_that_the_jobs_own_functions_leave_out_is_told(factory: Any, idle: list[str]) -> None:
    names = ("learning_rate", "schedule", "warmup_steps", "clip_norm")
    asked = request(factory, TrainingConfig(), given=names)
    said = optimizer_check.check(asked, MODEL).idle
    assert [text.partition("=")[0] for text in said] == idle
    assert all("has no effect: the job's create_" in text for text in said)
    assert optimizer_check.check(replace(asked, given=()), MODEL).idle == ()


def test_what_the_job_or_script_itself_sets_is_told_too() -> None:
    asked = request(FixedRate(), replace(TrainingConfig(learning_rate=0.5), num_iterations=3))
    assert [text.partition("=")[0] for text in optimizer_check.check(asked, MODEL).idle] == ["learning_rate"]


@pytest.mark.parametrize(
    ("settings", "idle"),
    [
        ({"local_steps": 5, "strategy": "auto"}, []),
        ({"outer_momentum": 0.5, "strategy": "local_sgd"}, ["outer_momentum"]),
        ({"outer_momentum": 0.5, "strategy": "local_sgd", "outer": "nesterov"}, []),
        ({"lora_alpha": 8.0}, ["lora_alpha"]),
        ({"lora_alpha": 8.0, "lora_rank": 4}, []),
    ],
)
def test_a_setting_of_what_is_not_chosen_is_told(settings: dict[str, Any], idle: list[str]) -> None:
    said = optimizer_check.check(request(Default(), TrainingConfig(**settings), given=tuple(settings)), MODEL).idle
    assert [text.partition("=")[0] for text in said] == idle


def test_a_sweep_over_a_setting_without_effect_is_refused() -> None:
    asked = request(FixedRate(), TrainingConfig(), given=("learning_rate",), swept=("clip_norm", "learning_rate"))
    with pytest.raises(JobError, match="the trials differ in learning_rate, which has no effect: the job's create_opt"):
        optimizer_check.check(asked, MODEL)
    optimizer_check.check(replace(asked, job=replace(asked.job, factory=UsesRate())), MODEL)


def test_a_misspelt_setting_in_create_optimizer_is_named_with_the_one_that_is_meant() -> None:
    class Misspells:
        def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Any:
            return torch.optim.SGD(model.parameters(), lr=config.learning_rat)  # type: ignore[attr-defined]

    with pytest.raises(JobError, match="the config has no 'learning_rat'; did you mean 'learning_rate'"):
        optimizer_check.check(request(Misspells(), TrainingConfig()), nn.Linear(1, 1))


@pytest.mark.parametrize(("factory", "plateau"), [(GoesByValidation(), "max"), (WarmsUp(), ""), (Default(), "")])
def test_a_scheduler_that_goes_by_the_validation_is_known_before_any_worker_is_started(
    factory: Any, plateau: str
) -> None:
    assert optimizer_check.check(request(factory, TrainingConfig()), MODEL).plateau == plateau


class Changing(UsesRate):
    """Changes weights in ``create_optimizer``."""

    def __init__(self, *, each_time: bool) -> None:
        self.each_time = each_time

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Any:
        for name, each in model.named_parameters():
            each.data = 0.5 * each if self.each_time and name == "1.bias" else torch.ones_like(each)
        return super().create_optimizer(model, config)


def test_weights_that_create_optimizer_changes_with_each_call_are_refused() -> None:
    asked = request(Changing(each_time=False), TrainingConfig())
    optimizer_check.check(asked, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    asked = request(Changing(each_time=True), TrainingConfig())
    with pytest.raises(JobError, match=r"changes the weights \(1\.bias\)"):
        optimizer_check.check(asked, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
