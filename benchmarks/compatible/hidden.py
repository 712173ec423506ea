"""State that is in no state dict: caches, extra state, generators, plain objects."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compatible.case import Case, case, small, tokens
from benchmarks.compatible.memory import AREA


class Rotary(nn.Module):
    """Attention with rotary embeddings, whose tables are buffers that are not in the state dict and grow."""

    cos: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.register_buffer("cos", None, persistent=False)

    def table(self, length: int) -> Tensor:
        if self.cos is None or len(self.cos) < length:
            self.register_buffer(
                "cos", torch.cos(torch.arange(length)[:, None] * torch.arange(8) / 8), persistent=False
            )
        assert self.cos is not None
        return self.cos[:length]

    def forward(self, x: Tensor) -> Any:
        h = self.embedding(x)
        h = h * self.table(x.shape[1])
        return self.out(functional.scaled_dot_product_attention(h, h, h, is_causal=True))


@case("rotary-cache", AREA)
class RotaryCache(Case):
    """A table in a non-persistent buffer, which forward makes when it is first needed."""

    def create_model(self) -> nn.Module:
        return Rotary()

    def create_data(self) -> Any:
        x = tokens(9, 11)
        return x[:, :-1], x[:, 1:]

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


class Unsaved(nn.Module):
    """A moving mean in a buffer that is not in the state dict."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network = small()
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, x: Tensor) -> Any:
        out = self.network(x - self.mean)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
        return out


@case("running-mean-unsaved", AREA)
class UnsavedMean(Case):
    """A moving mean of the inputs in a buffer with persistent=False."""

    def create_model(self) -> nn.Module:
        return Unsaved()


class Extra(nn.Module):
    """Keeps a number in its extra state, which scales its output."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.scale = small(), 1.0

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]

    def forward(self, x: Tensor) -> Any:
        return self.network(x) * self.scale


@case("extra-state", AREA)
class ExtraState(Case):
    """get_extra_state with something that is no tensor, and does not change."""

    def create_model(self) -> nn.Module:
        return Extra()


class ExtraChanging(Extra):
    """Changes it in each training step."""

    def forward(self, x: Tensor) -> Any:
        self.scale = self.scale * 0.9
        return super().forward(x)


@case("extra-state-changing", AREA)
class ExtraStateChanging(Case):
    """get_extra_state with a number that forward changes."""

    expect, says = "refused", "scale"

    def create_model(self) -> nn.Module:
        return ExtraChanging()


class Entropy(nn.Module):
    """Random features in a plain attribute, from the system's entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.from_numpy(np.random.default_rng().normal(size=(6, 6))).float()
        self.network = small()

    def forward(self, x: Tensor) -> Any:
        return self.network(torch.cos(x @ self.features))


@case("random-attribute", AREA)
class RandomAttribute(Case):
    """Random features in a plain attribute (no buffer), drawn from the system's entropy in create_model."""

    expect, says = "refused", "features"

    def create_model(self) -> nn.Module:
        return Entropy()


class Seeded(nn.Module):
    """Random features in a plain attribute, by torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.randn(6, 6)
        self.network = small()

    def forward(self, x: Tensor) -> Any:
        return self.network(torch.cos(x @ self.features))


@case("random-attribute-seeded", AREA)
class RandomAttributeSeeded(Case):
    """Random features in a plain attribute (no buffer), drawn from torch's generator."""

    def create_model(self) -> nn.Module:
        return Seeded()


class Partial(nn.Module):
    """Leaves its frozen part out of the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.network = small()

    def state_dict(self, *arguments: Any, **others: Any) -> Any:
        full = super().state_dict(*arguments, **others)
        return {name: value for name, value in full.items() if "frozen" not in name}

    def forward(self, x: Tensor) -> Any:
        return self.network(torch.tanh(self.frozen(x)))


@case("own-state-dict", AREA)
class OwnStateDict(Case):
    """state_dict leaves a frozen part out (as adapters over a large model do)."""

    def create_model(self) -> nn.Module:
        return Partial()


class StochasticDepth(nn.Module):
    """Skips layers by Python's random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        for block in self.blocks:
            if not self.training or random.random() < 0.7:  # noqa: S311
                h = h + torch.tanh(block(h))
        return self.last(h)


@case("stochastic-depth", AREA)
class Skipping(Case):
    """Layers are skipped by Python's random numbers, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def create_model(self) -> nn.Module:
        return StochasticDepth()


class DropPath(StochasticDepth):
    """Skips layers for each sample, by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        for block in self.blocks:
            keep = torch.rand(len(x), 1, generator=self.generator) < 0.7
            h = h + torch.tanh(block(h)) * keep
        return self.last(h)


@case("own-generator", AREA)
class OwnGenerator(Case):
    """DropPath by a torch.Generator of the model's own."""

    expect, says = "refused", "generator"

    def create_model(self) -> nn.Module:
        return DropPath()


class NumpyNoise(nn.Module):
    """Noise by a numpy generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.rng = small(), np.random.default_rng(0)

    def forward(self, x: Tensor) -> Any:
        return self.network(x + torch.from_numpy(self.rng.normal(size=x.shape)).float() * 0.1)


@case("own-numpy-generator", AREA)
class OwnNumpyGenerator(Case):
    """Noise by a numpy generator of the model's own."""

    expect, says = "refused", "rng"

    def create_model(self) -> nn.Module:
        return NumpyNoise()


class Meter:
    """A moving average, as many projects have it."""

    def __init__(self) -> None:
        self.value, self.count = 1.0, 0

    def update(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) * 0.1


class Metered(nn.Module):
    """Scales by a meter, which is a plain object."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.meter = small(), Meter()

    def forward(self, x: Tensor) -> Any:
        out = self.network(x)
        self.meter.update(float(out.detach().abs().mean()))
        return out / self.meter.value


@case("plain-object-state", AREA)
class PlainObject(Case):
    """A meter object (no module, no buffer) that the output is scaled by."""

    expect, says = "refused", "meter"

    def create_model(self) -> nn.Module:
        return Metered()
