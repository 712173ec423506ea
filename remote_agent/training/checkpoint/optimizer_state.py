"""Defines a portable form of an optimizer's ``state_dict()``, independent of layout, strategy and hosts.

By parameter: each entry (``exp_avg``, ``momentum_buffer``) has the parameter's shape; what counts for the parameter as
a whole (``step``) is a scalar. A shard holds pieces of the streamed flat buffer instead; :func:`assemble` and
:func:`cut` go from one form to the other, exactly. What belongs to no parameter (counts in the groups) is kept under
:data:`BESIDE`. A tensor or a number is one entry; a list or a mapping is a JSON text, with its tensors as entries
beside it. Nothing is pickled.

How a run keeps it, between two steps: ``snapshot`` of an actor copies the state within its own memory, which is short;
then training goes on, and ``snapshot_taken`` fetches the copy. A run that goes on from a checkpoint calls ``restore``
of an actor before its weights are published or streamed (``serve``, ``begin``, ``join``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remote_agent.training.shared import flat, optimizer_options
from remote_agent.training.shared.average import EMA, WeightAverage

Entries = Mapping[str, Tensor | float]
"""What is remembered about one parameter or one piece of the buffer, by name."""

States = Mapping[str, Entries]
"""What is remembered, by parameter; one that the optimizer has not stepped yet is not in it."""

Shapes = Mapping[str, torch.Size]
"""Shapes of the streamed parameters, in the order of the flat buffer."""

BESIDE = "(optimizer)"
"""In the place of a parameter's name: what the optimizer remembers beside its parameters' state."""

_MARK = "#"  # in an entry's name: it belongs to a value that takes several entries
_NUMBER = "!"  # after an entry's name: a Python number, not a tensor
_OWN_DTYPE = "~"  # after an entry's name: its dtype is not its parameter's, and must not become that
_OWN_EMA = f"%{ord(EMA[0]):x}{EMA[1:]}"  # for the optimizer's own entry of that name, which is not the run's average
_REMEMBERING = ("momentum", "amsgrad", "centered")
_LARGEST = 1 << 62  # a whole number in a tensor
_SCALARS = frozenset({"step", "mu_product"})  # what torch's elementwise optimizers count for a whole parameter


class NotPortable(ValueError):
    """The state can't be kept in this form, or can't be used here."""


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What a checkpoint holds beside weights and buffers.

    Attributes:
        optimizer: of the job's optimizer; with ``local_sgd`` of the outer one.
        inner: with ``local_sgd``: of each worker's own optimizer, in the order of the workers.
        missing: why ``optimizer`` holds the weights' average at most, though the optimizer remembers something.
    """

    optimizer: States = field(default_factory=dict)
    inner: tuple[States, ...] = ()
    missing: str = ""


Snapshot = Callable[[], TrainingState]
"""Fetches a state that was kept, from any thread, while training goes on; raises one of Ray's errors."""


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """What is remembered about the numbers ``begin`` to ``end`` (exclusive) of the flat buffer.

    ``entries`` have shape ``(end - begin,)``; scalars, which hold for all of these numbers, have shape ``()``.
    """

    begin: int
    end: int
    entries: Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """Where a run goes on: after ``step``, with ``state``; or, for one shard, with its ``pieces``, by (begin, end)."""

    step: int
    state: TrainingState = field(default_factory=TrainingState)
    pieces: Mapping[tuple[int, int], Mapping[str, Tensor]] = field(default_factory=dict)

    def of_chunk(self, shapes: Shapes, begin: int, end: int) -> Mapping[str, Tensor]:
        """What is remembered about the numbers ``begin`` to ``end`` of the flat buffer.

        Raises:
            NotPortable: parameters in that piece were not stepped alike, so that one piece can't stand for them.
        """
        if (begin, end) in self.pieces:
            return self.pieces[begin, end]
        return cut(self.state.optimizer, shapes, begin, end)


# --- A torch optimizer over whole parameters -------------------------------------------------------------------------


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """Its class, with those options of torch's optimizers that say what it remembers."""
    options = [name for name in _REMEMBERING if any(group.get(name) for group in optimizer.param_groups)]
    return type(optimizer).__name__ + (f" with {' and '.join(options)}" if options else "")


def of_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None = None, *, copied: bool = True
) -> dict[str, dict[str, Tensor | float]]:
    """Return a copy, on the CPU, of the optimizer's ``state_dict()``, by names of the trained parameters of ``model``.

    It includes the ``average`` of the weights, where one is kept. If it is not ``copied`` the next step changes it.

    Raises:
        NotPortable: ``state_dict()`` holds something that is no plain data.
    """
    try:
        given = optimizer.state_dict()
    except Exception as error:
        raise NotPortable(f"{type(optimizer).__name__}.state_dict failed: {error}") from error
    states, is_torchs = given.get("state", {}), type(optimizer).__module__.startswith("torch.")
    names = {id(parameter): name for name, parameter in flat.trained(model).items()}
    result: dict[str, dict[str, Tensor | float]] = {}
    if average is not None:
        result = {name: dict(each) for name, each in of_average(model, average).items()}
    try:
        for number, parameter in enumerate(_members(optimizer)):
            if (name := names.get(id(parameter))) is None:
                continue
            entries = result.setdefault(name, {})
            for key, value in states.get(number, {}).items():
                if value is None and is_torchs:
                    continue
                if not isinstance(key, str):
                    raise NotPortable(f"something by a {type(key).__name__}")
                entry = _OWN_EMA if key == EMA else quote(key, safe="").replace("~", "%7E")
                if _is_entry(value) and isinstance(value, Tensor):
                    entry = named(entry, value, parameter)
                _put(entries, entry, value, copied=copied)
        beside = {
            "state": {key: value for key, value in states.items() if not isinstance(key, int)},
            "groups": optimizer_options.changed(optimizer, given.get("param_groups", [])),
            "own": {key: value for key, value in given.items() if key not in ("state", "param_groups")},
        }
        if beside["state"] or beside["own"] or any(beside["groups"]):
            _put(result.setdefault(BESIDE, {}), "all", beside, copied=copied)
    except NotPortable as error:
        raise NotPortable(f"the optimizer {type(optimizer).__name__} remembers {error}") from error
    return {name: entries for name, entries in result.items() if entries}


def of_average(model: nn.Module, average: WeightAverage) -> dict[str, Entries]:
    """A copy, on the CPU, of the ``average`` alone, by parameter: where the optimizer's state can't be kept."""
    found = {name: dict(average.of(parameter)) for name, parameter in flat.trained(model).items()}
    return {name: entries for name, entries in found.items() if entries}


def only_average(states: States) -> dict[str, Entries]:
    """What ``states`` have of the weights' average."""
    return {name: {EMA: entries[EMA]} for name, entries in states.items() if EMA in entries}


def into_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, states: States, average: WeightAverage | None = None
) -> None:
    """Load ``states`` into ``optimizer``, on its parameters' devices; it forgets nothing about other parameters.

    What ``states`` hold of the weights' ``average`` goes there.

    Raises:
        NotPortable: they are of another model or of another kind of optimizer.
    """
    parameters = flat.trained(model)
    if unknown := [name for name in states if name not in parameters and name != BESIDE]:
        raise NotPortable(f"the optimizer's state names {unknown[0]}, which the model does not train")
    numbers = {id(parameter): number for number, parameter in enumerate(_members(optimizer))}
    kept: dict[int, Entries] = {}
    for name, entries in states.items():
        if name == BESIDE:
            continue
        parameter = parameters[name]
        if average is not None:
            average.take(parameter, entries.get(EMA))
        own = {key: value for key, value in entries.items() if key != EMA}
        if id(parameter) in numbers and own:
            kept[numbers[id(parameter)]] = own
    load(optimizer, kept, states.get(BESIDE, {}))


def named(key: str, value: Tensor, parameter: Tensor) -> str:
    """The name under which an entry is kept: it tells whether the dtype is its parameter's; a step is never cast."""
    return key if key == "step" or value.dtype == parameter.dtype else key + _OWN_DTYPE


def load(optimizer: torch.optim.Optimizer, kept: Mapping[int, Entries], beside: Entries | None = None) -> None:
    """Load ``kept``, by the optimizer's parameters' numbers, and what it remembers ``beside`` them.

    In place, unless the optimizer has a ``load_state_dict`` of its own: torch's would part a wrapper from what it
    wraps, which may have the same groups, and cast what has another dtype than its parameter.
    """
    if not kept and not beside:
        return
    members = _members(optimizer)
    device = members[0].device if members else torch.device("cpu")
    more = _values(beside, device).get("all", {}) if beside else {}
    shared, groups = more.get("state", {}), more.get("groups", [])
    of = [group for group in optimizer.param_groups for _ in group["params"]]
    states = {number: _loaded(entries, members[number], of[number]) for number, entries in kept.items()}
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        given = {**optimizer.state_dict(), **more.get("own", {})}
        if "state" in given:
            given["state"] = {**given["state"], **shared, **states}
        for group, own in zip(given.get("param_groups", []), groups, strict=False):
            group.update(own)
        try:
            optimizer.load_state_dict(given)
        except Exception as error:
            raise NotPortable(f"{type(optimizer).__name__}.load_state_dict failed: {error}") from error
        return
    for number, state in states.items():
        optimizer.state[members[number]].clear()
        optimizer.state[members[number]].update(state)
    optimizer.state.update(shared)
    if groups and len(groups) != len(optimizer.param_groups):
        raise NotPortable(f"it is of an optimizer with {len(groups)} groups")
    for group, own in zip(optimizer.param_groups, groups, strict=False):
        group.update(own)


def _loaded(entries: Entries, parameter: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a parameter, on its device and in the dtype that it had."""
    state: dict[str, Any] = {}
    for name, value in _values(entries, parameter.device).items():
        key = unquote(name.removesuffix(_OWN_DTYPE))
        if isinstance(value, Tensor) and name in entries:
            stays = key == "step" and not (group.get("capturable") or group.get("fused"))
            cast = parameter.is_floating_point() and key != "step" and not name.endswith(_OWN_DTYPE)
            dtype = parameter.dtype if cast else value.dtype
            value = value.to(value.device if stays else parameter.device, dtype, copy=True)
        state[key] = value
    return state


def _members(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [each for group in optimizer.param_groups for each in group["params"]]


# --- Plain data as entries -------------------------------------------------------------------------------------------


def _is_entry(value: object) -> bool:
    if isinstance(value, Tensor):
        return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided and not value.is_quantized
    return isinstance(value, bool | float) or (type(value) is int and abs(value) < _LARGEST)


def _put(entries: MutableMapping[str, Tensor | float], name: str, value: Any, *, copied: bool) -> None:
    """Enter a value under a name."""

    def kept(tensor: Tensor) -> Tensor:
        here = tensor.detach().cpu()
        return here.clone() if copied else here

    if _is_entry(value):
        entries[name] = kept(value) if isinstance(value, Tensor) else value
        return
    tensors: list[Tensor] = []
    text = json.dumps(described(value, tensors)).encode()
    entries[name + _MARK] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    entries.update({f"{name}{_MARK}{number}": kept(tensor) for number, tensor in enumerate(tensors)})


def _values(entries: Entries, device: torch.device) -> dict[str, Any]:
    """The values that were :func:`_put` under these names; tensors within lists are copied to ``device``."""
    result: dict[str, Any] = {}
    for name, entry in entries.items():
        value, mark, number = name.partition(_MARK)
        try:
            if not mark:
                result[name] = entry
            elif not number:
                text = json.loads(bytes(torch.as_tensor(entry).tolist()))
                tensors = {
                    each[len(name) :]: torch.as_tensor(entries[each])
                    for each in entries
                    if each.startswith(name) and each != name
                }
                result[value] = from_described(text, tensors, device)
        except (ValueError, LookupError, TypeError) as error:
            raise NotPortable(f"{value} can't be read: {error}") from error
    return result


def described(value: Any, tensors: list[Tensor]) -> Any:
    """``value`` for JSON; its tensors are added to the list."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor) and _is_entry(value):
        tensors.append(value)
        return {"tensor": len(tensors) - 1, "on_cpu": value.device.type == "cpu"}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [described(each, tensors) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[described(key, tensors), described(each, tensors)] for key, each in value.items()]}
    raise NotPortable(f"a {type(value).__name__}")


def from_described(text: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """What :func:`described` described."""
    if not isinstance(text, dict):
        return text
    kind, held = next(iter(text.items()))
    if kind == "tensor":
        return tensors[str(held)].to("cpu" if text["on_cpu"] else device, copy=True)
    if kind == "dict":
        return {from_described(key, tensors, device): from_described(each, tensors, device) for key, each in held}
    made = [from_described(each, tensors, device) for each in held]
    return tuple(made) if kind == "tuple" else made


# --- On the wire -----------------------------------------------------------------------------------------------------

Packed = Mapping[str, Mapping[str, "float | tuple[str, tuple[int, ...], NDArray[np.uint8]]"]]
"""As :data:`States`, with each tensor as dtype, shape and bytes: to pickle bytes takes no copy, a tensor takes two."""


def packed(states: States) -> Packed:
    """Convert for the wire; what is on the CPU is not copied."""

    def numbers(value: Tensor) -> tuple[str, tuple[int, ...], NDArray[np.uint8]]:
        return str(value.dtype), tuple(value.shape), flat.to_bytes(value.reshape(-1))

    return {
        name: {key: numbers(value) if isinstance(value, Tensor) else value for key, value in entries.items()}
        for name, entries in states.items()
    }


def unpacked(given: Packed, *, copied: bool = False) -> dict[str, dict[str, Tensor | float]]:
    """Convert back from :func:`packed`; unless ``copied``, the tensors may be read-only."""

    def tensor(dtype: str, shape: tuple[int, ...], numbers: NDArray[np.uint8]) -> Tensor:
        own = numbers.copy() if copied else numbers
        return flat.from_bytes(own, getattr(torch, dtype.removeprefix("torch."))).view(shape)

    return {
        name: {key: tensor(*value) if isinstance(value, tuple) else value for key, value in entries.items()}
        for name, entries in given.items()
    }


# --- Pieces of the flat buffer ---------------------------------------------------------------------------------------


def assemble(fragments: Iterable[Fragment], shapes: Shapes) -> dict[str, dict[str, Tensor | float]]:
    """By parameter, what ``fragments`` (in any order; together the whole buffer) hold.

    An entry that not all pieces of a parameter have is left out.
    """
    ordered = sorted(fragments, key=lambda fragment: fragment.begin)
    result: dict[str, dict[str, Tensor | float]] = {}
    first, begin = 0, 0
    for name, shape in shapes.items():
        end = begin + shape.numel()
        while first < len(ordered) and ordered[first].end <= begin:
            first += 1
        touching = []
        for fragment in ordered[first:]:
            if fragment.begin >= end:
                break
            touching.append(fragment)
        entries: dict[str, Tensor | float] = {}
        common = set.intersection(*(set(fragment.entries) for fragment in touching)) if touching else set()
        for key in sorted(common):
            values = [fragment.entries[key] for fragment in touching]
            if all(value.dim() == 0 for value in values):
                entries[key] = torch.stack(values).max()
                continue
            parts = [
                fragment.entries[key][max(begin, fragment.begin) - fragment.begin : end - fragment.begin]
                for fragment in touching
            ]
            entries[key] = torch.cat(parts).view(shape)
        if entries:
            result[name] = entries
        begin = end
    return result


def cut(states: States, shapes: Shapes, begin: int, end: int) -> dict[str, Tensor]:
    """The numbers ``begin`` to ``end`` of the flat buffer out of ``states``: what :class:`Fragment` holds of them.

    Raises:
        NotPortable: parameters in that piece were not stepped alike, so that one piece can't stand for them.
    """
    pieces: list[tuple[str, Entries, slice]] = []
    at = 0
    for name, shape in shapes.items():
        last = at + shape.numel()
        if at < end and last > begin:
            pieces.append((name, states.get(name, {}), slice(max(begin, at) - at, min(end, last) - at)))
        at = last
    keys = {tuple(sorted(entries)) for _, entries, _ in pieces}
    if len(keys) > 1:  # parameters of several dtypes: what only some keep in their own is cast for all
        pieces = [
            (name, {key.removesuffix(_OWN_DTYPE): value for key, value in entries.items()}, part)
            for name, entries, part in pieces
        ]
        keys = {tuple(sorted(entries)) for _, entries, _ in pieces}
    if len(keys) > 1:
        raise NotPortable(f"not every parameter from {pieces[0][0]} to {pieces[-1][0]} was stepped")
    result: dict[str, Tensor] = {}
    for key in keys.pop() if keys else ():
        if _MARK in key:
            raise NotPortable(f"{key.partition(_MARK)[0]} is no tensor, and can't be cut")
        values = [torch.as_tensor(entries[key]) for _, entries, _ in pieces]
        if _is_scalar(key, values, [shapes[name] for name, _, _ in pieces]):
            if any(not torch.equal(value, values[0]) for value in values):
                raise NotPortable(f"{key} differs among the parameters from {pieces[0][0]} to {pieces[-1][0]}")
            result[key] = values[0].clone()
        else:
            parts = [value.reshape(-1)[part] for value, (_, _, part) in zip(values, pieces, strict=True)]
            result[key] = torch.cat(parts)
    return result


def _is_scalar(key: str, values: list[Tensor], shapes: list[torch.Size]) -> bool:
    """Whether an entry holds for whole parameters; a parameter without dimensions alone does not show it."""
    telling = [value.dim() == 0 for value, shape in zip(values, shapes, strict=True) if len(shape)]
    return all(telling) if telling else key.removesuffix(_OWN_DTYPE) in _SCALARS


# --- The workers' own optimizers -------------------------------------------------------------------------------------


def for_workers(inner: Sequence[States], workers: int) -> tuple[States, ...]:
    """The states that ``workers`` workers start with, when ``inner`` is what as many or other ones remembered.

    As many: each takes over one. Else all start with the mean, and with the largest count of steps: moments are means
    of gradients, and the mean over more of them is as good a start.
    """
    if len(inner) == workers:
        return tuple(inner)
    mean: dict[str, dict[str, Tensor | float]] = {}
    for name in sorted(set.intersection(*(set(states) for states in inner))):
        entries: dict[str, Tensor | float] = {}
        for key, first in inner[0][name].items():
            values = [torch.as_tensor(states[name][key]) for states in inner if key in states[name]]
            if _MARK in key or any(value.shape != values[0].shape for value in values):
                entries[key] = first  # a mean of lists says nothing
            elif _is_scalar(key, values[:1], [values[0].shape]) or not values[0].is_floating_point():
                most = torch.stack(values).amax(0)
                entries[key] = most if isinstance(first, Tensor) else most.item()
            else:
                entries[key] = torch.stack(values).mean(0)
        mean[name] = entries
    return (mean,) * workers


# --- One flat set of tensors -----------------------------------------------------------------------------------------


def pack(state: TrainingState) -> dict[str, Tensor]:
    """``state`` as tensors by name, for a file: ``optimizer/exp_avg/layers.0.weight``, ``inner.1/step/...``."""
    result: dict[str, Tensor] = {}
    parts = {"optimizer": state.optimizer} | {f"inner.{number}": states for number, states in enumerate(state.inner)}
    for part, states in parts.items():
        for name, entries in states.items():
            for key, value in entries.items():
                mark = "" if isinstance(value, Tensor) else _NUMBER
                kind = torch.float64 if isinstance(value, float) else None
                result[f"{part}/{key}{mark}/{name}"] = torch.as_tensor(value, dtype=kind).contiguous()
    return result


def unpack(tensors: Mapping[str, Tensor], missing: str = "") -> TrainingState:
    """What :func:`pack` packed; raises NotPortable if a name is not of that form."""
    parts: dict[str, dict[str, dict[str, Tensor | float]]] = {}
    for label, tensor in tensors.items():
        part, _, rest = label.partition("/")
        key, _, name = rest.partition("/")
        if not name:
            raise NotPortable(f"{label} does not name an entry of an optimizer's state")
        number = key.endswith(_NUMBER)
        entries = parts.setdefault(part, {}).setdefault(name, {})
        entries[key.removesuffix(_NUMBER)] = tensor.item() if number else tensor
    workers = sorted((part for part in parts if part.startswith("inner.")), key=lambda part: int(part[len("inner.") :]))
    return TrainingState(
        optimizer=parts.get("optimizer", {}), inner=tuple(parts[part] for part in workers), missing=missing
    )
