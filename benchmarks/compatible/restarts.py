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


@case("restart-buffers-not-saved", AREA)
class RestartOfBuffers(Restarting):
    """Buffers with persistent=False that training changes."""

    killed = True
    far = 0.175

    def create_model(self) -> nn.Module:
        return Changing(self.far, persistent=False)
