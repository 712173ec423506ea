"""Values that an optimizer keeps, as tensors and numbers by name, for a file and for other processes.

A tensor or a number is one entry. Other plain data (a list, a mapping, an array, a random generator) is a JSON text
that refers to its tensors, which are entries beside it. Nothing is pickled.
"""

from __future__ import annotations

import json
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import torch
from torch import Tensor, nn

Entry = Tensor | float

MARK = "#"
"""In an entry's name: it belongs to a value that takes several entries."""

_LARGEST = 1 << 62  # a whole number in a tensor
_SEQUENCES: Mapping[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "deque": deque}
_MAPPINGS: Mapping[str, Callable[[Any], Any]] = {"dict": dict, "OrderedDict": OrderedDict}


class NotPortable(ValueError):
    """The state can't be kept in this form, or can't be used here."""


class Members:
    """The parameters that an optimizer steps: what is kept by one of them, or by its ``id``, is kept by its number."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.all: list[nn.Parameter] = [each for group in optimizer.param_groups for each in group["params"]]
        self._numbers = {id(each): number for number, each in enumerate(self.all)}

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Tensor) and id(value) in self._numbers

    def named(self, value: object) -> dict[str, int] | None:
        """What stands for a parameter or its ``id``; None: it is neither."""
        if value in self:
            return {"parameter": self._numbers[id(value)]}
        return {"id": self._numbers[value]} if type(value) is int and value in self._numbers else None


def token(key: object, members: Members) -> str:
    """A key as a part of a name, without any of ``. / ! ~ #``; raises NotPortable if it is no plain data."""
    if isinstance(key, str):
        return quote(key, safe="$").replace(".", "%2E").replace("~", "%7E")
    return "$" + token(json.dumps(_described(key, [], members)), members)


def key_of(name: str, members: Members) -> Any:
    """The key that :func:`token` named."""
    return _made(json.loads(unquote(name[1:])), "", {}, members) if name.startswith("$") else unquote(name)


def is_by_member(path: str, entry: Entry) -> bool:
    """Whether what was :func:`put` there names parameters by their numbers, which are others for other members."""
    text = bytes(entry.tolist()) if path.endswith(MARK) and isinstance(entry, Tensor) else b""
    return "$%7B" in path or b'{"parameter":' in text or b'{"id":' in text


def is_entry(value: object) -> bool:
    """Whether it is one entry by itself."""
    if isinstance(value, Tensor):
        return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided and not value.is_quantized
    return isinstance(value, bool | float) or (type(value) is int and abs(value) < _LARGEST)


def put(entries: MutableMapping[str, Entry], name: str, value: Any, members: Members, *, copied: bool = True) -> None:
    """Enter a value under a name; with ``copied`` False a CPU tensor itself. Raises NotPortable."""

    def kept(tensor: Tensor) -> Tensor:
        here = tensor.detach().cpu()
        return here.clone() if copied else here

    if is_entry(value) and members.named(value) is None:
        entries[name] = kept(value) if isinstance(value, Tensor) else value
        return
    tensors: list[Tensor] = []
    text = json.dumps(_described(value, tensors, members)).encode()
    entries[name + MARK] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    entries.update({f"{name}{MARK}{number}": kept(tensor) for number, tensor in enumerate(tensors)})


def values(entries: Mapping[str, Entry], members: Members) -> dict[str, Any]:
    """The values that were :func:`put` under these names; entries themselves are no copies. Raises NotPortable."""
    result: dict[str, Any] = {}
    for name, entry in entries.items():
        value, mark, number = name.partition(MARK)
        try:
            if not mark:
                result[name] = entry
            elif not number:
                text = json.loads(bytes(torch.as_tensor(entry).tolist()))
                result[value] = _made(text, name, entries, members)
        except (ValueError, LookupError, TypeError) as error:
            raise NotPortable(f"{value} can't be read: {error}") from error
    return result


# --- Random generators -----------------------------------------------------------------------------------------------


def _set_numpys(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


_RANDOM: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    "torch": (torch.Generator, lambda each: each.get_state(), lambda each, state: each.set_state(state.cpu())),
    "python": (random.Random, lambda each: each.getstate(), lambda each, state: each.setstate(state)),
    "numpy": (np.random.Generator, lambda each: each.bit_generator.state, _set_numpys),
}


class RandomState:
    """Where a random generator is."""

    def __init__(self, kind: str, state: Any) -> None:
        self.kind, self.state = kind, state

    @classmethod
    def of(cls, value: object) -> RandomState | None:
        """That of a generator; None: it is none."""
        kind = next((name for name, (made, _, _) in _RANDOM.items() if isinstance(value, made)), "")
        return cls(kind, _RANDOM[kind][1](value)) if kind else None

    def into(self, generator: object) -> object:
        """Bring it into a generator; raises TypeError if that is none of the kind."""
        kind, _, put_state = _RANDOM[self.kind]
        if not isinstance(generator, kind):
            raise TypeError(f"there is no generator, but a {type(generator).__name__}")
        put_state(generator, self.state)
        return generator


# --- JSON ------------------------------------------------------------------------------------------------------------


def _described(value: Any, tensors: list[Tensor], members: Members) -> Any:
    """``value`` for JSON; its tensors are added to the list."""

    def each(inner: Any) -> Any:
        return _described(inner, tensors, members)

    kind: object = type(value)
    name = type(value).__name__
    if (named := members.named(value)) is not None:
        return named
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        numbers = np.array(value)
        if numbers.dtype.kind not in "biuf":
            raise NotPortable(f"an array of {numbers.dtype}")
        tensors.append(torch.from_numpy(numbers))
        return {"array": len(tensors) - 1}
    if isinstance(value, Tensor) and is_entry(value):
        tensors.append(value)
        return {"tensor": len(tensors) - 1, "device": str(value.device)}
    if kind is _SEQUENCES.get(name):
        return {name: [each(inner) for inner in value], "at_most": getattr(value, "maxlen", None)}
    if kind is _MAPPINGS.get(name):
        return {name: [[each(key), each(inner)] for key, inner in value.items()]}
    if (random_state := RandomState.of(value)) is not None:
        return {"random": random_state.kind, "state": each(random_state.state)}
    raise NotPortable(f"a {name}")


def _made(text: Any, prefix: str, entries: Mapping[str, Entry], members: Members) -> Any:
    """What :func:`_described` described; its tensors are among the entries, by the prefix and their numbers."""

    def each(inner: Any) -> Any:
        return _made(inner, prefix, entries, members)

    if not isinstance(text, dict):
        return text
    kind, held = next(iter(text.items()))
    if kind in ("parameter", "id"):
        return members.all[held] if kind == "parameter" else id(members.all[held])
    if kind in ("tensor", "array"):
        tensor = torch.as_tensor(entries[f"{prefix}{held}"])
        on_cpu = kind == "array" or text["device"] == "cpu"
        copy = tensor.to(torch.device("cpu") if on_cpu else members.all[0].device, copy=True)
        return copy.numpy()[()] if kind == "array" else copy
    if kind in _SEQUENCES:
        made = [each(inner) for inner in held]
        return deque(made, text["at_most"]) if kind == "deque" else _SEQUENCES[kind](made)
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]([(each(key), each(inner)) for key, inner in held])
    return RandomState(held, each(text["state"]))
