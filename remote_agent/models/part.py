"""A part of a model on one device: some of its blocks; the rest of the model is there without its weights.

A part runs the job's own loss (or metrics) with the whole model's own code, of which only what belongs to it is
computed. Blocks before the part hand on what they get, its first block gets what has come from the part before, and
where the first block after it is called the pass ends: what that one is called with is what travels. So each part makes
masks, positions and labels by itself, from the batch, by the model's own code, and only what depends on weights
travels. Weights of other parts are NaN without memory (one number, seen as a tensor of the weight's shape), and so is
what their blocks hand on: what uses them after all, for some samples only, gives a loss that is not finite.

Random numbers (dropout) are seeded before each block, so that they do not depend on where the model is cut.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from remote_agent.models.blocks import CannotCut
from remote_agent.models.seams import Seams, argument, changed, has_gradients, intercepted

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
    called: int = 0


class Part:
    """The blocks from ``first`` to before ``last`` of a model.

    Args:
        first: number of the part's first block.
        last: number of the first block after it, or how many there are.

    Attributes:
        seen: gets what each block but the first is given, by its number; None: it is not kept.
    """

    seen: dict[int, Tensors] | None = None

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

    def buffers(self) -> list[Tensor]:
        """The buffers within its blocks: of a model in four bits, most of its weights."""
        return [each for block in self._blocks[self.first : self.last] for each in block.buffers()]

    def tensors(self) -> set[str]:
        """Names of the parameters and buffers that it uses: all but those within other parts alone."""
        foreign = self._foreign()
        buffers = {
            f"{place}.{name}" if place else name
            for place, module in self.model.named_modules()
            if id(module) not in foreign
            for name, _ in module.named_buffers(recurse=False)
        }
        names = {name for name, _ in self.model.named_parameters() if self.uses(name)}
        return names | buffers

    @torch.no_grad()
    def move(self, device: torch.device | str) -> None:
        """Bring what the part uses to ``device``, and free the memory of all other weights."""
        foreign = self._foreign()
        for name, parameter in self.model.named_parameters():
            parameter.grad = None
            own = self.uses(name)
            parameter.data = _there(parameter.data, device) if own else _without_memory(parameter, device)
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                own = id(module) not in foreign
                setattr(module, name, _there(buffer, device) if own else _without_memory(buffer, device))

    def _foreign(self) -> set[int]:
        """The modules within blocks of other parts alone."""
        own, others = set[int](), set[int]()
        for number, block in enumerate(self._blocks):
            (own if self.first <= number < self.last else others).update(map(id, block.modules()))
        return others - own

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
            CannotCut: it did not call the blocks one after the other, each once.
        """
        state = self._pass = _Pass(given, seed)
        seed(len(self._blocks))
        try:
            with intercepted(self._blocks, self._called):
                result = function()
        except _Reached as reached:
            return reached.given
        finally:
            self._pass = None
        if state.called < len(self._blocks):
            raise CannotCut(f"block {state.called} was not called")
        return result

    def _called(self, number: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        state = self._pass
        assert state is not None, "it is called within a pass"
        if number != state.called:
            raise CannotCut(f"block {number} was called where block {state.called} was to come")
        state.called += 1
        keys = self._seams.inputs[number]
        if self.seen is not None and number:
            self.seen[number] = tuple(argument(key, args, kwargs).clone() for key in keys)
        if number < self.first:
            return self._handed_on(number, argument(keys[0], args, kwargs))
        if number == self.last:
            raise _Reached(tuple(argument(key, args, kwargs) for key in keys))
        if number == self.first and number:
            args, kwargs = changed(args, kwargs, dict(zip(keys, state.given, strict=True)))
        state.seed(number)
        result = original(*args, **kwargs)
        if number == len(self._blocks) - 1:
            state.seed(number + 2)
        return result

    def _handed_on(self, number: int, value: Any) -> Any:
        parts = self._seams.parts[number]
        if isinstance(value, Tensor) and has_gradients(value):
            value = torch.full_like(value, math.nan)
        return (value, *(None,) * (parts - 1)) if parts else value


def _there(tensor: Tensor, device: torch.device | str) -> Tensor:
    """In memory of the device's: what lies in a file is copied."""
    there = tensor.to(device)
    return there.clone() if there.device.type == "cpu" and there.untyped_storage().filename is not None else there


def has_memory(tensor: Tensor) -> bool:
    """Whether each of its numbers has a place of its own: not so of those that a part does not use."""
    return tensor.layout != torch.strided or tensor.untyped_storage().nbytes() >= tensor.nbytes


def _without_memory(tensor: Tensor, device: torch.device | str) -> Tensor:
    number = math.nan if has_gradients(tensor) else 0
    return torch.full((), number, dtype=tensor.dtype, device=device).expand(tensor.shape)


class WholeModel:
    """All tensors of a model, which parts of it free: :meth:`put_back` brings them back.

    Args:
        model: the whole model; what is in its buffers stays as it is meanwhile.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = [(parameter, parameter.data) for parameter in model.parameters()]
        self._buffers = [
            (module, name, each) for module in model.modules() for name, each in module.named_buffers(recurse=False)
        ]

    def put_back(self) -> None:
        """Have the model whole again, without gradients."""
        for parameter, data in self._weights:
            parameter.data, parameter.grad = data, None
        for module, name, buffer in self._buffers:
            setattr(module, name, buffer)


@torch.no_grad()
def check(model: nn.Module, blocks: Sequence[nn.Module], seams: Seams, loss: Callable[[], Tensor], seed: Seed) -> None:
    """See that parts of one block each compute what the whole model does; the model is as it was afterwards.

    The parts are computed from the last one to the first, after a pass in which all weights were NaN: so what a part
    uses of another one in any way shows, and what the code kept from an earlier pass, too, even where the first weights
    hide it from the loss (an output layer of zeros).

    Raises:
        CannotCut: they do not.
    """
    whole_again = WholeModel(model).put_back
    device = next(model.parameters()).device
    whole = Part(model, blocks, seams, 0, len(blocks))
    whole.seen = seen = dict[int, Tensors]()
    try:
        expected = whole.run(loss, (), seed)
        assert isinstance(expected, Tensor), "a loss is a tensor"
        whole.seen = None
        for parameter in model.parameters():
            parameter.data = _without_memory(parameter, device)
        with contextlib.suppress(Exception):  # it is looked at in a moment, with weights
            whole.run(loss, (), seed)
        for number in reversed(range(len(blocks))):
            whole_again()
            part = Part(model, blocks, seams, number, number + 1)
            part.move(device)
            given = tuple(each.clone() for each in seen.get(number, ()))  # a block may change what it is given
            found = part.run(loss, given, seed)
            if not _same(found, seen.get(number + 1, (expected,))):
                cause = f"block {number} in a part of its own gives something else than in the whole model"
                raise CannotCut(f"{cause}: it, or what follows it, uses more than what the block before gives")
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CannotCut(f"the model in parts fails: {type(error).__name__}: {error}") from error
    finally:
        whole_again()


def _same(found: Tensor | Tensors, wanted: Tensors) -> bool:
    """Whether these are the same but for rounding; what is not finite in ``wanted`` may be anything."""
    given = (found,) if isinstance(found, Tensor) else found
    for one, other in zip(given, wanted, strict=True):
        finite = other.isfinite()
        double = torch.complex128 if other.is_complex() else torch.float64
        one_, other_ = one[finite].to(double), other[finite].to(double)
        scale = float(other_.abs().max()) if other_.numel() else 0.0
        if not torch.allclose(one_, other_, rtol=1e-4, atol=1e-6 + 1e-5 * scale):
            return False
    return True
