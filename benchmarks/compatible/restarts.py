"""What the optimizer and the model keep, over a start of the run from its newest checkpoint.

State that begins to change in step 5 has the run return to the checkpoint of step 4, and go on from there.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchmarks.compatible.case import Case, case, small
from benchmarks.compatible.rules import Rule
from remote_agent.training.config import TrainingConfig

AREA = "restarts"


class Changing(nn.Module):
    """Counts its steps, and scales by a buffer that begins to follow once the weights are ``far`` from the first ones.

    That is in step 5, and not in the measurement before the first step.
    """

    def __init__(self, far: float, *, persistent: bool = True) -> None:
        super().__init__()
        self.net, self.far = small(), far
        self.register_buffer("first", self.weights(), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=persistent)
        self.register_buffer("later", torch.ones(()), persistent=persistent)

    def weights(self) -> Tensor:
        return torch.cat([each.detach().flatten() for each in self.net.parameters()])

    def forward(self, x: Tensor) -> Any:
        if self.training and torch.is_grad_enabled():
            self.steps += 1
            if (self.weights() - self.first).norm() > self.far:
                self.later *= 0.5
        return self.net(x) * self.later / (1 + 0.1 * self.steps)


class Restarting(Case):
    """A run that starts again from step 4."""

    settings: ClassVar = {"checkpoint_every": 2}
    steps = 8
    far: ClassVar[float]
    """Between how far the weights are from the first ones in step 4 and in step 5."""

    def create_model(self) -> nn.Module:
        return Changing(self.far)


class WithLists(Rule):
    """Keeps lists, mappings, None and flags in its state, as Shampoo and SOAP do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.all():
            state = self.state[p]
            if not state:
                state["sums"], state["basis"] = [torch.zeros_like(p), []], None
                state["kind"] = {"first": True}
            state["sums"][0].mul_(0.9).add_(p.grad)
            state["sums"][1].append(float(p.grad.norm()))
            state["basis"] = (len(state["sums"][1]), "seen")
            p.sub_(state["sums"][0], alpha=self.param_groups[0]["lr"] / (1 + 0.1 * state["basis"][0]))


@case("restart-lists-in-state", AREA)
class RestartWithLists(Restarting):
    """An optimizer with lists, mappings and None in its state."""

    quick = killed = True
    far = 0.14

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return WithLists(model.parameters(), config.learning_rate)


class WarmingUp(torch.optim.AdamW):
    """Warms up by a private count, and keeps an average by parameter."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self._step, self._rate = 0, lr
        self._norms: dict[Any, float] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self._step += 1
        for group in self.param_groups:
            group["lr"] = self._rate * self._step / 10
            for p in group["params"]:
                self._norms[p] = 0.5 * self._norms.get(p, 0.0) + float(p.grad.norm())
                p.grad.div_(1 + self._norms[p])
        return super().step()


@case("restart-private-count", AREA)
class RestartOfWarmUp(Restarting):
    """AdamW with a warm-up of its own, counted in a private attribute, and norms by parameter."""

    killed = True
    tolerance = 1e-4
    far = 0.35

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return WarmingUp(model.parameters(), config.learning_rate)


@case("restart-buffers-not-saved", AREA)
class RestartOfBuffers(Restarting):
    """Buffers with persistent=False that training changes."""

    killed = True
    far = 0.175

    def create_model(self) -> nn.Module:
        return Changing(self.far, persistent=False)
