"""Finds methods of a job that the engine does not call, or can't call, before a run finds that out at its end."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from types import FunctionType

from remote_agent.training.errors import JobError

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "loss": ("model", "batch"),
    "create_optimizer": ("model", "config"),
    "phases": ("model", "config"),
    "create_scheduler": ("optimizer", "config"),
    "create_data": (),
    "create_validation_data": (),
    "create_callbacks": (),
    "evaluate": ("model",),
    "metrics": ("model", "batch"),
    "save_beside": ("folder",),
}
"""What the engine calls if a job has it, with these arguments; it has a default for the others, or does without."""

MEANT = {
    **dict.fromkeys(("compute_loss", "calculate_loss", "get_loss", "loss_fn", "loss_function", "criterion"), "loss"),
    **dict.fromkeys(("make_optimizer", "build_optimizer", "get_optimizer", "create_optim"), "create_optimizer"),
    **dict.fromkeys(("create_lr_scheduler", "make_scheduler", "build_scheduler", "get_scheduler"), "create_scheduler"),
    **dict.fromkeys(("create_val_data", "create_eval_data", "create_valid_data"), "create_validation_data"),
    **dict.fromkeys(("create_dataset", "create_train_data", "create_training_data"), "create_data"),
}
"""Names of other libraries for the same."""

STEPS = ("training_step", "optimizer_step", "configure_optimizers")
"""What other libraries call in a step: here the engine exchanges gradients between the loss and the optimizer."""

TURNS = "several optimizers that take turns, as in most GANs, are given by phases(model, config)"

ALIKE = 0.85
"""Names that are at least so much alike, by :mod:`difflib`, are taken for a slip."""


def refuse_uncalled(factory: object) -> None:
    """Refuse a method that is likely meant to be one of :data:`ARGUMENTS`, which the job lacks.

    So are a job's own steps (:data:`STEPS`).

    Raises:
        JobError: there is one.
    """
    kind = type(factory)
    own = {name for each in kind.__mro__[:-1] for name, value in vars(each).items() if isinstance(value, FunctionType)}
    for name in sorted(own):
        meant = "" if name.startswith("_") or name in ARGUMENTS else _meant(name)
        if meant and getattr(factory, meant, None) is None:
            raise JobError(
                f"the job has a {name}(), which is not called, and no {meant}()",
                hint=f"name it {meant}, or begin its name with _ if it is for your own use",
            )
    for name in STEPS:
        if callable(getattr(factory, name, None)):
            raise JobError(
                f"the job has a {name}(), which is not called: the engine makes the steps, from the gradients of all"
                " machines",
                hint="return the loss from loss(model, batch) and one optimizer from create_optimizer(model, config); "
                + TURNS,
            )


def refuse_uncallable(factory: object) -> None:
    """Refuse a method that can't be called with its :data:`ARGUMENTS`; some are called only when the run ends.

    Not ``loss``: it may be a criterion of outputs and targets.

    Raises:
        JobError: there are such methods; it names each.
    """
    wrong = [name for name, given in ARGUMENTS.items() if name != "loss" and not _takes(factory, name, given)]
    if wrong:
        raise JobError(
            "; ".join(f"the engine can't call {call(name)}" for name in wrong),
            hint=f"write {'; '.join(call(name, 'self') for name in wrong)}",
        )


def call(name: str, *before: str) -> str:
    """``evaluate(model)``: how the engine calls a method of :data:`ARGUMENTS`."""
    return f"{name}({', '.join((*before, *ARGUMENTS[name]))})"


def _takes(factory: object, name: str, given: tuple[str, ...]) -> bool:
    """Whether the method can be called so; True where there is none, or its arguments are not known."""
    method = getattr(factory, name, None)
    if not callable(method):
        return True
    try:
        inspect.signature(method).bind(*given)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _meant(name: str) -> str:
    return MEANT.get(name) or next(iter(difflib.get_close_matches(name, ARGUMENTS, 1, ALIKE)), "")
