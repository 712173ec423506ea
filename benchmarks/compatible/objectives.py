"""Losses, once more: small terms over the batch, rare labels, penalties, in-place sums, randomness, inner loops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy as entropy

from benchmarks.compatible.case import Case, case, images, points
from benchmarks.compatible.losses import AREA, WEIGHTS


def rare(samples: int = 240) -> tuple[Tensor, Tensor]:
    """Points, of which one in forty has the label -100."""
    x, y = points(samples=samples)
    y[torch.arange(samples) % 40 == 17] = -100
    return x, y


@case("focal-by-positives", AREA)
class Focal(Case):
    """A focal loss that divides by the number of positives in the batch (RetinaNet)."""

    expect, says = "refused", "unit"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        one_hot = functional.one_hot(y, 3).float() * (x[:, 3:4] > 0)
        scores = model(x)
        chance = scores.sigmoid()
        right = chance * one_hot + (1 - chance) * (1 - one_hot)
        each = functional.binary_cross_entropy_with_logits(scores, one_hot, reduction="none") * (1 - right) ** 2
        return each.sum() / one_hot.sum().clamp_min(1)


@case("focal-by-positives-summed", AREA)
class FocalSum(Case):
    """The same as (sum, number of positives)."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        one_hot = functional.one_hot(y, 3).float() * (x[:, 3:4] > 0)
        scores = model(x)
        chance = scores.sigmoid()
        right = chance * one_hot + (1 - chance) * (1 - one_hot)
        each = functional.binary_cross_entropy_with_logits(scores, one_hot, reduction="none") * (1 - right) ** 2
        return each.sum(), one_hot.sum()


@case("hard-examples", AREA)
class Hard(Case):
    """Online hard example mining: the mean of the batch's largest losses."""

    expect, says = "refused", "unit"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        each = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return each.topk(max(1, len(each) // 2)).values.mean()


@case("batch-hard-triplet", AREA)
class BatchHard(Case):
    """Triplets of the hardest in the batch."""

    expect, says = "refused", "unit"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        far = torch.cdist(model(x), model(x))
        same = y[:, None] == y[None]
        return functional.relu((far * same).amax(1) - (far + 1e3 * same).amin(1) + 1).mean()


@case("supervised-contrastive", AREA)
class SupCon(Case):
    """Supervised contrastive loss."""

    expect, says = "refused", "unit"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        z = functional.normalize(model(batch[0]), dim=1)
        logits = z @ z.T / 0.3 - 1e9 * torch.eye(len(z))
        same = (batch[1][:, None] == batch[1][None]).float() * (1 - torch.eye(len(z)))
        return -((logits.log_softmax(1) * same).sum(1) / same.sum(1).clamp_min(1)).mean()


@case("smoothing-ignore", AREA)
class SmoothIgnore(Case):
    """Label smoothing with ignore_index, and rare labels of -100."""

    def create_data(self) -> Any:
        return rare()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


@case("smoothing-class-weights", AREA)
class SmoothWeights(Case):
    """Label smoothing with class weights."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS, label_smoothing=0.2)


@case("imported-cross-entropy", AREA)
class Imported(Case):
    """from torch.nn.functional import cross_entropy, with rare labels of -100."""

    def create_data(self) -> Any:
        return rare()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return entropy(model(batch[0]), batch[1])


@case("dice", AREA)
class Dice(Case):
    """Soft dice over the whole batch."""

    expect, says = "refused", "unit"

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))

    def create_data(self) -> Any:
        x, _ = images()
        return x, (x > 0.5).float()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        chance, y = model(batch[0]).sigmoid(), batch[1]
        return 1 - (2 * (chance * y).sum() + 1) / (chance.sum() + y.sum() + 1)


@case("dice-by-sample", AREA)
class DiceBySample(Dice):
    """Soft dice of each sample, averaged, and a binary cross entropy."""

    expect, says = "equal", ""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        scores, y = model(batch[0]), batch[1]
        chance = scores.sigmoid()
        dims = (1, 2, 3)
        each = 1 - (2 * (chance * y).sum(dims) + 1) / (chance.sum(dims) + y.sum(dims) + 1)
        return each.mean() + functional.binary_cross_entropy_with_logits(scores, y)


class Weighing(nn.Module):
    """Two heads with weights by learned uncertainty."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 2)
        self.sigmas = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.body(x))
        return self.left(h), self.right(h)


@case("uncertainty-weights", AREA)
class Uncertainty(Case):
    """Two tasks, weighted by learned uncertainties."""

    def create_model(self) -> nn.Module:
        return Weighing()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Weighing)
        left, right = model(batch[0])
        terms = torch.stack([functional.cross_entropy(left, batch[1]), functional.mse_loss(right, batch[0][:, :2])])
        return ((-model.sigmas).exp() * terms + model.sigmas).sum()


@case("moving-scale", AREA)
class MovingScale(Case):
    """The loss divided by a moving mean of itself, in a buffer."""

    expect, says = "refused", ""

    def create_model(self) -> nn.Module:
        return Scale()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Scale)
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        with torch.no_grad():
            model.mean.mul_(0.9).add_(0.1 * loss.detach())
        return loss / model.mean


class Scale(nn.Module):
    """With a moving mean."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.register_buffer("mean", torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        return self.network(x)


@case("moving-scale-after", AREA)
class MovingScaleAfter(MovingScale):
    """The same, divided by the mean before it moves: it is a mean by samples."""

    expect, says = "equal", ""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Scale)
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        scaled = loss / model.mean.clone()
        with torch.no_grad():
            model.mean.copy_(model.mean * 0.9 + 0.1 * loss.detach())
        return scaled


@case("later-batch-term", AREA)
class LaterTerm(Case):
    """A term over the batch that begins in the fourth step, by a buffer."""

    expect, says = "ended", "halves"

    def create_model(self) -> nn.Module:
        return Scale()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Scale)
        out = model(batch[0])
        loss = functional.cross_entropy(out, batch[1])
        model.mean.add_(1)
        return loss + out.var(0).sum() if model.mean > 4 else loss


@case("mmd", AREA)
class Mmd(Case):
    """A maximum mean discrepancy between two halves of the features."""

    expect, says = "refused", "unit"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        a, b = model(batch[0]), model(batch[0].flip(1))
        kernel = lambda p, q: (-(torch.cdist(p, q) ** 2)).exp().mean()  # noqa: E731
        return functional.cross_entropy(a, batch[1]) + 0.1 * (kernel(a, a) + kernel(b, b) - 2 * kernel(a, b))


@case("correlation", AREA)
class Correlation(Case):
    """Pearson's correlation over the batch."""

    expect, says = "refused", "unit"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        a, b = model(batch[0])[:, 0], batch[0][:, 0]
        a, b = a - a.mean(), b - b.mean()
        return 1 - (a * b).sum() / (a.norm() * b.norm() + 1e-6)


@case("broadcast-slip", AREA)
class Slip(Case):
    """mse_loss of (n, 1) and (n,): broadcast over the batch, a common slip."""

    expect, says = "refused", "unit"

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.mse_loss(model(batch[0]), batch[0][:, 0])


@case("squeezed", AREA)
class Squeezed(Slip):
    """model(x).squeeze(), which drops a batch of one sample, too."""

    expect, says = "equal", ""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.mse_loss(model(batch[0]).squeeze(), batch[0][:, 0])


@case("returned-float64", AREA)
class Double(Case):
    """A loss in float64, with figures beside it."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out = model(batch[0])
        return functional.cross_entropy(out.double(), batch[1]), {"size": out.abs().mean()}


@case("sample-weights", AREA)
class SampleWeights(Case):
    """Weights of samples, divided by their sum over the batch."""

    expect, says = "refused", "(sum, weight)"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        weights = 1 + batch[0][:, 0].abs()
        each = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return (each * weights).sum() / weights.sum()


@case("distillation", AREA)
class Distil(Case):
    """Distillation from a teacher that the job holds, outside of the model."""

    def __init__(self) -> None:
        torch.manual_seed(11)
        self.teacher = nn.Linear(6, 3).requires_grad_(False)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        with torch.no_grad():
            target = self.teacher(batch[0]).softmax(1)
        out = model(batch[0])
        soft = functional.kl_div(out.log_softmax(1), target, reduction="batchmean")
        return functional.cross_entropy(out, batch[1]) + soft


@case("job-parameters", AREA)
class JobParameters(Case):
    """A loss with parameters of the job's own, outside of the model: nothing trains them."""

    def __init__(self) -> None:
        torch.manual_seed(11)
        self.head = nn.Linear(3, 3)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(self.head(model(batch[0])), batch[1])
