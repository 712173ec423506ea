"""Jobs with ``phases()``: several losses for each batch, each with an optimizer of its own, as in a GAN.

A step of the run is one phase. The batches repeat: with two phases steps 1 and 2 have the first batch, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.user_code import losses

Loss = Callable[[nn.Module, Any], Any]

HINT = (
    "return a list of (loss, optimizer) from phases(model, config):"
    " [(self.critic_loss, Adam(model.critic.parameters())), (self.generator_loss, Adam(model.generator.parameters()))]"
)


class InTurns(torch.optim.Optimizer):
    """Steps one of several optimizers, the next one at each step.

    Args:
        optimizers: over different parameters, in the order of their turns.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers, self._turn = optimizers, 0
        super().__init__([group for each in optimizers for group in each.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Give each optimizer its parameter groups, and all of them one state: ``state_dict()`` holds everything."""
        begin = 0
        for each in self._optimizers:
            end = begin + len(each.param_groups)
            each.param_groups, each.state, begin = self.param_groups[begin:end], self.state, end

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make the step of the optimizer whose turn it is."""
        del closure
        self._optimizers[self._turn].step()
        self._turn = (self._turn + 1) % len(self._optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return torch's form, and ``turn``."""
        return {**super().state_dict(), "turn": self._turn}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self._turn = int(state_dict["turn"])
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "turn"})
        self._share()


class Phases:
    """The parts of a job that follow from its ``phases(model, config)``."""

    def __init__(self, factory: Any) -> None:
        self._factory = factory
        self._losses: list[Loss] = []

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> InTurns:
        """Make the optimizers, and keep the losses."""
        phases = self._factory.phases(model, config)
        if not isinstance(phases, list | tuple) or not all(_is_phase(each) for each in phases) or not phases:
            raise JobError("phases() gave no list of (loss, optimizer)", hint=HINT)
        self._losses = [losses.function_of(loss) for loss, _ in phases]
        return InTurns([optimizer for _, optimizer in phases])

    def loss(self, model: nn.Module, batch: Any, step: int) -> Any:
        """Return the loss of the phase whose turn it is in this step."""
        return self._losses[(step - 1) % len(self._losses)](model, batch)

    @property
    def count(self) -> int:
        """Number of phases, once :meth:`create_optimizer` was called."""
        return len(self._losses)


def _is_phase(given: object) -> bool:
    return (
        isinstance(given, list | tuple)
        and len(given) == 2
        and callable(given[0])
        and isinstance(given[1], torch.optim.Optimizer)
    )


def of(factory: Any) -> Phases | None:
    """Give a job with ``phases()`` the optimizer and the loss that follow from them; returns None where it has none."""
    if not callable(getattr(factory, "phases", None)):
        return None
    phases = Phases(factory)
    factory.create_optimizer, factory.loss = phases.create_optimizer, phases.loss
    return phases
