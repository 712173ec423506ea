"""Pipelines of models that no list names: the weights of a plain loop, also after a lost stage, or a refusal.

What is refused in the measurement is in ``tests/models/test_cutting.py``; here is what begins to be wrong in training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import LossNotFinite, StateChanged, TrainingError
from tests.training import plain
from tests.training.pipelines import LocalPipeline, assert_close

WIDTH, VOCABULARY, LENGTH, RARE = 12, 31, 7, 5
STEPS, KEPT_AT, KILLED_IN = 9, 3, 5


class Block(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), inner or nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + torch.tanh(self.inner(self.norm(x)))
        return result


class Net(nn.Module):
    def __init__(self, blocks: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(blocks or [Block() for _ in range(6)])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(x)
        return result


@dataclass(frozen=True)
class Job:
    """Next tokens of random text, of which those that are measured are without the rare one."""

    make: Callable[[], nn.Module]

    def create_model(self) -> nn.Module:
        return self.make()

    def layers(self, model: Any) -> Any:
        return getattr(model, "blocks", None)

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    def create_data(self) -> Any:
        text = torch.randint(VOCABULARY, (60, LENGTH + 1), generator=torch.Generator().manual_seed(4))
        measured = text[:8]
        measured[measured == RARE] = 0
        text[20, 2] = RARE
        return torch.utils.data.TensorDataset(text[:, :-1], text[:, 1:])


CONFIG = TrainingConfig(strategy="pipeline", num_iterations=STEPS, batch_size=12, micro_batch=3, seed=7)


# --- Equal -----------------------------------------------------------------------------------------------------------


class Turned(nn.Module):
    """A linear layer with buffers; it is one module of several blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("places", torch.arange(WIDTH).flip(0))
        self.register_buffer("scales", torch.linspace(0.1, 2, WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x)[..., self.places] * self.scales
        return result


def shared_modules() -> nn.Module:
    turned, often = Turned(), nn.Linear(WIDTH, WIDTH)
    twice = nn.Sequential(often, nn.Tanh(), often)
    return Net([Block(turned), Block(often), Block(), Block(twice), Block(turned), Block(often)])


class Looking(Block):
    """A block that reads the embedding's weights, and another block's, which are none of its modules."""

    def __init__(self, model: Net, other: Any) -> None:
        super().__init__()
        self.others = [model.tokens, other.inner]

    def forward(self, x: Tensor) -> Tensor:
        tokens, inner = self.others
        found = (x @ tokens.weight.t()).softmax(-1) @ tokens.weight
        return super().forward(x + functional.linear(found, inner.weight))


def weights_of_others() -> nn.Module:
    model = Net()
    model.head.weight = model.tokens.weight
    model.blocks[3] = Looking(model, model.blocks[1])
    return model


class Masked(Net):
    """Each block gets a mask of what the one before gave, without a gradient."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, x > 1)
        result: Tensor = self.head(x)
        return result


class Halving(Block):
    def forward(self, x: Tensor, where: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.where(where, 0.5 * x, x))


class Phases(nn.Module):
    """A layer with complex weights, of complex numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(WIDTH, WIDTH, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return x + torch.complex(y.real.tanh(), y.imag.tanh())


class Complex(Net):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__([Phases(dtype) for _ in range(6)])
        if dtype == torch.complex128:
            self.double()  # what is not complex

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.fft.fft(self.tokens(ids))
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(torch.fft.ifft(x).real)
        return result


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + super().forward(x)
        return result


def residual_sequences() -> nn.Module:
    members = [Residual(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *members, nn.Linear(WIDTH, VOCABULARY))


def mixed() -> nn.Module:
    """Frozen layers between trained ones, and a trained matrix beside a frozen vector."""
    model: Any = Net()
    for frozen in (model.tokens, model.blocks[0], model.blocks[3], model.blocks[4].norm, model.head.weight):
        frozen.requires_grad_(False)
    return copy.deepcopy(model)


@pytest.mark.parametrize(
    "make",
    [
        shared_modules,
        weights_of_others,
        lambda: Masked([Halving() for _ in range(6)]),
        lambda: Complex(torch.complex64),
        lambda: Complex(torch.complex128),
        residual_sequences,
        mixed,
    ],
    ids=["shared modules", "others' weights", "masks", "complex", "complex128", "residual sequences", "mixed"],
)
def test_weights_are_those_of_one_process(make: Callable[[], nn.Module]) -> None:
    job = Job(make)
    expected = plain.train(job, CONFIG)
    with LocalPipeline(job, CONFIG, (0, 3, 6)) as pipeline:
        found = pipeline.train(STEPS)
    assert_close(found, {name: expected[name] for name in found})
    with LocalPipeline(job, CONFIG, (0, 1, 5, 6)) as pipeline:
        pipeline.train(KEPT_AT)
        kept = pipeline.kept()
        pipeline.train(KILLED_IN - 1 - KEPT_AT)
        pipeline.lose(1, KILLED_IN)
        pipeline.cut_anew((0, 2, 6), kept)
        found = pipeline.train(STEPS - KEPT_AT)
    assert_close(found, {name: expected[name] for name in found})


# --- Refused once it shows -------------------------------------------------------------------------------------------


class RareWeight(Net):
    """For the rare token a weight is used at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.randn(WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.extra
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == 3 and bool((ids == RARE).any()):
                x = x + self.extra
        result: Tensor = self.head(x)
        return result


class RareCount(Net):
    """The rare token is counted in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.seen: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        if bool((ids == RARE).any()):
            self.seen = self.seen + 1
        return super().forward(ids) * (1 + 0.1 * self.seen)


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (RareWeight, LossNotFinite, "uses weights or values of an earlier stage past its blocks"),
        (RareCount, StateChanged, "begins to change seen"),
    ],
    ids=["weight", "count"],
)
def test_what_only_some_samples_show_ends_the_run(
    make: Callable[[], nn.Module], kind: type[TrainingError], said: str
) -> None:
    with LocalPipeline(Job(make), CONFIG, (0, 3, 6)) as pipeline, pytest.raises(kind, match=said):
        pipeline.train(STEPS)
