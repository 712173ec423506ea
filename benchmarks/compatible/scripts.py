"""What whole scripts bring: target networks, diffusion, flows, retrieval, and where they keep their counts."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.compatible.case import BATCH, ITSELF, REFUSED, Case, Samples, case, points, small, tokens

AREA = "whole scripts"


class Teaching(nn.Module):
    """A network, a count of steps, and a frozen copy of the network."""

    step: Tensor

    def __init__(self, network: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network or small()
        self.teacher = copy.deepcopy(self.network).requires_grad_(False)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Any:
        return self.network(x)

    @torch.no_grad()
    def follow(self, rate: float = 0.1) -> None:
        for mine, its in zip(self.teacher.parameters(), self.network.parameters(), strict=True):
            mine.data.lerp_(its, rate)


@case("target-network", AREA)
class TargetNetwork(Case):
    """DQN: a target network that is copied in every third step, for the first time after the measurement."""

    quick: ClassVar[bool] = True

    def create_model(self) -> nn.Module:
        return Teaching()

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        model.step += 1
        if model.step % 3 == 0:
            model.teacher.load_state_dict(model.network.state_dict())
        with torch.no_grad():
            goal = x[:, 0] + 0.9 * model.teacher(x).max(1).values
        return functional.smooth_l1_loss(model(x).gather(1, y[:, None])[:, 0], goal)


@case("late-teacher", AREA)
class LateTeacher(Case):
    """A mean teacher that begins to follow in the third step, by .data."""

    def create_model(self) -> nn.Module:
        return Teaching()

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        model.step += 1
        if model.step > 2:
            model.follow()
        return functional.cross_entropy(model(x), y) + 0.1 * functional.mse_loss(model(x), model.teacher(x))


class LateCount(Case):
    """A count that changes the loss long after the measurement only."""

    expect: ClassVar[str] = REFUSED
    says: ClassVar[str] = "changes with every call of loss"
    calls: ClassVar[Any] = itertools.count()

    def count(self, model: Any) -> int:
        return int(next(self.calls))

    def loss(self, model: Any, batch: Any) -> Any:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        return loss * 2 if self.count(model) > 200 else loss


class Flow(nn.Module):
    """Two couplings."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 12)) for _ in range(2))
        self.masks = [torch.tensor([1.0, 0, 1, 0, 1, 0]), torch.tensor([0.0, 1, 0, 1, 0, 1])]

    def forward(self, x: Tensor) -> Any:
        log: Any = 0.0
        for net, mask in zip(self.nets, self.masks, strict=True):
            scale, shift = net(x * mask).chunk(2, 1)
            scale = scale.tanh() * (1 - mask)
            x, log = x * scale.exp() + shift * (1 - mask), log + scale.sum(1)
        return x, log


@case("diffusion", AREA)
class Diffusion(Case):
    """DDPM: a time and noise for each sample, a moving average of the weights in the model."""

    expect: ClassVar[str] = ITSELF

    def create_model(self) -> nn.Module:
        return Teaching(nn.Sequential(nn.Linear(7, 16), nn.SiLU(), nn.Linear(16, 6)))

    def loss(self, model: Any, batch: Any) -> Any:
        x, _ = batch
        model.follow(0.01)
        kept = (1 - torch.linspace(1e-4, 0.02, 100)).cumprod(0)
        time, noise = torch.randint(0, 100, (len(x),)), torch.randn_like(x)
        noisy = kept[time].sqrt()[:, None] * x + (1 - kept[time]).sqrt()[:, None] * noise
        return functional.mse_loss(model(torch.cat([noisy, time[:, None] / 100], 1)), noise)


class LayerDrop(nn.Module):
    """A layer that Python's random numbers leave out in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        h = self.first(x).tanh()
        return self.last(h if self.training and random.random() < 0.3 else h + self.middle(h).tanh())  # noqa: S311


@case("layer-drop-contrastive", AREA)
class LayerDropContrastive(Case):
    """LayerDrop, and an in-batch term in training mode alone: evaluation shows nothing."""

    expect: ClassVar[str] = REFUSED
    says: ClassVar[str] = "depends on which samples are together"

    def create_model(self) -> nn.Module:
        return LayerDrop()

    def loss(self, model: Any, batch: Any) -> Any:
        out = model(batch[0])
        z = functional.normalize(out, dim=1)
        pairs = functional.cross_entropy(z @ z.T / 0.2, torch.arange(len(z))) if model.training else 0.0
        return functional.cross_entropy(out, batch[1]) + pairs


@case("mixup-flipped", AREA)
class Mixup(Case):
    """timm's mixup: the batch and the flipped batch, by one of numpy's random numbers."""

    expect: ClassVar[str] = REFUSED
    says: ClassVar[str] = "depends on which samples are together"

    def loss(self, model: Any, batch: Any) -> Any:
        (x, y), share = batch, np.random.beta(0.8, 0.8)
        out = model(share * x + (1 - share) * x.flip(0))
        return share * functional.cross_entropy(out, y) + (1 - share) * functional.cross_entropy(out, y.flip(0))


@case("negative-sampling", AREA)
class NegativeSampling(Case):
    """Skip-gram: negatives by torch.multinomial for all samples at once."""

    expect: ClassVar[str] = ITSELF

    def create_model(self) -> nn.Module:
        return nn.ModuleList([nn.Embedding(20, 8), nn.Embedding(20, 8)])

    def create_data(self) -> Any:
        pairs = tokens(2, 20)
        return pairs[:, 0], pairs[:, 1]

    def loss(self, model: Any, batch: Any) -> Any:
        drawn = torch.multinomial(torch.arange(20.0) ** 0.75, len(batch[0]) * 5, replacement=True).view(-1, 5)
        v = model[0](batch[0])
        near = functional.logsigmoid((v * model[1](batch[1])).sum(1))
        return -(near + functional.logsigmoid(-(model[1](drawn) @ v[:, :, None])[..., 0]).sum(1)).mean()


@case("masked-in-few", AREA)
class MaskedInFew(Case):
    """(sum, weight) over samples that are rare: a constant where a part has none of them."""

    def create_data(self) -> Any:
        return *points(), torch.arange(42) % 5 == 0

    def loss(self, model: Any, batch: Any) -> Any:
        x, y, counts = batch
        if not counts.any():
            return torch.tensor(0.0), 0
        return functional.cross_entropy(model(x[counts]), y[counts], reduction="sum"), counts.sum()


@case("odd-tensors", AREA)
class OddTensors(Case):
    """Parameters without dimensions, without numbers and transposed; buffers with NaN, infinities and nothing."""

    def create_model(self) -> nn.Module:
        return Odd()


class Odd(nn.Module):
    """A linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.empty = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(0, 3))
        self.weight = nn.Parameter(torch.randn(3, 6).t())
        self.register_buffer("odd", torch.tensor([float("nan"), float("inf"), -float("inf")]))
        self.register_buffer("flag", torch.zeros((), dtype=torch.bool))
        self.register_buffer("nothing", torch.zeros(0))

    def forward(self, x: Tensor) -> Any:
        self.get_buffer("flag").fill_(True)
        return self.scale * (x @ self.weight) + self.empty.sum()


@case("one-big-graph", AREA)
class BigGraph(Case):
    """A graph network over one graph, a mask of training nodes: batches of one sample."""

    settings: ClassVar[Any] = {"batch_size": 1}

    def create_data(self) -> Any:
        (x, y), generator = points(), torch.Generator().manual_seed(3)
        edges = (torch.rand(42, 42, generator=generator) < 0.1).float() + torch.eye(42)
        return [(edges / edges.sum(1, keepdim=True) @ x, y, torch.rand(42, generator=generator) < 0.5)]

    def loss(self, model: Any, batch: Any) -> Any:
        x, y, mask = (each[0] for each in batch)
        return functional.cross_entropy(model(x)[mask], y[mask])

    def mistake_in_order(self, steps: Any) -> str:
        return ""


@case("boxes", AREA)
class Boxes(Case):
    """Detection: lists of boxes, of other numbers for each image; a sum, and the number of boxes."""

    def create_model(self) -> nn.Module:
        return nn.Linear(6, 4)

    def create_data(self) -> Any:
        rng = np.random.default_rng(1)
        boxes = [torch.from_numpy(rng.random((n, 4)).astype("float32")) for n in rng.integers(0, 4, 42)]
        return DataLoader(Samples(list(zip(points()[0], boxes, strict=True))), batch_size=BATCH, collate_fn=lists)

    def loss(self, model: Any, batch: Any) -> Any:
        out = model(torch.stack(batch[0]))
        found = [(each - boxes).abs().sum() for each, boxes in zip(out, batch[1], strict=True)]
        return torch.stack(found).sum(), sum(map(len, batch[1]))


def lists(samples: Any) -> Any:
    """Inputs, and all that belongs to each."""
    return tuple(zip(*samples, strict=True))
