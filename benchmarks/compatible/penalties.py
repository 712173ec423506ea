"""Losses of several terms, and means over what counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compatible.case import Case, case, points
from benchmarks.compatible.losses import AREA, WEIGHTS


def rare(samples: int = 240) -> tuple[Tensor, Tensor]:
    """Points, of which one in forty has the label -100."""
    x, y = points(samples=samples)
    y[torch.arange(samples) % 40 == 17] = -100
    return x, y


@case("in-place-sum", AREA)
class InPlace(Case):
    """loss = cross_entropy(...); loss += another mean, with rare labels of -100."""

    expect, says = "ended", "(sum, weight)"
    steps = 18

    def create_data(self) -> Any:
        return rare()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out = model(batch[0])
        loss = functional.cross_entropy(out, batch[1])
        loss += 0.3 * out.pow(2).mean()
        return loss


@case("in-place-class-weights", AREA)
class InPlaceWeights(Case):
    """The same with class weights, and a small second term."""

    expect, says = "refused", "(sum, weight)"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out = model(batch[0])
        loss = functional.cross_entropy(out, batch[1], weight=WEIGHTS)
        loss += 1e-4 * out.pow(2).mean()
        return loss


@case("scaled-class-weights", AREA)
class ScaledWeights(Case):
    """A cross entropy with class weights, times a constant."""

    expect, says = "refused", "(sum, weight)"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return 0.5 * functional.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS)


@case("in-place-scaled", AREA)
class InPlaceScaled(Case):
    """A cross entropy with rare -100, divided in place by a constant (as for accumulation)."""

    def create_data(self) -> Any:
        return rare()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        loss /= 4
        return loss


@case("masked-rarely", AREA)
class MaskedRarely(Case):
    """The cross entropy of those labels that count, by a mask; one in forty does not."""

    steps = 12

    def create_data(self) -> Any:
        return rare()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        keep = batch[1] != -100
        return functional.cross_entropy(model(batch[0])[keep], batch[1][keep])


@case("l1-penalty", AREA)
class Lasso(Case):
    """A sum of squares plus an L1 penalty of the weights, small."""

    expect, says = "refused", ""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        total = functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return total + 1e-3 * sum(p.abs().sum() for p in model.parameters())


@case("l2-penalty-with-sum", AREA)
class RidgeSum(Case):
    """(sum + a small penalty of the weights, weight): the penalty would count once a part."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        total = functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return total + 1e-5 * sum(p.pow(2).sum() for p in model.parameters()), len(batch[0])


@case("l2-penalty-exact", AREA)
class RidgeExact(Case):
    """(sum + penalty * weight, weight), which is right."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        total = functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return total + len(batch[0]) * 1e-3 * sum(p.pow(2).sum() for p in model.parameters()), len(batch[0])


@case("small-batch-term", AREA)
class SmallTerm(Case):
    """A batch's variance with a weight of 1e-4."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out = model(batch[0])
        return functional.cross_entropy(out, batch[1]) + 1e-4 * out.var(0).sum()
