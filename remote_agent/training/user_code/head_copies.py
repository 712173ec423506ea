"""The coordinator's own copies of the job, its model, optimizer and data, from which nothing is trained.

What a callback, ``evaluate`` or a scheduler changes there (a temperature, a learning rate, ``requires_grad``, the
strength of an augmentation, weights) reaches no worker, and the run would go on without it and without a word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import nn

from remote_agent.training.errors import JobError
from remote_agent.training.user_code.job_values import Reader, of_loss
from remote_agent.training.user_code.ownership import is_of_users

HINT = (
    "what changes in the course of training belongs into the model, as a buffer that forward or loss changes: a counter"
    " of steps, torch.zeros((), dtype=torch.int64) in register_buffer, is the same on all workers"
)

_LOSS, _FORWARD, _DATA, _STEP, _TRAINING = "loss", "forward", "the data", "the optimizer's step", "training"
_HINTS = {
    _STEP: "give create_scheduler(optimizer, config), or change options in a hook of the optimizer's step",
    _TRAINING: "change weights in a hook of the optimizer's step (optimizer.register_step_post_hook in"
    " create_optimizer), which runs where they are; leave requires_grad as create_model sets it, and train a layer that"
    " is to follow later in a second run that goes on from the first one",
}
"""Others in the place of :data:`HINT`, by what goes by the value."""

_OTHERS = ("dataset", "datasets", "_dataset", "_given")
"""Attributes of data sets of torch and of ours that hold others."""

Values = dict[str, object]

ReadValues = Callable[[], Mapping[str, object]]


class HeadCopies:
    """Notices changes.

    Args:
        sent: what its loss reads, as it was when the workers got it.
        optimizer: the same.
        data: the data set that was sent to the workers; None: they have none.
        moved: names of the model's buffers and frozen parameters that its own code changes, here as on the workers.
    """

    def __init__(
        self,
        factory: object,
        sent: Mapping[str, object],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: object = None,
        moved: Collection[str] = (),
    ) -> None:
        self._moved = frozenset(moved)
        self._model, self._optimizer = model, optimizer
        self._readers = {
            _LOSS: [of_loss(factory).values],
            _FORWARD: [_of_module(f"model.{path}".rstrip("."), module) for path, module in model.named_modules()],
            _DATA: list(_of_data("data", data)),
        }
        self._held = {**self._values(), _LOSS: dict(sent)}
        self.loaded()

    def loaded(self) -> None:
        """The coordinator itself has brought weights into its model."""
        self._weights = self._versions()

    def refuse_changed(self) -> None:
        """Raise JobError if something is no longer what the workers have."""
        for reader, values in self._values().items():
            _refuse(reader, self._held[reader], values)
        _refuse(_TRAINING, self._weights, self._versions())

    def _values(self) -> dict[str, Values]:
        """Numbers and texts by what reads them, and by where they are; of tensors the version."""
        read = {
            reader: {name: value for values in found for name, value in values().items()}
            for reader, found in self._readers.items()
        }
        groups = [
            (f"{name} of the optimizer's group {number}", value)
            for number, group in enumerate(self._optimizer.param_groups)
            for name, value in group.items()
        ]
        return {
            **read,
            _STEP: {name: value for name, value in groups if isinstance(value, bool | int | float)},
            _TRAINING: {
                f"requires_grad of {name}": each.requires_grad for name, each in self._model.named_parameters()
            },
        }

    def _versions(self) -> Values:
        found: Values = {}
        for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers()):
            if name in self._moved:
                continue
            with contextlib.suppress(RuntimeError):  # inference tensors have no version
                found[name] = (id(tensor), tensor._version)  # noqa: SLF001
        return found


def _refuse(reader: str, held: Mapping[str, object], now: Mapping[str, object]) -> None:
    for name, value in now.items():
        if name in held and held[name] != value and value == value:
            change = f"changed from {held[name]!r} to {value!r}" if not isinstance(value, tuple) else "was changed"
            raise JobError(
                f"{name} {change} on the coordinator (by a callback, evaluate or a scheduler?), and {reader} reads it:"
                " the workers have a copy of the job, in which it stays as it was",
                hint=_HINTS.get(reader, HINT),
            )


def _of_module(path: str, module: nn.Module) -> ReadValues:
    """What reads what a module's forward goes by: of one of torch's each number (``p`` of a dropout)."""
    if is_of_users(type(module).__module__):
        reader, mode = Reader(path, module, (module.forward,)), f"{path}.training"
        return lambda: {name: value for name, value in reader.values().items() if name != mode}
    return lambda: {
        f"{path}.{name}": value
        for name, value in tuple(vars(module).items())
        if isinstance(value, bool | int | float) and name != "training" and not name.startswith("_")
    }


def _of_data(path: str, data: object, depth: int = 4) -> Iterator[ReadValues]:
    """What reads what a data set's samples, and their batches, go by."""
    collate = getattr(data, "_collate", None)
    if collate is not None:
        yield Reader("self", getattr(collate, "__self__", collate), (collate, type(collate).__call__)).values
    if is_of_users(type(data).__module__) and hasattr(data, "__getitem__"):
        yield Reader(
            path, data, [getattr(data, name, None) for name in ("__getitem__", "__getitems__", "batch")]
        ).values
    elif depth and hasattr(data, "__dict__"):
        for name in _OTHERS:
            held = vars(data).get(name)
            for each in held if isinstance(held, list | tuple) else (held,):
                yield from _of_data(path, each, depth - 1)
