"""A pipeline's stages step their own weights, so an optimizer that looks at all of them at once is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.worker.coupled import refuse_coupled

Make = Callable[[nn.Module], torch.optim.Optimizer]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))


def refuse(make: Make, model: nn.Module | None = None) -> None:
    factory = SimpleNamespace(create_optimizer=lambda built, config: make(built))
    refuse_coupled(factory, model or network(), TrainingConfig())


class Clipping(torch.optim.SGD):
    """Clips by the norm of all weights within its step."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 0.1)
        return super().step(closure)


class Noisy(torch.optim.SGD):
    """Adds noise to each weight."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for each in (each for group in self.param_groups for each in group["params"]):
                each += torch.randn_like(each)
        return super().step(closure)


class Adapting(torch.optim.SGD):
    """Has a step size by the norm of all gradients, where these are small (D-Adaptation)."""

    def step(self, closure: Any = None) -> Any:
        members = [each for group in self.param_groups for each in group["params"]]
        total = sum(float(each.grad.square().sum()) for each in members if each.grad is not None) ** 0.5
        self.param_groups[0]["lr"] = max(0.5, 0.3 / (1e-3 + total))
        return super().step(closure)


def hooked(model: nn.Module) -> torch.optim.Optimizer:
    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(clip)
    return optimizer


COUPLED: dict[str, Make] = {
    "clips in its step": lambda model: Clipping(model.parameters(), lr=0.1),
    "clips in a hook": hooked,
    "adapts": lambda model: Adapting(model.parameters(), lr=0.1),
    "adapts a group for each weight": lambda model: Adapting([{"params": [each]} for each in model.parameters()], lr=1),
    "draws": lambda model: Noisy(model.parameters(), lr=0.1),
}


@pytest.mark.parametrize("name", COUPLED)
def test_an_optimizer_that_looks_at_other_weights_or_draws_is_refused(name: str) -> None:
    with pytest.raises(JobError, match="depends on other weights") as error:
        refuse(COUPLED[name])
    assert "clip_norm" in error.value.hint


def clamping(model: nn.Module) -> torch.optim.Optimizer:
    def clamp(*_: Any) -> None:
        with torch.no_grad():
            for each in model.parameters():
                each.clamp_(-0.1, 0.1)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(clamp)
    return optimizer


def test_a_hook_that_changes_other_weights_is_refused_by_name() -> None:
    with pytest.raises(JobError, match=r"or a hook of it, changes 0\.bias") as error:
        refuse(clamping)
    assert "optimizer.param_groups" in error.value.hint


class SlowList(torch.optim.SGD):
    """Lookahead, with slow weights in a list, which are mixed in at every fifth step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.slow = [each.detach().clone() for group in self.param_groups for each in group["params"]]
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step()
        self.count += 1
        if self.count % 5 == 0:
            members = [each for group in self.param_groups for each in group["params"]]
            for slow, each in zip(self.slow, members, strict=False):
                each.copy_(slow.lerp_(each, 0.5))


class Slow(torch.optim.SGD):
    """Has slow weights, and gives them in its ``state_dict()``."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.slow = [each.detach().clone() for group in self.param_groups for each in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "slow": self.slow}


class Scheduled(torch.optim.SGD):
    """Counts in its group, the same for all weights."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            group["lr"] = 0.1 / group["count"]
        return super().step(closure)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda model: SlowList([each for each in model.parameters() if each.dim() == 2]),
            "SlowList makes for a weight depends on other weights",
        ),
        (lambda model: Slow(model.parameters()), r"state_dict\(\) of the optimizer Slow"),
    ],
    ids=["pairs weights with a list", "gives a list"],
)
def test_what_an_optimizer_remembers_about_weights_beside_their_state_is_refused(make: Make, said: str) -> None:
    with pytest.raises(JobError, match=said) as error:
        refuse(make)
    assert "strategy=sync" in error.value.hint


def watched(model: nn.Module) -> torch.optim.Optimizer:
    """A hook counts, and sees the optimizer."""
    optimizer, done = torch.optim.Adam(model.parameters(), lr=0.1), 0

    def slower(*_: Any) -> None:
        nonlocal done
        done += 1
        optimizer.param_groups[0]["lr"] = 0.1 / done

    optimizer.register_step_pre_hook(slower)
    return optimizer


FREE: dict[str, Make] = {
    "a hook counts": watched,
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1),
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.1),
    "fused": lambda model: torch.optim.Adam(model.parameters(), lr=0.1, fused=True),
    "counts": lambda model: Scheduled(model.parameters(), lr=0.1),
    "groups": lambda model: torch.optim.SGD([{"params": [each]} for each in model.parameters()], lr=0.1),
}


@pytest.mark.parametrize("name", FREE)
def test_an_optimizer_that_looks_at_one_weight_at_a_time_is_taken_and_nothing_is_left_of_its_steps(name: str) -> None:
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    refuse(FREE[name], model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())
