"""Losses: means over samples, and all the others."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.compatible.case import BATCH, SAMPLES, Case, Samples, case, points
from benchmarks.compatible.models import LongShortTerm, padded

AREA = "losses"

WEIGHTS = torch.tensor([0.2, 1.0, 3.0])


@case("label-smoothing", AREA)
class Smoothed(Case):
    """Cross entropy with label_smoothing."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


@case("class-weights-default", AREA)
class WeightedDefault(Case):
    """loss = nn.CrossEntropyLoss(weight=...) in the place of a function."""

    def __init__(self) -> None:
        self.loss = nn.CrossEntropyLoss(weight=WEIGHTS)


@case("class-weights", AREA)
class Weighted(Case):
    """An own loss with class weights, which is no mean over samples."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS)


@case("class-weights-summed", AREA)
class WeightedSum(Case):
    """Class weights, as (sum, weight)."""

    killed = quick = True

    def loss(self, model: nn.Module, batch: Any) -> Any:
        total = functional.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS, reduction="sum")
        return total, WEIGHTS[batch[1]].sum()


class Ignoring(Case):
    """A part of the labels is -100."""

    def create_data(self) -> Any:
        x, y = points()
        return x, y.masked_fill(x[:, 3] > 0.5, -100)


@case("ignore-index-default", AREA)
class IgnoringDefault(Ignoring):
    """Labels of -100 with the default loss."""


@case("ignore-index", AREA)
class IgnoringOwn(Ignoring):
    """Labels of -100 in an own loss, which is no mean over samples."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1])


@case("ignore-index-summed", AREA)
class IgnoringSum(Ignoring):
    """Labels of -100, as (sum, weight)."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        total = functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return total, (batch[1] != -100).sum()


@case("reduction-sum", AREA)
class Summed(Case):
    """reduction="sum": gradients are added up, not averaged."""

    killed = quick = True

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


class Regressing(Case):
    """Targets are numbers."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))

    def create_data(self) -> Any:
        x, _ = points()
        return x, torch.sin(x[:, :4])


@case("mse", AREA)
class MeanSquares(Regressing):
    """Mean squared error over all elements."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.mse_loss(model(batch[0]), batch[1])


@case("bce", AREA)
class Binary(Regressing):
    """Binary cross entropy with logits."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.binary_cross_entropy_with_logits(model(batch[0]), (batch[1] > 0).float())


class PerToken(nn.Module):
    """A number for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.cells(x)[0])[..., 0]


class Ragged(Case):
    """Sequences of unequal lengths, padded."""

    def create_model(self) -> nn.Module:
        return PerToken()

    def create_data(self) -> Any:
        generator = torch.Generator().manual_seed(8)
        ragged = [(torch.randn(2 + i % 7, 4, generator=generator), torch.tensor(i % 3)) for i in range(SAMPLES)]
        return DataLoader(Samples(ragged), batch_size=BATCH, shuffle=True, collate_fn=padded)

    def squares(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """Squared errors of all positions, and which of them count."""
        x, lengths, y = batch
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        return (model(x) - y[:, None].float()) ** 2, mask


@case("mse-ragged", AREA)
class RaggedMean(Ragged):
    """Mean squared error over the positions of unequal sequences: no mean over samples."""

    expect, says = "refused", "(sum, weight)"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        squares, mask = self.squares(model, batch)
        return squares[mask].mean()


@case("mse-ragged-summed", AREA)
class RaggedSum(Ragged):
    """The same, as (sum, weight)."""

    killed = True

    def loss(self, model: nn.Module, batch: Any) -> Any:
        squares, mask = self.squares(model, batch)
        return squares[mask].sum(), mask.sum()


@case("mse-ragged-by-sample", AREA)
class RaggedBySample(Ragged):
    """The mean over each sample's positions, and then over samples."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        squares, mask = self.squares(model, batch)
        return ((squares * mask).sum(1) / mask.sum(1)).mean()


@case("kl-batchmean", AREA)
class Divergence(Regressing):
    """Kullback-Leibler divergence with reduction="batchmean"."""

    reduction = "batchmean"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        target = batch[1].softmax(1)
        return functional.kl_div(model(batch[0]).log_softmax(1), target, reduction=self.reduction)


@case("kl-mean", AREA)
class DivergenceMean(Divergence):
    """Kullback-Leibler divergence with reduction="mean"."""

    reduction = "mean"


@case("ctc", AREA)
class Alignment(LongShortTerm):
    """CTC: divided by each target's length, then a mean over samples."""

    killed = False

    def loss(self, model: nn.Module, batch: Any) -> Any:
        scores = model(batch[0]).log_softmax(2).transpose(0, 1)
        lengths = 1 + batch[0][:, 0] % 3
        every = torch.full_like(lengths, scores.shape[0])
        return functional.ctc_loss(scores, batch[1][:, :3], every, lengths)


class Embedding(Case):
    """Points to a space of four dimensions."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


@case("cosine-embedding", AREA)
class Cosine(Embedding):
    """Cosine embedding loss between two views."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return functional.cosine_embedding_loss(model(x), model(x.flip(1)), (y == 1).float() * 2 - 1)


@case("triplet", AREA)
class Triplet(Embedding):
    """Triplet margin loss."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, _ = batch
        return functional.triplet_margin_loss(model(x), model(x * 0.9), model(x.flip(1)), margin=5.0)


class Contrastive(Embedding):
    """InfoNCE within the batch."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        left, right = (functional.normalize(model(view), dim=1) for view in (batch[0], batch[0] * 0.9))
        return functional.cross_entropy(left @ right.T / 0.2, torch.arange(len(left)))


@case("contrastive", AREA)
class ContrastiveCut(Contrastive):
    """In-batch contrastive loss: it needs the whole batch."""

    expect, says = "refused", "unit"
    quick = True


@case("contrastive-undivided", AREA)
class ContrastiveWhole(Contrastive):
    """In-batch contrastive loss with unit=batch_size: the batch is undivided."""

    killed = True
    settings: ClassVar = {"unit": BATCH}


@case("pairwise-ranking", AREA)
class Ranking(Regressing):
    """A ranking loss over all pairs of the batch."""

    expect, says = "refused", "unit"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        scores, wanted = model(batch[0])[:, 0], batch[1][:, 0]
        above = wanted[:, None] > wanted[None]
        return functional.softplus(scores[None] - scores[:, None])[above].mean()


class Centers(nn.Module):
    """A network, and a centre for each class that the loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        self.centers = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Any:
        return self.network(x)


@case("center-loss", AREA)
class CenterLoss(Case):
    """Center loss: the loss has parameters of its own, which are in the model."""

    def create_model(self) -> nn.Module:
        return Centers()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Centers)
        return ((model(batch[0]) - model.centers[batch[1]]) ** 2).sum(1).mean()


@case("l2-penalty", AREA)
class Penalty(Case):
    """A penalty of the weights in the loss."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        penalty = sum((p**2).sum() for p in model.parameters())
        return functional.cross_entropy(model(batch[0]), batch[1]) + 0.01 * penalty


@case("gradient-penalty", AREA)
class GradientPenalty(Case):
    """A penalty of each sample's input gradient: backward through backward."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x = batch[0].requires_grad_()
        logits = model(x)
        (gradient,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
        return functional.cross_entropy(logits, batch[1]) + 0.1 * (gradient**2).sum(1).mean()


@case("mixup", AREA)
class Mixup(Case):
    """Mixup within the batch, by numpy's random numbers, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True, "unit": 4}

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        share, order = float(np.random.beta(0.4, 0.4)), torch.from_numpy(np.random.permutation(len(x)))
        logits = model(share * x + (1 - share) * x[order])
        return functional.cross_entropy(logits, y) * share + functional.cross_entropy(logits, y[order]) * (1 - share)


@case("noise", AREA)
class Noise(Case):
    """Noise that the loss adds to each sample, by torch's random numbers, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return functional.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)


@case("language-model-mean", AREA)
class OverTokens(LongShortTerm):
    """Cross entropy over all tokens of sequences of one length, as a transposed tensor."""

    killed = False

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]).transpose(1, 2), batch[1])


@case("auxiliary-losses", AREA)
class Auxiliary(Regressing):
    """Several losses with weights, one of them over a part of the features."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out = model(batch[0])
        first = functional.smooth_l1_loss(out, batch[1])
        return first + 0.3 * functional.huber_loss(out[:, :2], batch[1][:, :2]) + 0.1 * out.abs().mean()


@case("batch-variance", AREA)
class Variance(Embedding):
    """A term with the variance over the batch (VICReg)."""

    expect, says = "refused", "unit"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out = model(batch[0])
        return functional.mse_loss(out, batch[0][:, :4]) + functional.relu(1 - out.std(0)).mean()


@case("root-mean-square", AREA)
class RootMean(Regressing):
    """The root of the mean squared error: no mean over samples."""

    expect, says = "refused", "unit"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.mse_loss(model(batch[0]), batch[1]).sqrt()
