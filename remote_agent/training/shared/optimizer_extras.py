"""What an optimizer remembers beside its parameters' state: numbers in its groups, attributes, what its hooks use.

Schedule-free optimizers and Prodigy count in their parameter groups, many written by hand in attributes (a step, slow
weights in a list or by parameter, a generator), wrappers have another optimizer within, and hooks of the step use
variables, objects and modules around them. A worker that comes later, and a run that goes on, need that too. What is
the same as when the optimizer was made, or was set by a schedule, is left to the job's code and the run's settings.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.training.shared import flat, portable
from remote_agent.training.shared.portable import Entry, Members, NotPortable, RandomState

NAME = "(optimizer)"
"""In the place of a parameter's name, where states are kept by these."""

MOST_ENTRIES = 10_000
"""A container with more is not entered."""

MOST_NUMBERS = 1_000_000
"""Of a tensor, that tell whether it changed: of a larger one every so many."""

# By hand, since to make an optimizer here and look at it would load torch's compiler.
_TORCHS = frozenset(
    {"defaults", "param_groups", "params", "state"}
    | {f"_optimizer_{each}_hooks" for each in ("step_pre", "step_post", "state_dict_pre", "state_dict_post")}
    | {f"_optimizer_load_state_dict_{each}_hooks" for each in ("pre", "post")}
    | {"_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured", "_need_device_dtype_check_for_fused"}
    | {"_step_supports_amp_scaling", "_opt_called", "_numel_cache", "_params"}
)
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_LOGGERS = {"tqdm", "wandb", "mlflow", "tensorboard", "loguru", "rich"}
_OTHERS = {"builtins", "torch", "numpy", "ray"} | _LOGGERS
_FOREIGN = frozenset(sys.stdlib_module_names) - {"types", "argparse"} | _OTHERS  # SimpleNamespace is of types
_DEPTH = 12

_first: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[str, object]] = weakref.WeakKeyDictionary()
_steps: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[nn.Parameter]] = weakref.WeakKeyDictionary()
"""What each was made over: a stage of a pipeline steps some of them alone."""

_models: weakref.WeakKeyDictionary[torch.optim.Optimizer, nn.Module] = weakref.WeakKeyDictionary()


def begin(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Note what the optimizer of ``model`` is before its first step."""
    _steps[optimizer], _models[optimizer] = Members(optimizer).all, model
    walk, marks = _Walk(optimizer), dict[str, object]()

    def note(path: str, value: object) -> None:
        marks[path] = _mark(value, walk.members)
        for inner, each in walk.parts(path, value):
            note(inner, each)

    note("", optimizer)
    _first[optimizer] = marks


def was_set(optimizer: torch.optim.Optimizer, group: int, options: Mapping[str, Any]) -> None:
    """A schedule has set these options of a group: they are not the optimizer's own."""
    if optimizer in _first:
        members = Members(optimizer)
        marks = {name: _mark(value, members) for name, value in options.items()}
        _first[optimizer] |= {f".groups.{group}.{name}": mark for name, mark in marks.items()}


def of(optimizer: torch.optim.Optimizer) -> dict[str, Entry]:
    """A copy, on the CPU, of what changed since :func:`begin`, by place; raises NotPortable."""
    first = _first.get(optimizer)
    if first is None:
        return {}
    walk, found = _Walk(optimizer), dict[str, Entry]()

    def collect(path: str, value: object) -> None:
        if path in first and first[path] == _mark(value, walk.members):
            for inner, each in walk.parts(path, value):
                collect(inner, each)
            return
        try:
            if _UNNAMED in path:
                raise NotPortable("something by a key that is no plain data")
            portable.put(found, path[1:], value, walk.members)
        except NotPortable as error:
            if _may_remember(value):
                where = path.rpartition(".")[2].partition("$")[0] or path
                raise NotPortable(f"the optimizer {type(optimizer).__name__} keeps {error} ({where})") from error

    collect("", optimizer)
    return found


def into(optimizer: torch.optim.Optimizer, entries: Mapping[str, Entry]) -> None:
    """Load what :func:`of` gave for another optimizer; raises NotPortable if it lacks such a place."""
    walk = _Walk(optimizer)
    for path, value in portable.values(entries, walk.members).items():
        try:
            _bring(walk, optimizer, path.split("."), value)
        except (LookupError, TypeError, RuntimeError, ValueError) as error:
            raise NotPortable(f"the optimizer has no {path} any more") from error


def _bring(walk: _Walk, holder: Any, way: list[str], value: object) -> Any:
    """Have a value be at the end of the way from ``holder``; returns what is to be in the place of ``holder``."""
    if not way:
        return _renewed(holder, value, walk.members)
    inside = walk.entered(holder)
    if inside is None:
        raise LookupError(way[0])
    is_mapping = isinstance(inside, Mapping)
    key = portable.key_of(way[0], walk.members) if is_mapping else int(way[0])
    is_new = is_mapping and key not in inside and len(way) == 1
    now = None if is_new else inside[key]
    new = _bring(walk, now, way[1:], value)
    if new is not now or is_new:
        if isinstance(inside, tuple):
            return tuple(new if number == key else each for number, each in enumerate(inside))
        inside[key] = new
    return holder


@torch.no_grad()
def _renewed(now: Any, value: Any, members: Members) -> Any:
    """``now`` with this value, where other places may refer to it, too; else the value."""
    if isinstance(value, RandomState):
        return value.into(now)
    if isinstance(value, Tensor):
        if isinstance(now, Tensor) and now.shape == value.shape:
            return now.copy_(value)
        if isinstance(now, Tensor):
            return value.to(now.device, copy=True)
        return value.to(members.all[0].device if value.dim() else value.device, copy=True)  # a count may be anywhere
    if isinstance(now, dict) and isinstance(value, dict):
        now.clear()
        now.update(value)
        return now
    if isinstance(now, list) and isinstance(value, list):
        now[:] = value
        return now
    return value


class _Cells(MutableMapping[str, Any]):
    """The variables around a function that it uses."""

    def __init__(self, function: FunctionType) -> None:
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))

    def __getitem__(self, name: str) -> Any:
        return self._cells[name].cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self._cells[name].cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self._cells[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, cell in self._cells.items() if cell != CellType())  # an empty one has no value yet

    def __len__(self) -> int:
        return len(list(iter(self)))


class _Walk:
    """One walk over what an optimizer reaches, in the same order in each process that makes it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.members = Members(optimizer)
        self._trained = {id(each) for each in (*self.members.all, *_steps.get(optimizer, ()))}
        self._whole = optimizer
        self._seen: dict[int, object] = {}  # kept, so that no other one gets its number

    def parts(self, path: str, value: Any) -> list[tuple[str, Any]]:
        """What is in a value, by path; empty where it was entered before, or nothing is."""
        inside = self.entered(value) if id(value) not in self._seen and path.count(".") < _DEPTH else None
        if inside is None:
            return []
        self._seen[id(value)] = value
        entries = list(inside.items() if isinstance(inside, Mapping) else enumerate(inside))
        is_state, is_mapping = value is self._whole.state, isinstance(inside, Mapping)
        return [
            (f"{path}.{_token(key, self.members) if is_mapping else key}", each)
            for key, each in entries
            # What it steps is not its own, and what it keeps by that in its state is kept apart.
            if id(each) not in self._trained and not (is_state and isinstance(key, Tensor))
        ]

    def entered(self, value: Any) -> Any:
        """What of a value is entered, as a mapping or a sequence; None: nothing."""
        if isinstance(value, dict | list | tuple | _Cells | _Group | _Numbers):
            return value if len(value) <= MOST_ENTRIES else None
        if isinstance(value, torch.optim.Optimizer):
            return {
                "groups": [_Group(group) for group in value.param_groups],
                "state": value.state,
                "own": _Attributes(value),
                "model": _Numbers(_models[value]) if value in _models else {},
                **{name: list(getattr(value, name, {}).values()) for name in _HOOKS},
            }
        if isinstance(value, FunctionType):
            return _Cells(value)
        if isinstance(value, MethodType):
            return {"self": value.__self__, "function": value.__func__}
        if isinstance(value, functools.partial):
            return {"function": value.func, "args": value.args, "keywords": value.keywords}
        if isinstance(value, nn.Module) and any(id(each) in self._trained for each in value.parameters()):
            return None  # the model
        return vars(value) if _is_object(value) else None


class _Group(MutableMapping[str, Any]):
    """A parameter group without its parameters."""

    def __init__(self, group: dict[str, Any]) -> None:
        self._group = group

    def __getitem__(self, name: str) -> Any:
        return self._group[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._group[name] = value

    def __delitem__(self, name: str) -> None:
        del self._group[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._group if name != "params")

    def __len__(self) -> int:
        return len(self._group) - 1


class _Numbers(MutableMapping[str, Any]):
    """Numbers and texts in attributes of a model's modules, which a hook of the step may change (a temperature)."""

    def __init__(self, model: nn.Module) -> None:
        self._places = {
            f"{path}.{name}": (module, name)
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str) and name != "training" and not name.startswith("_")
        }

    def __getitem__(self, place: str) -> Any:
        module, name = self._places[place]
        return getattr(module, name)

    def __setitem__(self, place: str, value: Any) -> None:
        module, name = self._places[place]
        setattr(module, name, value)

    def __delitem__(self, place: str) -> None:
        del self._places[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class _Attributes(dict[str, Any]):
    """An optimizer's attributes but those that torch itself gives it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__({name: value for name, value in vars(optimizer).items() if name not in _TORCHS})
        self._optimizer = optimizer

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._optimizer, name, value)


_UNNAMED = "?"


def _token(key: object, members: Members) -> str:
    try:
        return portable.token(key, members)
    except NotPortable:
        return _UNNAMED


def _is_object(value: object) -> bool:
    """Whether it is an object with attributes, of the user's classes or a part of a model or of an optimizer."""
    if isinstance(value, type | Tensor) or not hasattr(value, "__dict__"):
        return False
    module = type(value).__module__
    is_known = isinstance(value, nn.Module) or module.startswith("torch.optim")
    return is_known or module.partition(".")[0] not in _FOREIGN


def _is_iterator(value: object) -> bool:
    """Whether its position can't be read or set; files and the like are not meant."""
    return isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools")


def _may_remember(value: object) -> bool:
    """Whether a value that is no plain data may be what an optimizer goes by: no function, device or lock."""
    containers = (dict, list, tuple, set, deque, np.ndarray, Tensor)
    return isinstance(value, containers) or _is_iterator(value) or _is_object(value)


def _mark(value: Any, members: Members) -> object:
    """Tells whether a value was changed, in little memory; of what is entered whether it is another one."""
    if value is None or isinstance(value, bool | int | float | str | complex | bytes):
        return type(value), value
    if isinstance(value, Tensor):
        return _mark_of_tensor(value)
    if isinstance(value, dict | list | tuple):
        return type(value), 0 if isinstance(value, dict) else len(value)
    if _is_iterator(value):
        return object()  # as if each step took from it
    kept: dict[str, Entry] = {}
    try:
        portable.put(kept, "", value, members)
    except NotPortable:
        return type(value)
    return {name: flat.fingerprint(torch.as_tensor(each)) for name, each in kept.items()}


def _mark_of_tensor(tensor: Tensor) -> object:
    found: object = type(tensor)
    if portable.is_entry(tensor):
        found = repr(flat.digest(flat.some(tensor, MOST_NUMBERS)))
    return tuple(tensor.shape), tensor.dtype, tensor.is_inference() or tensor._version, found  # noqa: SLF001
