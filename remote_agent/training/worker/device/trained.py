"""Checks that the trained parameters stay the same during a run; a slice that finds a change is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from remote_agent.training.errors import JobError

_FIXED = (
    "leave requires_grad as create_model sets it; until a layer is to be trained, call it with its weights detached"
    " (torch.func.functional_call), or train it in a second run that begins with the first one's weights"
)
_DENSE = "create the layer with sparse=False, and use Adam or SGD in the place of SparseAdam"


Loss = Callable[[nn.Module, Any], Any]


class TrainedParameters:
    """Watches a model's parameters; as it is made, so they have to stay."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [(name, parameter, parameter.requires_grad) for name, parameter in model.named_parameters()]

    def watching(self, loss: Loss) -> Loss:
        """``loss``, which refuses to go on after a call that changed what is trained.

        Raises:
            JobError: when it is called, and the model's code began or ended to train a parameter.
        """

        def watched(model: nn.Module, batch: Any) -> Any:
            result = loss(model, batch)
            self.check()
            return result

        return watched

    def check(self) -> None:
        """After a loss.

        Raises:
            JobError: the model's code has begun or ended to train a parameter.
        """
        for name, parameter, trained in self._parameters:
            if parameter.requires_grad is not trained:
                switch = "off" if trained else "on"
                raise JobError(f"the model's code switched requires_grad {switch} for {name} in training", hint=_FIXED)


def refuse_sparse(model: nn.Module) -> None:
    """After a backward pass of the measurement.

    Raises:
        JobError: a parameter has a sparse gradient.
    """
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise JobError(f"the parameter {name} has sparse gradients, which are not summed here", hint=_DENSE)
