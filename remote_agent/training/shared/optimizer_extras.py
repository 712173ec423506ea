"""What an optimizer remembers beside its parameters' state: numbers in its groups, attributes, what its hooks count.

Schedule-free optimizers and Prodigy count in their parameter groups, many written by hand in attributes (a step, slow
weights in a list, a generator), wrappers have another optimizer within, and hooks of the step count in a variable
around them. A worker that comes later, and a run that goes on, need that too. What is the same as when the optimizer
was made, or was set by a schedule, is left to the job's code and the run's settings.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor

from remote_agent.training.shared import flat

NAME = "(optimizer)"
"""In the place of a parameter's name, where states are kept by these."""

# By hand, since to make an optimizer here and look at it would load torch's compiler.
_TORCHS = frozenset(
    {"defaults", "param_groups", "params"}
    | {f"_optimizer_{each}_hooks" for each in ("step_pre", "step_post", "state_dict_pre", "state_dict_post")}
    | {f"_optimizer_load_state_dict_{each}_hooks" for each in ("pre", "post")}
    | {"_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured", "_need_device_dtype_check_for_fused"}
    | {"_step_supports_amp_scaling", "_opt_called", "_numel_cache", "_params"}
)  # and the state of the optimizer itself: its keys are no names
_DEPTH = 6

_first: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[str, object]] = weakref.WeakKeyDictionary()


def begin(optimizer: torch.optim.Optimizer) -> None:
    """Note what the optimizer is before its first step."""
    _first[optimizer] = {path: _mark(value) for path, value in _values(optimizer)}


def was_set(optimizer: torch.optim.Optimizer, group: int, options: Mapping[str, Any]) -> None:
    """A schedule has set these options of a group: they are not the optimizer's own."""
    if optimizer in _first:
        _first[optimizer] |= {f"groups.{group}.{name}": _mark(value) for name, value in options.items()}


def of(optimizer: torch.optim.Optimizer) -> dict[str, Tensor | float]:
    """A copy, on the CPU, of what has changed since :func:`begin`, by where it is."""
    first = _first.get(optimizer)
    if first is None:
        return {}
    return {path: _copied(value) for path, value in _values(optimizer) if first.get(path) != _mark(value)}


def into(optimizer: torch.optim.Optimizer, entries: Mapping[str, Tensor | float]) -> None:
    """Have the optimizer be what :func:`of` gave of another one.

    Raises:
        ValueError: it has no such place: it is another kind of optimizer now.
    """
    for path, value in entries.items():
        *way, last = path.split(".")
        place: Any = _roots(optimizer)
        try:
            for key in way:
                place = _entered(place[_key(place, key)])
            _put(place, _key(place, last), value)
        except (LookupError, TypeError, RuntimeError) as error:
            raise ValueError(f"the optimizer has no {path} any more") from error


def _key(place: Any, key: str) -> str | int:
    return int(key) if isinstance(place, MutableSequence) else key


def _put(place: Any, key: str | int, value: Tensor | float) -> None:
    now = place[key] if isinstance(key, int) or key in place else None
    if isinstance(now, torch.Generator) and isinstance(value, Tensor):
        now.set_state(value)
    elif isinstance(now, Tensor) and isinstance(value, Tensor) and now.shape == value.shape:
        with torch.no_grad():
            now.copy_(value)
    else:
        place[key] = value.clone() if isinstance(value, Tensor) else value


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


def _roots(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return {
        "groups": optimizer.param_groups,
        "own": vars(optimizer),
        **{name: list(getattr(optimizer, name, {}).values()) for name in hooks},
    }


def _entered(value: Any) -> Any:
    """What of a value is entered, as a mapping or a sequence; None: nothing."""
    if isinstance(value, MutableMapping | MutableSequence):
        return value
    if isinstance(value, FunctionType):
        return _Cells(value)
    if isinstance(value, torch.optim.Optimizer):  # within a wrapper
        members = [each for group in value.param_groups for each in group["params"]]
        return {"groups": value.param_groups, "state": [value.state[each] for each in members], "own": vars(value)}
    return None


def _values(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, object]]:
    for name, root in _roots(optimizer).items():
        yield from _plain(name, root, _DEPTH, optimizer)


def _plain(path: str, value: object, depth: int, whole: torch.optim.Optimizer) -> Iterator[tuple[str, object]]:
    """Numbers, tensors and generators, but no parameters, and not ``whole``'s own state; see :func:`_entered`."""
    if isinstance(value, torch.nn.Parameter) or value is whole or not depth:
        return
    if isinstance(value, bool | int | float | torch.Generator | Tensor):
        yield path, value
        return
    entered = _entered(value)
    entries = () if entered is None else list(entered.items() if isinstance(entered, Mapping) else enumerate(entered))
    for key, entry in entries:
        is_name = isinstance(key, int) if isinstance(entered, MutableSequence) else isinstance(key, str)
        if is_name and key not in _TORCHS and not str(key).startswith("__") and not set(str(key)) & set("./!"):
            yield from _plain(f"{path}.{key}", entry, depth - 1, whole)


def _mark(value: object) -> object:
    """Tells whether a value was changed, in little memory."""
    if isinstance(value, torch.Generator):
        return flat.fingerprint(value.get_state())
    return flat.digest(value) if isinstance(value, Tensor) else value


def _copied(value: Any) -> Tensor | float:
    if isinstance(value, torch.Generator):
        return value.get_state()
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value
