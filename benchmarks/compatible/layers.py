"""Models, once more: parameters that share memory or come late, caches, pruning, old-style hooks, quantisers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compatible.case import BATCH, SAMPLES, Case, case, images, points, small, tokens

AREA = "models"


@case("old-weight-norm", AREA)
class OldWeightNorm(Case):
    """torch.nn.utils.weight_norm, the old one with hooks."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 16)), nn.Tanh(), nn.Linear(16, 3))


@case("old-spectral-norm", AREA)
class OldSpectralNorm(Case):
    """torch.nn.utils.spectral_norm, the old one with hooks."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 16)), nn.Tanh(), nn.Linear(16, 3))


@case("pruned", AREA)
class Pruned(Case):
    """torch.nn.utils.prune: a mask over a weight."""

    def create_model(self) -> nn.Module:
        from torch.nn.utils import prune

        model = small()
        prune.l1_unstructured(model[0], "weight", amount=0.5)
        return model


class Unequal(nn.Module):
    """A parameter in bfloat16, one in float64, the others in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small()
        self.table = nn.Parameter(torch.randn(6, 3).bfloat16())
        self.shift = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        return self.network(x) + x @ self.table.float() + self.shift.float()


@case("three-dtypes", AREA)
class ThreeDtypes(Case):
    """bfloat16, float32 and float64 parameters in one model."""

    tolerance = 2e-2

    def create_model(self) -> nn.Module:
        return Unequal()


class MaskedAttention(nn.Module):
    """Attention over padded sequences; some have nothing but padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = (
            nn.Embedding(7, 8, padding_idx=0),
            nn.MultiheadAttention(8, 2, batch_first=True),
        )
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        mask = x == 0
        mask = mask & ~mask.all(1, keepdim=True)
        h = self.embedding(x)
        h = self.attention(h, h, h, key_padding_mask=mask)[0]
        keep = (x != 0).float()[..., None]
        return self.out((h * keep).sum(1) / keep.sum(1).clamp_min(1))


@case("all-padded-rows", AREA)
class AllPadded(Case):
    """Attention with padding masks, and rows that are padding alone."""

    def create_model(self) -> nn.Module:
        return MaskedAttention()

    def create_data(self) -> Any:
        x = tokens(6, 7)
        lengths = torch.arange(SAMPLES) % 7
        return x * (torch.arange(6)[None] < lengths[:, None]), points()[1]


@case("encoder-eval-mode", AREA)
class EncoderFastPath(Case):
    """nn.TransformerEncoder with a padding mask and dropout, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def create_model(self) -> nn.Module:
        return PaddedEncoder()

    def create_data(self) -> Any:
        x = tokens(6, 7)
        lengths = 1 + torch.arange(SAMPLES) % 4
        return x * (torch.arange(6)[None] < lengths[:, None]), points()[1]


class PaddedEncoder(nn.Module):
    """An encoder of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 8), nn.Linear(8, 3)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.encoder(self.embedding(x), src_key_padding_mask=x == 0)[:, 0])


class Cumulative(nn.Module):
    """BatchNorm with momentum=None."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6, momentum=None), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)
        )

    def forward(self, x: Tensor) -> Any:
        return self.network(x)


@case("batchnorm-cumulative", AREA)
class BatchNormCumulative(Case):
    """BatchNorm with momentum=None, which counts its batches."""

    settings: ClassVar = {"unit": 6}

    def create_model(self) -> nn.Module:
        return Cumulative()

    def create_data(self) -> Any:
        return images()


@case("batchnorm-whole", AREA)
class BatchNormWhole(BatchNormCumulative):
    """BatchNorm with unit=batch_size: as in plain torch."""

    settings: ClassVar = {"unit": BATCH}


@case("instancenorm-running", AREA)
class InstanceNormRunning(Case):
    """InstanceNorm with running statistics."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 6, 3),
            nn.InstanceNorm2d(6, track_running_stats=True),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(216, 4),
        )

    def create_data(self) -> Any:
        return images()


class OwnBatchNorm(nn.Module):
    """Normalises by the batch's mean, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        if self.training:
            h = (h - h.mean(0)) / (h.std(0) + 1e-5)
        return self.last(torch.tanh(h))


@case("own-batchnorm", AREA)
class OwnNormalisation(Case):
    """Batch normalisation written by hand, in training mode only."""

    expect, says = "refused", "unit"

    def create_model(self) -> nn.Module:
        return OwnBatchNorm()


class OwnBatchNormDropout(OwnBatchNorm):
    """The same with dropout."""

    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        if self.training:
            h = (h - h.mean(0)) / (h.std(0) + 1e-5)
        return self.last(functional.dropout(torch.tanh(h), 0.2, self.training))


@case("own-batchnorm-dropout", AREA)
class OwnNormalisationDropout(Case):
    """Batch normalisation written by hand, in training mode only, and dropout: evaluation mode shows nothing."""

    expect, says = "refused", "unit"

    def create_model(self) -> nn.Module:
        return OwnBatchNormDropout()


class Observed(nn.Module):
    """Fake quantisation with observers."""

    def __init__(self) -> None:
        super().__init__()
        from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

        self.network, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.fake = FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.fake(torch.tanh(self.network(x))))


@case("fake-quantised", AREA)
class FakeQuantised(Case):
    """Quantisation-aware training with torch.ao's observers."""

    expect, says = "refused", "unit"

    def create_model(self) -> nn.Module:
        return Observed()


@case("fake-quantised-whole", AREA)
class FakeQuantisedWhole(Case):
    """The same with unit=batch_size."""

    settings: ClassVar = {"unit": BATCH}

    def create_model(self) -> nn.Module:
        return Observed()


class Balanced(nn.Module):
    """Experts with a load-balance loss over the batch (Switch)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(6, 4), nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        shares = self.gate(x).softmax(1)
        chosen = shares.argmax(1)
        parts = torch.stack([torch.tanh(expert(x)) for expert in self.experts], 1)
        h = parts[torch.arange(len(x)), chosen] * shares.gather(1, chosen[:, None])
        load = functional.one_hot(chosen, 4).float().mean(0)
        return self.out(h), 4 * (load * shares.mean(0)).sum()


@case("experts-balanced", AREA)
class BalancedExperts(Case):
    """Experts with a load-balance loss over the batch, with the usual weight of 0.01."""

    expect, says = "refused", "unit"

    def create_model(self) -> nn.Module:
        return Balanced()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out, balance = model(batch[0])
        return functional.cross_entropy(out, batch[1]) + 0.01 * balance


@case("experts-capacity", AREA)
class Capacity(Case):
    """Experts with a capacity: what is more in a batch is dropped."""

    expect, says = "refused", "unit"

    def create_model(self) -> nn.Module:
        return Limited()


class Limited(Balanced):
    """Each expert takes a quarter of a batch and half as much again."""

    def forward(self, x: Tensor) -> Any:
        shares = self.gate(x).softmax(1)
        chosen = shares.argmax(1)
        most = max(1, len(x) * 3 // 8)
        place = functional.one_hot(chosen, 4).cumsum(0).gather(1, chosen[:, None])[:, 0]
        parts = torch.stack([torch.tanh(expert(x)) for expert in self.experts], 1)
        h = parts[torch.arange(len(x)), chosen] * (place <= most).float()[:, None]
        return self.out(h)


class Siamese(nn.Module):
    """Two inputs, one network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small(4)

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.network(a), self.network(b)


@case("siamese", AREA)
class Pairs(Case):
    """Siamese pairs with a margin."""

    def create_model(self) -> nn.Module:
        return Siamese()

    def create_data(self) -> Any:
        x, y = points()
        return {"left": x, "right": x.flip(0), "same": (y == y.flip(0)).float()}

    def batch(self, data: Any, indices: Any) -> Any:
        return {name: part[indices] for name, part in data.items()}

    def loss(self, model: nn.Module, batch: Any) -> Any:
        left, right = model(batch["left"], batch["right"])
        far = functional.pairwise_distance(left, right)
        same = batch["same"]
        return (same * far**2 + (1 - same) * functional.relu(2 - far) ** 2).mean()


@case("scripted", AREA)
class Scripted(Case):
    """torch.jit.script of the model."""

    def create_model(self) -> nn.Module:
        return torch.jit.script(small())
