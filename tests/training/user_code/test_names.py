"""A method that the engine does not call is not left out in silence where it was meant to be called."""

from __future__ import annotations

from typing import Any

import pytest

from remote_agent.training.errors import JobError
from remote_agent.training.user_code.names import refuse_uncallable, refuse_uncalled


class Model:
    """What each job has."""

    def create_model(self) -> Any: ...

    def helper(self) -> Any: ...


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("compute_loss", "loss"),
        ("create_optimiser", "create_optimizer"),
        ("create_schedule", "create_scheduler"),
        ("create_lr_scheduler", "create_scheduler"),
        ("create_val_data", "create_validation_data"),
        ("metric", "metrics"),
        ("evalute", "evaluate"),
    ],
)
def test_a_method_that_is_likely_meant_to_be_another_is_refused_with_that_name(name: str, meant: str) -> None:
    job = type("Job", (Model,), {name: lambda self, model, batch: 0.0})()
    with pytest.raises(JobError, match=f"has a {name}\\(\\), which is not called, and no {meant}\\(\\)"):
        refuse_uncalled(job)


def test_methods_beside_the_right_one_are_not() -> None:
    class Both(Model):
        def loss(self, model: Any, batch: Any) -> Any: ...

        def loss_fn(self, model: Any, batch: Any) -> Any: ...

    class Attribute(Model):
        criterion = object()

    for job in (Model(), Both(), Attribute()):
        refuse_uncalled(job)


class Mistaken(Model):
    """Its methods are called at the end of a run, or later."""

    def evaluate(self, model: Any, batch: Any) -> Any: ...

    def save_beside(self) -> None: ...


def test_methods_that_the_engine_cannot_call_are_refused_together_before_the_run() -> None:
    with pytest.raises(JobError) as refused:
        refuse_uncallable(Mistaken())
    assert refused.value.cause == "the engine can't call evaluate(model); the engine can't call save_beside(folder)"
    assert refused.value.hint == "write evaluate(self, model); save_beside(self, folder)"


def test_methods_with_other_names_defaults_or_any_arguments_can_be_called() -> None:
    class Right(Model):
        loss = staticmethod(lambda outputs, targets, weights: 0.0)  # a criterion, which the loss calls by itself
        metrics = None

        def evaluate(self, network: Any, digits: int = 3) -> Any: ...

        def create_optimizer(self, *arguments: Any, **options: Any) -> Any: ...

        @staticmethod
        def save_beside(folder: Any) -> None: ...

    refuse_uncallable(Right())
