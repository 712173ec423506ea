"""One flat buffer per dtype: the model's tensors are views into it, so a step moves one array, not hundreds.

What travels is a :data:`Payload`: a tuple of byte arrays, one per group, in the groups' order. Bytes, because NumPy
does not know bfloat16; Ray hands such arrays from its object store to a reader on the same host without a copy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Payload = tuple[NDArray[np.uint8], ...]

HALVES = (torch.float16, torch.bfloat16)
"""The dtypes of half precision."""


@dataclass(frozen=True)
class Group:
    """Tensors of one dtype, laid out one after the other; ``names``: in the order of the model."""

    dtype: torch.dtype
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def numel(self) -> int:
        """Elements of the group."""
        return sum(shape.numel() for shape in self.shapes)

    def allocate(self, device: torch.device | str = "cpu") -> Tensor:
        """A flat buffer of zeros for the group, shape ``(numel,)``."""
        return torch.zeros(self.numel, dtype=self.dtype, device=device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views into ``flat`` with the group's shapes."""
        parts = torch.split(flat, [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def group(tensors: Mapping[str, Tensor]) -> tuple[Group, ...]:
    """``tensors`` by dtype, in the order in which the dtypes first occur."""
    by_dtype: dict[torch.dtype, list[str]] = {}
    for name, tensor in tensors.items():
        by_dtype.setdefault(tensor.dtype, []).append(name)
    return tuple(
        Group(dtype, tuple(names), tuple(tensors[name].shape for name in names)) for dtype, names in by_dtype.items()
    )


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes; a tied one counts once, a frozen one not at all."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def state(model: nn.Module) -> dict[str, Tensor]:
    """What is not trained: buffers and frozen parameters. The job's code may change them all the same."""
    frozen = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return {**dict(model.named_buffers()), **frozen}


def buffers(model: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    """The model's buffers and frozen parameters of these names, as they are now."""
    everything = state(model)
    return {name: everything[name] for name in names}


class BoundBuffers:
    """Keeps a model's buffers the tensors that they are, whatever its code does with their names.

    Code that assigns (``self.mean = 0.9 * self.mean + ...``) puts a new tensor in a buffer's place, while what is
    gathered, averaged and kept is the one that was there. A buffer of another shape or kind than before is no state
    that is carried on, but made anew where it is needed (a mask): it is left alone.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module._buffers, name, tensor)  # noqa: SLF001 - the one way to a buffer as it is, not as a copy
            for module in model.modules()
            for name, tensor in module._buffers.items()  # noqa: SLF001
            if tensor is not None
        ]

    @torch.no_grad()
    def settle(self) -> None:
        """Bring new values into the tensors that were there, and these to their places."""
        for buffers, name, tensor in self._places:
            now = buffers.get(name)
            if now is not None and now is not tensor and _kind(now) == _kind(tensor):
                tensor.copy_(now)
                buffers[name] = tensor


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def kept(model: nn.Module) -> dict[str, Tensor]:
    """What of a model is kept in a checkpoint, as it lies there."""
    return {name: value.detach() for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def carried(model: nn.Module) -> dict[str, Tensor]:
    """What another process needs to go on: what is :func:`kept`, and trained weights that a state dict leaves out."""
    return {**{name: each.detach() for name, each in trained(model).items()}, **kept(model)}


def fingerprint(tensor: Tensor) -> str:
    """Says of two tensors whether they are the same, to the bit."""
    numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    about = f"{tensor.dtype} {tuple(tensor.shape)}"
    return hashlib.blake2b(numbers.data, key=about.encode(), digest_size=16).hexdigest()


def trained_as(model: nn.Module) -> str:
    """Says of two models whether they train the same parameters, by their names."""
    return hashlib.blake2b("\n".join(sorted(trained(model))).encode(), digest_size=16).hexdigest()


def some(tensor: Tensor, most: int) -> Tensor:
    """At most so many of a tensor's numbers, from all over it, in a row."""
    return tensor.detach().reshape(-1)[:: 1 + tensor.numel() // most]


def digest(tensor: Tensor) -> tuple[tuple[int, ...], float, float]:
    """Shape, sum and sum of squares: what tells in little memory whether a tensor was changed."""
    numbers = tensor.detach().cpu()
    numbers = (torch.view_as_real(numbers) if numbers.is_complex() else numbers).double()
    return tuple(tensor.shape), float(numbers.sum()), float((numbers * numbers).sum())


def _differs(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return one[0] == other[0] and repr(one) != repr(other)  # the sum of NaN is not equal to itself


class LocalState:
    """What is neither trained nor travels with the weights: a change of it would stay in one process.

    Args:
        travels: names of buffers and frozen parameters that do.
    """

    def __init__(self, model: nn.Module, travels: Sequence[str]) -> None:
        self._model = model
        self._digests = {name: digest(tensor) for name, tensor in state(model).items() if name not in travels}

    def changed(self) -> str:
        """The name of one that is not what it was, in place or by assignment; empty: all are.

        One of another shape is made anew where it is needed (a mask), and no state.
        """
        now = {name: digest(tensor) for name, tensor in state(self._model).items() if name in self._digests}
        return next((name for name, seen in now.items() if _differs(seen, self._digests[name])), "")


class FlatTensors:
    """The trained parameters of a model, moved into one flat buffer per dtype; the parameters become views into it."""

    def __init__(self, model: nn.Module, device: torch.device | str = "cpu") -> None:
        parameters = trained(model)
        self.groups = group(parameters)
        self.flats = [entry.allocate(device) for entry in self.groups]
        self.parameters = [[parameters[name] for name in entry.names] for entry in self.groups]
        with torch.no_grad():
            for entry, flat, members in zip(self.groups, self.flats, self.parameters, strict=True):
                for parameter, view in zip(members, entry.views(flat), strict=True):
                    view.copy_(parameter)
                    parameter.data = view

    def settle(self) -> None:
        """Have the parameters be views again, with the values that they have now; see :func:`settle`."""
        for entry, flat, members in zip(self.groups, self.flats, self.parameters, strict=True):
            settle(members, entry.views(flat))

    @torch.no_grad()
    def load(self, payload: Payload) -> None:
        """Copy weights that arrived into the model; ``payload`` may hold more after them."""
        for flat, entry, array in zip(self.flats, self.groups, payload, strict=False):
            flat.copy_(from_bytes(array, entry.dtype))


@torch.no_grad()
def settle(parameters: Iterable[nn.Parameter], views: Iterable[Tensor]) -> None:
    """Have each parameter be its view again: an optimizer may have put it elsewhere (``p.data = p.data - ...``)."""
    for parameter, view in zip(parameters, views, strict=True):
        if parameter.data_ptr() != view.data_ptr():
            view.copy_(parameter)
            parameter.data = view


def users_of(flats: Iterable[Tensor]) -> int:
    """How many tensors have their numbers in the memory of these, themselves and views among them."""
    count = torch._C._storage_Use_Count  # noqa: SLF001 - there is no public name
    return sum(count(flat.untyped_storage()._cdata) for flat in flats)  # noqa: SLF001


def norm(flats: Sequence[Tensor]) -> float:
    """The norm of all the flat tensors' numbers together; their memory is read once more."""
    return math.sqrt(sum(float(torch.linalg.vector_norm(flat, dtype=wide(flat.dtype))) ** 2 for flat in flats))


def wide(dtype: torch.dtype) -> torch.dtype:
    """What numbers are added up in: half precision would lose more with each, and squares would overflow."""
    return torch.float32 if dtype in HALVES else dtype


def to_bytes(flat: Tensor) -> NDArray[np.uint8]:
    """``flat``'s memory as bytes, without a copy when it is on the CPU."""
    return flat.detach().cpu().view(torch.uint8).numpy()


def from_bytes(array: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
    """A tensor over ``array``'s memory, shape ``(numel,)``; read it only: the object store's arrays are shared."""
    return torch.from_numpy(array).view(dtype)


def gather(tensors: Mapping[str, Tensor]) -> Payload:
    """``tensors`` as one array per dtype, in the layout of :func:`group`."""
    groups = group(tensors)
    return tuple(to_bytes(torch.cat([tensors[name].reshape(-1) for name in entry.names])) for entry in groups)


def scatter(tensors: Mapping[str, Tensor], payload: Payload) -> None:
    """Copy what :func:`gather` gave for tensors like these into them."""
    for entry, array in zip(group(tensors), payload, strict=True):
        for name, view in zip(entry.names, entry.views(from_bytes(array, entry.dtype)), strict=True):
            tensors[name].copy_(view)
