"""Hooks of the user's on parameters and modules, which change gradients or outputs."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from benchmarks.compatible.case import BATCH, Case, case, small
from benchmarks.compatible.state import AREA


def halved(gradient: Tensor) -> Tensor:
    """A hook."""
    return gradient * 0.5


def clamped(gradient: Tensor) -> Tensor:
    """A hook that is not linear."""
    return gradient.clamp(-0.01, 0.01)


@case("gradient-hook-linear", AREA)
class LinearHook(Case):
    """A hook halves a parameter's gradient."""

    expect, says = "refused", "hook"

    def create_model(self) -> nn.Module:
        model = small(4)
        model.get_parameter("0.weight").register_hook(halved)  # type: ignore[no-untyped-call]
        return model


@case("gradient-hook-clamp", AREA)
class ClampHook(Case):
    """A hook clamps a parameter's gradient, which is not linear."""

    expect, says = "refused", "hook"
    quick = True

    def create_model(self) -> nn.Module:
        model = small(4)
        model.get_parameter("0.weight").register_hook(clamped)  # type: ignore[no-untyped-call]
        return model


@case("gradient-hook-undivided", AREA)
class ClampHookWhole(ClampHook):
    """The same with unit=batch_size: the hook sees the whole batch's gradient."""

    expect, quick = "equal", False
    settings: ClassVar = {"unit": BATCH}


@case("post-accumulate-hook", AREA)
class AccumulateHook(Case):
    """A post-accumulate hook clamps a parameter's gradient."""

    expect, says = "refused", "hook"

    def create_model(self) -> nn.Module:
        model = small(4)

        def clamp(parameter: Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.clamp_(-0.01, 0.01)

        model.get_parameter("0.weight").register_post_accumulate_grad_hook(clamp)  # type: ignore[no-untyped-call]
        return model


def reversed_gradient(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    """A backward hook that turns the gradient of the inputs round."""
    return tuple(-0.3 * gradient if gradient is not None else None for gradient in inputs)


@case("backward-hook", AREA)
class BackwardHook(Case):
    """A module's full backward hook reverses gradients."""

    expect, says = "refused", "hook"

    def create_model(self) -> nn.Module:
        model = small(4)
        model.get_submodule("2").register_full_backward_hook(reversed_gradient)
        return model


@case("backward-hook-undivided", AREA)
class BackwardHookWhole(BackwardHook):
    """The same with unit=batch_size."""

    expect = "equal"
    settings: ClassVar = {"unit": BATCH}


@case("forward-hook", AREA)
class ForwardHook(Case):
    """A module's forward hook changes its output."""

    def create_model(self) -> nn.Module:
        model = small(4)
        model.get_submodule("0").register_forward_hook(lambda module, inputs, output: output * 1.1)
        return model
