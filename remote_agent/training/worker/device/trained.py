"""Checks that the trained parameters stay the same during a run; a slice that finds a change is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from remote_agent.training.errors import JobError, StateChanged
from remote_agent.training.shared import flat

_FIXED = (
    "leave requires_grad as create_model sets it; until a layer is to be trained, call it with its weights detached"
    " (torch.func.functional_call), or train it in a second run that begins with the first one's weights"
)
_MADE = (
    "make every layer and parameter in create_model (torch.nn.LazyLinear where the first batch says the shape), and"
    " change values by the optimizer alone"
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
            JobError: when it is called, and the model's code began or ended to train a parameter, or made one.
        """
        kept = keeping(loss)

        def watched(model: nn.Module, batch: Any) -> Any:
            result = kept(model, batch)
            self.check()
            return result

        return watched

    def check(self) -> None:
        """Raise JobError if a loss's code has begun or ended to train a parameter."""
        for name, parameter, trained in self._parameters:
            if parameter.requires_grad is not trained:
                switch = "off" if trained else "on"
                raise JobError(f"the model's code switched requires_grad {switch} for {name} in training", hint=_FIXED)


def keeping(loss: Loss) -> Loss:
    """``loss``, which refuses to go on after a call that made a parameter or took one away.

    Raises:
        JobError: when it is called, and the model's code did.
    """

    def kept(model: nn.Module, batch: Any) -> Any:
        before = _identities(model)
        result = loss(model, batch)
        if _identities(model) != before:
            _refuse_made(model, frozenset(before))
        return result

    return kept


def _identities(model: nn.Module) -> list[int]:
    """Of all parameters; ``named_parameters`` takes five times as long."""
    return [id(each) for module in model.modules() for each in module._parameters.values()]  # noqa: SLF001


def _refuse_made(model: nn.Module, before: frozenset[int]) -> None:
    """Refuse parameters that the model's code made while a loss was computed: other workers would have others."""
    for name, parameter in model.named_parameters():
        if id(parameter) not in before:
            raise JobError(f"the parameter {name} was made by forward or loss, and nothing would train it", hint=_MADE)
    raise JobError("forward or loss took a parameter out of the model", hint=_MADE)


def refuse_own_backward(model: nn.Module) -> None:
    """After a loss, without a backward pass of ours.

    Raises:
        JobError: a parameter has a gradient.
    """
    if any(parameter.grad is not None for parameter in model.parameters()):
        raise JobError(
            "loss itself calls backward(), and so does the run: gradients would count twice",
            hint="return the loss, and leave backward() to the run",
        )


def refuse_sparse(model: nn.Module) -> None:
    """Raise JobError if a parameter has a sparse gradient, after a backward pass of the measurement."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise JobError(f"the parameter {name} has sparse gradients, which are not summed here", hint=_DENSE)


# --- State that is not trained, and was left alone in the measurement ------------------------------------------------

# A teacher that follows from step 1,000 on, or a target network that is copied every 100 steps: each worker would
# change a copy of its own. Only some numbers of each tensor are compared, since that is done for each slice.


CHANGES_HINT = "use strategy=sync or strategy=allreduce, which keep such state the same on all devices"
NUMBERS = 100
"""Of each tensor, that are compared."""


class Still:
    """The buffers and frozen parameters of a model but those that are ``changing``."""

    def __init__(self, model: nn.Module, changing: Collection[str]) -> None:
        self._by_type: dict[torch.dtype, dict[str, Tensor]] = {}
        for name, tensor in flat.state(model).items():
            is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_meta
            if name not in changing and is_plain and tensor.numel():
                self._by_type.setdefault(tensor.dtype, {})[name] = tensor

    def look(self) -> list[Tensor]:
        """Some numbers of all of them, as bytes: a tensor for each type."""
        some = [[flat.some(tensor, NUMBERS) for tensor in each.values()] for each in self._by_type.values()]
        return [torch.cat(each).cpu().view(torch.uint8) for each in some]

    def check(self, before: Sequence[Tensor], whose: str = "the model's code") -> None:
        """Raise StateChanged if something is not as ``before`` says, after something ``whose`` it was."""
        for tensors, then, now in zip(self._by_type.values(), before, self.look(), strict=True):
            if not torch.equal(then, now):
                sizes = [flat.some(tensor, NUMBERS).nbytes for tensor in tensors.values()]
                pairs = zip(tensors, torch.split(then, sizes), torch.split(now, sizes), strict=True)
                name = next(name for name, one, other in pairs if not torch.equal(one, other))
                raise StateChanged(
                    f"{whose} begins to change {name}, which is not trained, after the measurement",
                    hint=CHANGES_HINT,
                )
