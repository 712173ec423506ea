"""Hooks of the optimizer's step, and schedules, once more."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from benchmarks.compatible.case import Case, case
from benchmarks.compatible.optimizers import AREA
from remote_agent.training.config import TrainingConfig


def hooked(model: nn.Module, config: TrainingConfig, hook: Any) -> torch.optim.Optimizer:
    """SGD with a hook before its step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9)
    optimizer.register_step_pre_hook(hook)
    return optimizer


def adaptive(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Adaptive clipping by the norms of units (AGC)."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            dims = tuple(range(1, p.dim())) or (0,)
            size = p.detach().norm(dim=dims, keepdim=True).clamp_min(1e-3)
            p.grad.mul_((0.05 * size / p.grad.norm(dim=dims, keepdim=True).clamp_min(1e-6)).clamp(max=1))


@case("adaptive-clipping", AREA)
class Adaptive(Case):
    """Adaptive gradient clipping by units' norms, in a hook before the step."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return hooked(model, config, adaptive)


def centralised(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Gradient centralisation."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and p.dim() > 1:
                p.grad.sub_(p.grad.mean(dim=tuple(range(1, p.dim())), keepdim=True))


@case("centralised", AREA)
class Centralised(Case):
    """Gradient centralisation in a hook before the step."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return hooked(model, config, centralised)


@case("global-clip-hook", AREA)
class GlobalClip(Case):
    """clip_grad_norm_ over the whole model in a hook before the step."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        def clip(*_: Any) -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        return hooked(model, config, clip)


@case("noisy-gradients", AREA)
class NoisyGradients(Case):
    """Noise that a hook before the step adds to gradients, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        def noisy(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.add_(torch.randn_like(p), alpha=1e-2)

        return hooked(model, config, noisy)


@case("unit-norm-hook", AREA)
class UnitNorm(Case):
    """A hook after the step normalises the rows of a weight."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
        weight = model.get_parameter("0.weight")

        def normalise(*_: Any) -> None:
            with torch.no_grad():
                weight.copy_(functional.normalize(weight, dim=1))

        optimizer.register_step_post_hook(normalise)
        return optimizer


@case("counting-hook", AREA)
class CountingHook(Case):
    """A hook before the step that counts steps, and warms up by itself."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        done = [0]

        def warm(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            done[0] += 1
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * min(1.0, done[0] / 4)

        return hooked(model, config, warm)


@case("warm-restarts", AREA)
class Restarts(Case):
    """CosineAnnealingWarmRestarts."""

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)


@case("sequential-schedule", AREA)
class Sequential(Case):
    """SequentialLR of a warm-up and an exponential fall."""

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> Any:
        rates = torch.optim.lr_scheduler
        parts = [rates.LinearLR(optimizer, 0.1, total_iters=3), rates.ExponentialLR(optimizer, 0.8)]
        return rates.SequentialLR(optimizer, parts, [3])


@case("chained-schedule", AREA)
class Chained(Case):
    """ChainedScheduler of two factors."""

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> Any:
        rates = torch.optim.lr_scheduler
        return rates.ChainedScheduler([rates.StepLR(optimizer, 2, 0.5), rates.ExponentialLR(optimizer, 0.9)])


@case("cyclic-schedule", AREA)
class Cyclic(Case):
    """CyclicLR, which moves the momentum against the rate."""

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> Any:
        return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2)


@case("swa-schedule", AREA)
class Swa(Case):
    """SWALR."""

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> Any:
        return torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=3)


@case("schedule-of-weights", AREA)
class OfWeights(Case):
    """A schedule whose rate follows the norm of the weights."""

    expect, says = "refused", "create_scheduler"

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> Any:
        def factor(_: int) -> float:
            weights = [p for group in optimizer.param_groups for p in group["params"]]
            return 1 / (1 + float(sum(p.detach().norm() for p in weights)))

        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


@case("decay-schedule", AREA)
class Decay(Case):
    """A schedule of the weight decay, written by hand."""

    expect, says = "refused", "LRScheduler"

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> Any:
        return WeightDecay(optimizer)


class WeightDecay:
    """Doubles the weight decay in each step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            group["weight_decay"] *= 2

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
