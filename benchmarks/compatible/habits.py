"""How users write modules, optimizers and data sets: what they do beside what their names say."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from benchmarks.compatible.case import BATCH, REFUSED, SAMPLES, Case, Samples, case, points, small
from remote_agent.training.config import TrainingConfig

AREA = "habits"


# --- eval() and train() that do more ---------------------------------------------------------------------------------


class Merging(nn.Linear):
    """A low-rank adapter, which is a part of the frozen weight in evaluation mode."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight.requires_grad = False
        self.down, self.up = nn.Parameter(0.3 * torch.randn(2, inputs)), nn.Parameter(torch.zeros(outputs, 2))
        self.merged = False

    def train(self, mode: bool = True) -> Any:
        if self.merged is mode:
            self.weight.data += (self.up @ self.down) * (-1 if mode else 1)
            self.merged = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight, self.bias)
        return y if self.merged else y + x @ self.down.T @ self.up.T


class Validated(Case):
    """With an evaluation after every second step."""

    settings: ClassVar[Mapping[str, Any]] = {"evaluate_every": 2}

    def create_validation_data(self) -> Any:
        return points(seed=11)


@case("adapters-merged-by-eval", AREA)
class AdaptersMerged(Validated):
    """LoRA by hand, as loralib has it: eval() merges the adapters, train() takes them out again."""

    quick: ClassVar[bool] = True

    def create_model(self) -> nn.Module:
        return nn.Sequential(Merging(6, 16), nn.Tanh(), Merging(16, 3))


class Swapping(nn.Module):
    """In evaluation mode it has the average of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.swapped = False

    @torch.no_grad()
    def train(self, mode: bool = True) -> Any:
        if self.swapped is mode:
            for own, mean in zip(self.net.parameters(), self.average.parameters(), strict=True):
                kept = own.clone()
                own.copy_(mean)
                mean.copy_(kept)
            self.swapped = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Any:
        if self.training:
            with torch.no_grad():
                for mean, own in zip(self.average.parameters(), self.net.parameters(), strict=True):
                    mean.lerp_(own, 0.1)
        return self.net(x)


@case("average-swapped-in-by-eval", AREA)
class AverageSwapped(Validated):
    """A model that swaps the average of its weights in with eval(), and out with train()."""

    def create_model(self) -> nn.Module:
        return Swapping()


# --- Optimizers by hand ----------------------------------------------------------------------------------------------


class Optimistic(torch.optim.Optimizer):
    """Steps along the gradient and its change since the last step; it keeps the gradient itself, without a copy."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                parameter.sub_(0.05 * (1.5 * gradient - 0.5 * state.get("last", gradient)))
                state["last"] = gradient


@case("last-gradient-kept", AREA)
class LastGradientKept(Case):
    """An optimizer that keeps the last step's gradient without a copy of it."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return Optimistic(model.parameters(), {})


class Rebinding(torch.optim.Optimizer):
    """SGD with momentum that makes new tensors."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["moved"] = 0.9 * state.get("moved", 0) + parameter.grad.data
                parameter.data = parameter.data - 0.05 * state["moved"]


@case("weights-rebound", AREA)
class WeightsRebound(Case):
    """An optimizer that sets p.data to a new tensor."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return Rebinding(model.parameters(), {})


# --- Samples without a loss ------------------------------------------------------------------------------------------


def scenes() -> list[dict[str, Tensor]]:
    """Images as six numbers, and the boxes in them, of which most have none."""
    generator = torch.Generator().manual_seed(8)
    counts = [int(torch.randint(1, 3, (), generator=generator)) if number % 3 == 0 else 0 for number in range(SAMPLES)]
    return [
        {"x": torch.randn(6, generator=generator), "boxes": torch.randn(count, 3, generator=generator)}
        for count in counts
    ]


def together(samples: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """A batch of them: the boxes as a list."""
    return {"x": torch.stack([each["x"] for each in samples]), "boxes": [each["boxes"] for each in samples]}


@case("images-without-objects", AREA)
class ImagesWithoutObjects(Case):
    """A mean over images, of which many have no object: their loss is a constant 0, without a gradient."""

    quick: ClassVar[bool] = True

    def create_data(self) -> Any:
        return DataLoader(Samples(scenes()), batch_size=BATCH, shuffle=True, collate_fn=together)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        total = torch.zeros(())
        for output, boxes in zip(model(batch["x"]), batch["boxes"], strict=True):
            if len(boxes):
                total = total + (output - boxes).square().mean()
        return total / len(batch["x"])


@case("objects-summed", AREA)
class ObjectsSummed(ImagesWithoutObjects):
    """The same as a sum and the number of objects: 0.0 and 0 where there are none."""

    quick: ClassVar[bool] = False

    def loss(self, model: nn.Module, batch: Any) -> Any:
        total, count = 0.0, 0
        for output, boxes in zip(model(batch["x"]), batch["boxes"], strict=True):
            if len(boxes):
                total, count = total + (output - boxes).square().mean(1).sum(), count + len(boxes)
        return total, count


# --- Classes ---------------------------------------------------------------------------------------------------------


class Around(Dataset[Any]):
    """Stands for another data set."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)


@case("wrapped-by-getattr", AREA)
class Wrapped(Case):
    """A data set around another one by __getattr__, which pickle asks while it has no attribute: it asks itself."""

    quick: ClassVar[bool] = True
    expect = REFUSED

    def create_data(self) -> Any:
        return Around(Samples(list(zip(*points(), strict=True))))


# --- Data ------------------------------------------------------------------------------------------------------------


class Prepared(Dataset[Any]):
    """Keeps what it has prepared in an array that it made at first."""

    def __init__(self) -> None:
        self.x, self.y = (part.numpy() for part in points())
        self.kept, self.known = np.zeros_like(self.x), np.zeros(len(self.x), bool)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        if not self.known[index]:
            self.kept[index], self.known[index] = 1.5 * self.x[index], True
        return self.kept[index], self.y[index]


@case("array-filled-by-samples", AREA)
class ArrayFilled(Case):
    """A data set that keeps what it has prepared in a numpy array."""

    def create_data(self) -> Any:
        return Prepared()


class Pair(NamedTuple):
    """A sample, or a batch of them."""

    x: Any
    y: Any


class Pairs(IterableDataset[Any]):
    """Named tuples, one after the other."""

    def __iter__(self) -> Iterator[Pair]:
        yield from (Pair(x, y) for x, y in zip(*points(), strict=True))


@case("named-tuples-in-a-stream", AREA)
class NamedStream(Case):
    """A loader over an IterableDataset of named tuples."""

    stream: ClassVar[bool] = True

    def create_data(self) -> Any:
        return DataLoader(Pairs(), batch_size=BATCH)

    def batch(self, data: Any, indices: Any) -> Any:
        return Pair(*(part[indices % SAMPLES] for part in points()))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch.x), batch.y)
