"""Optimizers, schedulers, parameter groups and clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from benchmarks.compatible.case import Case, case
from remote_agent.training.config import TrainingConfig

AREA = "optimizers"


@case("adam", AREA)
class Adam(Case):
    """Adam."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=config.learning_rate / 5)


@case("adamw-default", AREA)
class Default(Case):
    """No create_optimizer: AdamW."""

    killed = True
    create_optimizer = None  # type: ignore[assignment]
    settings: ClassVar = {"learning_rate": 0.01}


@case("sgd-nesterov", AREA)
class Nesterov(Case):
    """SGD with Nesterov momentum and weight decay."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


@case("adagrad", AREA)
class Adagrad(Case):
    """Adagrad."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=config.learning_rate)


@case("rmsprop", AREA)
class RootMeanSquare(Case):
    """RMSprop, centred."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(model.parameters(), lr=0.005, centered=True, eps=1e-4)


@case("adafactor", AREA)
class Adafactor(Case):
    """Adafactor, which looks at whole matrices."""

    killed = quick = True

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(model.parameters(), lr=config.learning_rate)


class Lion(torch.optim.Optimizer):
    """Signs of smoothed gradients, softened: an optimizer of a user's own."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                smooth = state.setdefault("smooth", torch.zeros_like(parameter))
                smooth.lerp_(parameter.grad, 0.1)
                parameter.sub_(torch.tanh(smooth * 20), alpha=group["lr"])


@case("own-optimizer", AREA)
class Own(Case):
    """An optimizer class of the user's own."""

    killed = True

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return Lion(model.parameters(), lr=0.01)


@case("lbfgs", AREA)
class SecondOrder(Case):
    """LBFGS, which calls the loss several times a step."""

    expect, says = "refused", "closure"
    quick = True

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=0.1)


class Sharpness(torch.optim.SGD):
    """A step that needs its closure (SAM)."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is None:
            raise RuntimeError("SAM needs a closure")
        super().step()


@case("sam", AREA)
class SharpnessAware(Case):
    """An own optimizer whose step needs a closure (SAM)."""

    expect, says = "refused", "closure"

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return Sharpness(model.parameters(), lr=0.1)


class Groups(Case):
    """A model of three layers, for parameter groups."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.Tanh(), nn.Linear(12, 3))


@case("rate-by-layer", AREA)
class ByLayer(Groups):
    """A learning rate for each layer."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        layers = [list(layer.parameters()) for layer in model.children()]
        groups = [{"params": layer, "lr": 0.1 / (1 + depth)} for depth, layer in enumerate(layers) if layer]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


@case("no-decay-group", AREA)
class NoDecay(Groups):
    """AdamW with weight decay for matrices only, clip_norm and a cosine schedule."""

    killed = True
    settings: ClassVar = {"clip_norm": 0.3, "schedule": "cosine"}

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        matrices = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=config.learning_rate / 5)


@case("clip-norm", AREA)
class ClipNorm(Case):
    """clip_norm, below and above the gradients' norm."""

    settings: ClassVar = {"clip_norm": 0.5}


@case("clip-value", AREA)
class ClipValue(Case):
    """Gradients are clipped by value in a hook before the optimizer's step."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(model, config)
        optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(model.parameters(), 0.05))
        return optimizer


@case("one-cycle", AREA)
class OneCycle(Case):
    """OneCycleLR, which changes the momentum too."""

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> LRScheduler:
        return OneCycleLR(optimizer, max_lr=0.1, total_steps=config.num_iterations + 1)


@case("cosine-annealing", AREA)
class Cosine(Adam):
    """CosineAnnealingLR."""

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> LRScheduler:
        return CosineAnnealingLR(optimizer, T_max=config.num_iterations)


@case("lambda-schedule", AREA)
class Lambda(Case):
    """LambdaLR with a function for each group."""

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> LRScheduler:
        return LambdaLR(optimizer, lambda step: 1 / (1 + step))


class Halving(LRScheduler):
    """Half the rate every second step: a scheduler of a user's own."""

    def get_lr(self) -> list[float]:  # type: ignore[override]
        return [rate * 0.5 ** (self.last_epoch // 2) for rate in self.base_lrs]  # type: ignore[misc]


@case("own-scheduler", AREA)
class OwnScheduler(Case):
    """A scheduler class of the user's own."""

    def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> LRScheduler:
        return Halving(optimizer)


class Adversaries(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Any:
        return self.discriminator(self.generator(x))


@case("two-optimizers", AREA)
class Adversarial(Case):
    """Two optimizers, as a GAN has."""

    expect, says = "refused", "one optimizer"
    quick = True

    def create_model(self) -> nn.Module:
        return Adversaries()

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Any:
        assert isinstance(model, Adversaries)
        kinds = (model.generator, model.discriminator)
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in kinds]

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.softplus(-model(batch[0])).mean()


@case("optimizer-of-a-part", AREA)
class OfAPart(Groups):
    """The optimizer has only the last layer; the others have gradients, and stay."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.get_submodule("3").parameters(), lr=config.learning_rate / 5)


@case("optimizer-of-nothing", AREA)
class OfNothing(Groups):
    """The optimizer has parameters that are none of the model's."""

    expect, says = "refused", "none of the model's"

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adam([nn.Parameter(torch.zeros(3))], lr=0.1)


@case("optimizer-of-others", AREA)
class OfOthers(Groups):
    """The optimizer has the model's parameters and one of its own, which the workers do not know."""

    expect, says = "refused", "not the model's"

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adam([*model.parameters(), nn.Parameter(torch.zeros(3))], lr=0.1)


@case("optimizer-wrapper", AREA)
class Wrapped(Case):
    """create_optimizer gives an object that only looks like an optimizer."""

    expect, says = "refused", "Optimizer"

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Any:
        inner = super().create_optimizer(model, config)

        class Looking:
            """An averaging wrapper."""

            param_groups = inner.param_groups

            def step(self) -> None:
                inner.step()

        return Looking()


@case("rprop", AREA)
class Rprop(Case):
    """Rprop."""

    tolerance = 1e-4

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Rprop(model.parameters(), lr=0.01)


@case("asgd", AREA)
class Asgd(Case):
    """ASGD, whose averages start after some steps."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.ASGD(model.parameters(), lr=0.05, t0=2)


@case("radam", AREA)
class Radam(Case):
    """RAdam."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.RAdam(model.parameters(), lr=0.01)


@case("nadam", AREA)
class Nadam(Case):
    """NAdam with decoupled weight decay."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.NAdam(model.parameters(), lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)


@case("adadelta", AREA)
class Adadelta(Case):
    """Adadelta, maximising the negative."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adadelta(model.parameters(), lr=0.5)


@case("adam-amsgrad", AREA)
class Amsgrad(Case):
    """Adam with amsgrad, fused."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True, fused=True)


@case("rate-tensor", AREA)
class RateTensor(Case):
    """Adam with a tensor as learning rate."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))
