"""Low-rank adapters beside frozen linear layers: Hu et al., "LoRA", 2021 (arXiv:2106.09685).

The model's own weights are frozen, in four bits where that is wanted (``nf4``); beside each chosen linear layer two
small matrices A and B are trained, and ``scale * B A x`` is added to what the layer gives. B begins as zeros: the first
step is computed with the model as it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent import wording
from remote_agent.errors import TrainingError
from remote_agent.kinds import nearest
from remote_agent.models.nf4 import Nf4Linear, is_linear, matrix_of, put_matrix, turned

_HEADS = frozenset({"lm_head", "embed_out", "score", "classifier"})
"""Output layers, which are left alone unless they are named."""


UNQUANTIZED = 0.1
"""The part of a model's numbers that may be in other matrices than those of linear layers and embeddings."""


class CannotAdapt(TrainingError):
    """The model has no such layers."""


class LoraLinear(nn.Module):
    """A linear layer that is frozen, with an adapter.

    Args:
        rank: rows of A and columns of B.
        alpha: the adapter counts ``alpha / rank`` times.
    """

    def __init__(self, base: nn.Module, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.rank, self.scale = base, rank, alpha / rank
        shape = base.shape if isinstance(base, Nf4Linear) else matrix_of(base).shape
        self.out_features, self.in_features = shape
        self.begin()

    def begin(self) -> None:
        """Have new adapters: A of random numbers, and B of zeros."""
        self.lora_a = nn.Parameter(torch.empty(self.rank, self.in_features))
        self.lora_b = nn.Parameter(torch.zeros(self.out_features, self.rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        given: Tensor = self.base(x)
        added = functional.linear(functional.linear(x.to(self.lora_a.dtype), self.lora_a), self.lora_b)
        return given + self.scale * added.to(given.dtype)

    @property
    def matrix(self) -> Tensor:
        """What it multiplies by, with the adapter: ``(out_features, in_features)``."""
        return self.over(matrix_of(self.base))

    def over(self, base: Tensor) -> Tensor:
        """The sum of the adapter and the base's matrix, in the base's type."""
        return (base + self.scale * (self.lora_b @ self.lora_a)).to(base.dtype)

    @property
    def weight(self) -> Tensor:
        """For code that reads the layer's weight in the place of calling it, as Mamba's and torch's attention do."""
        return turned(self.base, self.matrix)

    @property
    def bias(self) -> Any:
        """The layer's own."""
        return self.base.bias


def adapt(model: nn.Module, *, four_bits: bool, rank: int, alpha: float, targets: tuple[str, ...] = ()) -> nn.Module:
    """Freeze ``model``, and put adapters beside its linear layers, in place.

    Args:
        four_bits: hold the weights of all linear layers but the output layer as NF4.
        targets: last parts of the names of layers that get an adapter; none: all but the output layer.

    Raises:
        CannotAdapt: there is no layer of such a name, or none of such a rank.
    """
    linear = {name: module for name, module in model.named_modules() if is_linear(module)}
    known = sorted({_last(name) for name in linear})
    if not linear:
        raise CannotAdapt(f"a {type(model).__name__} has no linear layers", hint="train it with lora_rank=0")
    if unknown := [target for target in targets if target not in known]:
        close = [nearest(target, known) for target in unknown]
        hint = f"did you mean {','.join(close)}?" if all(close) else f"there are {', '.join(known)}"
        which = "of that name" if len(unknown) == 1 else "of these names"
        raise CannotAdapt(f"lora_targets={','.join(unknown)}: the model has no linear layer {which}", hint=hint)
    if not targets and _HEADS.issuperset(known):
        hint = "name layers with lora_targets, or train it with lora_rank=0"
        raise CannotAdapt(f"a {type(model).__name__} has no linear layers but its output layer", hint=hint)
    _refuse_rescaled(model)
    if four_bits:
        _refuse_unquantized(model, linear)
    _refuse_rank(rank, [layer for name, layer in linear.items() if not targets or _last(name) in targets])
    tied = _tied(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, layer in linear.items():
        is_head = _last(name) in _HEADS or layer.weight in tied
        base: nn.Module = Nf4Linear(layer) if four_bits and not is_head else layer
        chosen = _last(name) in targets if targets else not is_head
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, _last(name), LoraLinear(base, rank, alpha) if chosen else base)
    return model


def _refuse_unquantized(model: nn.Module, linear: Mapping[str, nn.Module]) -> None:
    """Refuse four bits for a model of which much is held otherwise, as experts in one parameter are."""
    named = (*linear.items(), *((name, each) for name, each in model.named_modules() if isinstance(each, nn.Embedding)))
    known = {id(layer.weight) for _, layer in named}
    sizes = {name: each.numel() for name, each in model.named_parameters() if each.dim() > 1 and id(each) not in known}
    share = sum(sizes.values()) / max(1, sum(each.numel() for each in model.parameters()))
    if share > UNQUANTIZED:
        cause = f"quantize=nf4 is for linear layers: {wording.share(share)} of the model would stay as it is, such as"
        raise CannotAdapt(f"{cause} {max(sizes, key=sizes.__getitem__)}", hint="train it with quantize=none")


def _refuse_rescaled(model: nn.Module) -> None:
    """Refuse a model that changes its weights in place in evaluation: it would change a copy."""
    if any(hasattr(module, "_rescale_layers") for module in model.modules()):
        cause = f"a {type(model).__name__} rescales its weights in evaluation, which does not work beside adapters"
        raise CannotAdapt(cause, hint="train it with lora_rank=0, or take another model")


def _refuse_rank(rank: int, layers: Sequence[nn.Module]) -> None:
    """Refuse a rank that no layer can have; a larger one costs memory and gives nothing."""
    most = max(min(matrix_of(layer).shape) for layer in layers)
    if rank > most:
        raise CannotAdapt(f"lora_rank={rank}: no layer has a rank above {most}", hint=f"set lora_rank={most} or less")


def adapters_of(model: nn.Module) -> dict[str, LoraLinear]:
    """The layers of ``model`` that have an adapter, by the names that they had before."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


@torch.no_grad()
def merge(model: nn.Module) -> nn.Module:
    """Plain linear layers in the place of frozen ones and their adapters, in place: they give what those gave."""
    found = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraLinear | Nf4Linear)]
    inner = {id(layer.base) for _, layer in found if isinstance(layer, LoraLinear)}
    for name, layer in found:
        if id(layer) in inner:
            continue
        base = layer.base if isinstance(layer, LoraLinear) else layer
        plain = base.dense() if isinstance(base, Nf4Linear) else base
        if isinstance(layer, LoraLinear):
            put_matrix(plain, layer.over(matrix_of(plain)))
        setattr(model.get_submodule(name.rpartition(".")[0]), _last(name), plain)
    return model


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _tied(model: nn.Module) -> set[nn.Parameter]:
    """Weights that several modules have: in four bits they would be two."""
    seen: set[nn.Parameter] = set()
    twice: set[nn.Parameter] = set()
    for module in model.modules():
        for parameter in module._parameters.values():  # noqa: SLF001 - named_parameters has each once
            if parameter is not None:
                (twice if parameter in seen else seen).add(parameter)
    return twice
