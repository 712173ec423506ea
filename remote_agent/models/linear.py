"""Layers that multiply by a matrix: torch's, and transformers' ``Conv1D`` (GPT-2), whose weight is its transpose."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

_PLAIN = frozenset({"FalconLinear"})
"""Classes that have a forward of their own and compute what torch's layer computes."""


def is_linear(module: nn.Module) -> bool:
    """Whether it is one; a class with another forward may make anything of its weight (Llama 4's router)."""
    kind = type(module)
    is_plain = isinstance(module, nn.Linear) and (kind.forward is nn.Linear.forward or kind.__name__ in _PLAIN)
    return is_plain or _is_conv1d(module)


def _is_conv1d(module: nn.Module) -> bool:
    made_by = sys.modules.get("transformers.pytorch_utils")  # a model that has such layers has loaded it
    return made_by is not None and isinstance(module, made_by.Conv1D)


def is_transposed(layer: nn.Module) -> bool:
    """Whether the weight of a linear layer, or of one in its place, is of shape ``(in_features, out_features)``."""
    return _is_conv1d(layer) or bool(getattr(layer, "transposed", False))


def matrix_of(layer: nn.Module) -> Tensor:
    """The matrix of a linear layer, ``(out_features, in_features)``."""
    weight: Any = layer.weight
    return turned(layer, weight)


def turned(layer: nn.Module, matrix: Tensor) -> Tensor:
    """A matrix in the form of the layer's weight, or such a weight as a matrix."""
    return matrix.t() if is_transposed(layer) else matrix


def put_matrix(layer: nn.Module, matrix: Tensor) -> None:
    """Have a frozen ``matrix``, ``(out_features, in_features)``, in the place of the layer's own."""
    layer.weight = nn.Parameter(turned(layer, matrix).contiguous(), requires_grad=False)


def blank(out_features: int, in_features: int, *, transposed: bool) -> nn.Module:
    """A layer of that shape without a bias, whose weight is to be put."""
    if not transposed:
        return nn.Linear(in_features, out_features, bias=False)
    made: nn.Module = sys.modules["transformers.pytorch_utils"].Conv1D(out_features, in_features)
    return made
