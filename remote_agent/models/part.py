"""A part of a model on one device: some of its blocks; the rest of the model is there without its weights.

A part runs the job's own loss (or metrics) with the whole model's own code, of which only what belongs to it is
computed. Blocks before the part hand on what they get, its first block gets what has come from the part before, and
where the first block after it is called the pass ends: what that one is called with is what travels. So each part makes
masks, positions and labels by itself, from the batch, by the model's own code, and only what depends on weights
travels. Weights of other parts are zeros without memory (one number, seen as a tensor of the weight's shape).

Random numbers (dropout) are seeded before each block, so that they do not depend on where the model is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from remote_agent.models.errors import CannotCut
from remote_agent.models.seams import Seams, intercepted

T = TypeVar("T")

Tensors = tuple[Tensor, ...]
"""What travels between two parts."""

Seed = Callable[[int], None]
"""Seeds the random numbers of a block; of what comes before the blocks, and after them, with the next two numbers."""


class _Reached(BaseException):
    """The first block after the part was called: no error, and nothing that user code catches."""

    def __init__(self, given: Tensors) -> None:
        super().__init__()
        self.given = given


@dataclass
class _Pass:
    """A forward pass under way."""

    given: Tensors
    seed: Seed


class Part:
    """The blocks from ``first`` to before ``last`` of a model.

    Args:
        model: the whole model.
        blocks: its blocks.
        seams: of them.
        first: number of the part's first block.
        last: number of the first block after it, or how many there are.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module], seams: Seams, first: int, last: int) -> None:
        self.model, self.first, self.last = model, first, last
        self._blocks, self._seams = blocks, seams
        self._pass: _Pass | None = None

    @property
    def is_first(self) -> bool:
        """It has the model's beginning."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """It has the model's end."""
        return self.last == len(self._blocks)

    def uses(self, name: str) -> bool:
        """Whether it uses the parameter ``name``."""
        return any(self.first <= block < self.last for block in self._seams.uses[name])

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that it uses, by name."""
        return {name: parameter for name, parameter in self.model.named_parameters() if self.uses(name)}

    @torch.no_grad()
    def move(self, device: torch.device | str) -> None:
        """Bring what the part uses to ``device``, and free the memory of all other weights."""
        foreign = self._foreign()
        for name, parameter in self.model.named_parameters():
            parameter.grad = None
            parameter.data = parameter.data.to(device) if self.uses(name) else _without_memory(parameter, device)
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                own = id(module) not in foreign
                setattr(module, name, buffer.to(device) if own else _without_memory(buffer, device))

    def _foreign(self) -> set[int]:
        """The modules within blocks of other parts alone."""
        others = [block for number, block in enumerate(self._blocks) if not self.first <= number < self.last]
        return {id(module) for block in others for module in block.modules()}

    # --- A pass ------------------------------------------------------------------------------------------------------

    def run(self, function: Callable[[], T], given: Tensors, seed: Seed) -> T | Tensors:
        """Compute the part's share of ``function``.

        Args:
            function: calls the whole model once, as the job's loss does.
            given: what has come from the part before; of the first part empty.
            seed: called before each block.

        Returns:
            What the next part is to be given; of the last part what ``function`` gave.

        Raises:
            CannotCut: it did not call the block that comes after the part.
        """
        self._pass = _Pass(given, seed)
        seed(len(self._blocks))
        try:
            with intercepted(self._blocks, self._called):
                result = function()
        except _Reached as reached:
            return reached.given
        finally:
            self._pass = None
        if not self.is_last:
            raise CannotCut(f"block {self.last} was not called")
        return result

    def _called(self, number: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        state = self._pass
        assert state is not None, "it is called within a pass"
        keys = self._seams.inputs[number]
        if number < self.first:
            return self._handed_on(number, args[keys[0]] if isinstance(keys[0], int) else kwargs[keys[0]])
        if number == self.last:
            raise _Reached(tuple(args[key] if isinstance(key, int) else kwargs[key] for key in keys))
        if number == self.first and number:
            changed = dict(zip(keys, state.given, strict=True))
            args = tuple(changed.get(position, value) for position, value in enumerate(args))
            kwargs = {name: changed.get(name, value) for name, value in kwargs.items()}
        state.seed(number)
        result = original(*args, **kwargs)
        if number == len(self._blocks) - 1:
            state.seed(number + 2)
        return result

    def _handed_on(self, number: int, value: Any) -> Any:
        parts = self._seams.parts[number]
        return (value, *(None,) * (parts - 1)) if parts else value


def _without_memory(tensor: Tensor, device: torch.device | str) -> Tensor:
    return torch.zeros((), dtype=tensor.dtype, device=device).expand(tensor.shape)


@torch.no_grad()
def check(model: nn.Module, blocks: Sequence[nn.Module], seams: Seams, loss: Callable[[], Tensor], seed: Seed) -> None:
    """See that the model in parts, each of one block, gives the whole model's loss; the model is as it was afterwards.

    Raises:
        CannotCut: it does not.
    """
    kept = {name: parameter.data for name, parameter in model.named_parameters()}
    buffers = [(module, name, each) for module in model.modules() for name, each in module.named_buffers(recurse=False)]
    copies = [each.clone() for _, _, each in buffers]

    def whole_again() -> None:
        for name, parameter in model.named_parameters():
            parameter.data = kept[name]
        for (module, name, each), copy in zip(buffers, copies, strict=True):
            each.copy_(copy)
            setattr(module, name, each)

    device = next(iter(kept.values())).device
    whole = Part(model, blocks, seams, 0, len(blocks))
    expected = whole.run(loss, (), seed)
    whole_again()
    given: Tensors = ()
    found: Any = None
    try:
        for number in range(len(blocks)):
            part = Part(model, blocks, seams, number, number + 1)
            part.move(device)
            found = part.run(loss, given, seed)
            given = found if not part.is_last else ()
            whole_again()
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
        raise CannotCut(f"the model in parts fails: {type(error).__name__}: {error}") from error
    finally:
        whole_again()
    assert isinstance(expected, Tensor), "a loss is a tensor"
    if not torch.allclose(found.float(), expected.float(), rtol=1e-4, atol=1e-6, equal_nan=True):
        cause = f"the model in parts has another loss ({float(found):g}) than as a whole ({float(expected):g})"
        raise CannotCut(f"{cause}: a block uses more than what the one before it gives")
