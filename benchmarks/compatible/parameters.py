"""Parameters of all kinds: frozen, used late or never, sparse, tied by a rule, of several dtypes."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from benchmarks.compatible.case import Case, case, points, tokens
from benchmarks.compatible.models import AREA, LongShortTerm
from remote_agent.training.config import TrainingConfig


@case("frozen-layers", AREA)
class Frozen(Case):
    """The first layer is frozen, and the optimizer gets only what is trained."""

    def create_model(self) -> nn.Module:
        model = super().create_model()
        model.get_submodule("0").requires_grad_(False)
        return model

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=config.learning_rate / 5)


class RareBranch(nn.Module):
    """A branch that only samples with a large first feature use."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.rare = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        large = x[:, 0] > 1.6
        out = self.usual(x)
        return out + large[:, None] * self.rare(x) if large.any() else out


@case("rare-branch", AREA)
class Rare(Case):
    """A branch that the first samples do not use: its first gradient comes after the measurement."""

    killed = quick = True

    def create_model(self) -> nn.Module:
        return RareBranch()

    def create_data(self) -> Any:
        x, y = points()
        order = x[:, 0].argsort()
        return x[order], y[order]


class LateBranch(nn.Module):
    """A second layer that takes part from the fourth step on; a buffer counts them."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.steps += 1
        x = torch.tanh(self.first(x))
        second = self.second if self.steps > 3 else self._detached
        return self.out(x + torch.tanh(second(x)))

    def _detached(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.second.weight.detach(), self.second.bias.detach())


@case("late-branch", AREA)
class Late(Case):
    """A layer whose weights are detached for three steps, and trained from then on (unfreezing)."""

    def create_model(self) -> nn.Module:
        return LateBranch()


class Unfreezing(nn.Module):
    """The first layer is frozen until the fourth step."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 16), nn.Linear(16, 3)
        self.first.requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.steps += 1
        if self.steps > 3:
            self.first.requires_grad_(True)
        return self.out(torch.tanh(self.first(x)))


@case("sparse-embedding", AREA)
class Sparse(LongShortTerm):
    """An embedding with sparse gradients, and SparseAdam for it."""

    expect, says = "refused", "sparse"
    killed = False

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 20, sparse=True))

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam(model.parameters(), lr=config.learning_rate)


@case("sparse-sgd", AREA)
class SparseDescent(Sparse):
    """An embedding with sparse gradients, and SGD."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate)


@case("embedding-dense", AREA)
class Dense(LongShortTerm):
    """An embedding with dense gradients and padding_idx."""

    killed = False

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 8, padding_idx=1), nn.Tanh(), nn.Linear(8, 20))


@case("embedding-bag", AREA)
class Bag(Case):
    """An EmbeddingBag."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(20, 8, mode="mean"), nn.Linear(8, 3))

    def create_data(self) -> Any:
        text = tokens(6, 20)
        return text, text.sum(1) % 3


@case("embedding-max-norm", AREA)
class Renormalised(LongShortTerm):
    """Embedding(max_norm=...): the forward pass itself changes the rows that it reads."""

    expect, says = "refused", "itself changes the trained parameter"
    killed = False

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 8, max_norm=1.0), nn.Tanh(), nn.Linear(8, 20))


@case("weight-norm", AREA)
class WeightNorm(Case):
    """weight_norm as a parametrization."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 16)), nn.Tanh(), nn.Linear(16, 3))


@case("orthogonal", AREA)
class Orthogonal(Case):
    """An orthogonal weight, by a parametrization."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 3))


@case("spectral-norm", AREA)
class SpectralNorm(Case):
    """spectral_norm: every forward pass makes a power iteration in its buffers, from the weights alone."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 16)), nn.Tanh(), nn.Linear(16, 3))


class Waves(nn.Module):
    """A complex weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8, dtype=torch.complex64) / 3)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out((x.to(torch.complex64) @ self.weight).abs())


@case("complex", AREA)
class Complex(Case):
    """A complex parameter beside real ones."""

    def create_model(self) -> nn.Module:
        return Waves()


@case("float64", AREA)
class Double(Case):
    """A model in float64."""

    tolerance = 1e-12

    def create_model(self) -> nn.Module:
        return super().create_model().double()

    def create_data(self) -> Any:
        x, y = points()
        return x.double(), y


@case("bfloat16", AREA)
class Half(Double):
    """A model in bfloat16: equal up to its precision."""

    tolerance = 2e-2

    def create_model(self) -> nn.Module:
        return Case.create_model(self).bfloat16()

    def create_data(self) -> Any:
        x, y = points()
        return x.bfloat16(), y


class MixedPrecision(nn.Module):
    """A bfloat16 layer before a float32 one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 16).double(), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out(torch.tanh(self.first(x.double())).float())


@case("two-dtypes", AREA)
class TwoTypes(Case):
    """float64 and float32 parameters in one model."""

    def create_model(self) -> nn.Module:
        return MixedPrecision()


@case("unused-parameters", AREA)
class Unused(Case):
    """A layer that the loss never uses; weight decay must leave it alone, as without a gradient."""

    def create_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        model.get_submodule("0").register_module("spare", nn.Linear(2, 2))
        return model

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate / 10, weight_decay=0.3)


@case("random-start", AREA)
class RandomStart(Case):
    """create_model draws from numpy and from Python's random numbers."""

    def create_model(self) -> nn.Module:
        model = nn.Linear(6, 3)
        with torch.no_grad():
            model.weight.mul_(float(np.random.rand()) + random.random())  # noqa: S311 - as a user would
        return model


@case("model-on-meta", AREA)
class OnMeta(Case):
    """Parameters that were left on the meta device."""

    expect, says = "refused", "meta"

    def create_model(self) -> nn.Module:
        with torch.device("meta"):
            return nn.Linear(6, 3)


@case("shape-by-chance", AREA)
class ByChance(Case):
    """create_model gives another architecture each time that it is called."""

    expect, says = "refused", "create_model"

    def create_model(self) -> nn.Module:
        width = 8 + time.time_ns() // 1000 % 997
        return nn.Sequential(nn.Linear(6, width), nn.Linear(width, 3))
