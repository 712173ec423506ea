"""Finds methods of a job whose names are not those that the engine calls, so that they would be left out in silence."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from remote_agent.training.errors import JobError

CALLED = (
    "loss",
    "create_optimizer",
    "create_scheduler",
    "create_data",
    "create_validation_data",
    "evaluate",
    "metrics",
)
"""What the engine calls if a job has it, and has a default for, or does without, if it has not."""

MEANT = {
    **dict.fromkeys(("compute_loss", "calculate_loss", "get_loss", "loss_fn", "loss_function", "criterion"), "loss"),
    **dict.fromkeys(("make_optimizer", "build_optimizer", "get_optimizer", "create_optim"), "create_optimizer"),
    **dict.fromkeys(("create_lr_scheduler", "make_scheduler", "build_scheduler", "get_scheduler"), "create_scheduler"),
    **dict.fromkeys(("create_val_data", "create_eval_data", "create_valid_data"), "create_validation_data"),
    **dict.fromkeys(("create_dataset", "create_train_data", "create_training_data"), "create_data"),
}
"""Names of other libraries for the same."""

ALIKE = 0.85
"""Names that are at least so much alike, by :mod:`difflib`, are taken for a slip."""


def refuse_misnamed(factory: object) -> None:
    """Refuse a method that is likely meant to be one of :data:`CALLED`, which the job has not, and that nothing uses.

    Raises:
        JobError: there is one.
    """
    kind = type(factory)
    own = {name for each in kind.__mro__[:-1] for name, value in vars(each).items() if isinstance(value, FunctionType)}
    for name in sorted(own):
        meant = "" if name.startswith("_") or name in CALLED else _meant(name)
        if meant and getattr(factory, meant, None) is None and name not in _used(kind):
            raise JobError(
                f"the job has a {name}(), which is not called, and no {meant}()",
                hint=f"name it {meant}, or begin its name with _ if it is for your own use",
            )


def _meant(name: str) -> str:
    return MEANT.get(name) or next(iter(difflib.get_close_matches(name, CALLED, 1, ALIKE)), "")


def _used(kind: type) -> set[str]:
    """All names that the methods of a class use."""
    return {
        name
        for each in kind.__mro__[:-1]
        for value in vars(each).values()
        if isinstance(code := getattr(getattr(value, "__func__", value), "__code__", None), CodeType)
        for name in _names(code)
    }


def _names(code: CodeType) -> Iterator[Any]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
