"""What a case of the compatibility matrix is: a job as a user writes it, and what is expected of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, default_collate

from remote_agent.training.config import TrainingConfig

EQUAL, REFUSED, ITSELF, ENDED = "equal", "refused", "itself", "ended"
"""What is expected of a run: plain torch's weights; a clear error before step 1; the same weights bit by bit whenever
it is repeated (where random numbers in the model cannot be those of a loop over whole batches); a clear error once it
shows (what the measurement can't see)."""

SEED, STEPS, BATCH, SAMPLES = 3, 6, 12, 42

CASES: dict[str, Case] = {}


class Case:
    """A job; its class's attributes say how it is run. The docstring's first line is what the table says of it.

    Attributes:
        name: in the table and on the command line.
        area: of the table.
        expect: one of :data:`EQUAL`, :data:`REFUSED`, :data:`ITSELF`.
        says: what a refusal's text must contain.
        settings: fields of the configuration; None leaves one out that all cases have.
        steps: of the run.
        tolerance: the largest relative error of a tensor.
        killed: also run with a worker killed in the middle.
        quick: also run as a test.
        notice: a part of what the run has to tell the user.
        stream: the data is an iterable: its samples are used in their order.
    """

    name: ClassVar[str] = ""
    area: ClassVar[str] = ""
    expect: ClassVar[str] = EQUAL
    says: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any]] = {}
    steps: ClassVar[int] = STEPS
    tolerance: ClassVar[float] = 1e-5
    killed: ClassVar[bool] = False
    quick: ClassVar[bool] = False
    notice: ClassVar[str] = ""
    stream: ClassVar[bool] = False

    def config(self, **others: Any) -> TrainingConfig:
        """The run's configuration, with ``others``."""
        common: dict[str, Any] = {
            "num_iterations": self.steps,
            "batch_size": BATCH,
            "seed": SEED,
            "learning_rate": 0.05,
            "measure_seconds": 0.02,
            "checkpoint_seconds": 0.0,
            "rebalance": False,
        }
        settings = common | dict(self.settings) | others
        return TrainingConfig(**{name: value for name, value in settings.items() if value is not None})

    def create_model(self) -> nn.Module:
        """A small perceptron, where a case has none of its own."""
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9)

    def create_data(self) -> Any:
        """Points of three classes, as a tuple of tensors."""
        return points()

    def batch(self, data: Any, indices: NDArray[np.int64]) -> Any:
        """What a plain loop's loader would give for these samples."""
        if isinstance(data, DataLoader):
            collate: Callable[[list[Any]], Any] = data.collate_fn
            return collate([data.dataset[int(index)] for index in indices])
        if isinstance(data, tuple):
            return tuple(torch.as_tensor(part[indices]) for part in data)
        return default_collate([data[int(index)] for index in indices])

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        """What is wrong with the samples of the steps, if anything: each is used once before any is used again."""
        used = np.concatenate(steps)
        first = used[:SAMPLES]
        return "" if len(set(first.tolist())) == len(first) else "a sample was used twice in an epoch"


def case(name: str, area: str) -> Callable[[type[Case]], type[Case]]:
    """Put the class into :data:`CASES`."""

    def entered(kind: type[Case]) -> type[Case]:
        kind.name, kind.area = name, area
        CASES[name] = kind()
        return kind

    return entered


def small(out: int = 3) -> nn.Sequential:
    """A network from six numbers."""
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, out))


def points(features: int = 6, classes: int = 3, samples: int = SAMPLES, seed: int = 5) -> tuple[Tensor, Tensor]:
    """Fixed random points ``(samples, features)``, and for each the class ``(samples,)`` that can be learned of it."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, generator=generator)
    return x, (x[:, :classes] + 0.3 * torch.randn(samples, classes, generator=generator)).argmax(1)


def images(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Images ``(samples, 1, 8, 8)`` of four classes."""
    x = torch.randn(samples, 1, 8, 8, generator=torch.Generator().manual_seed(6))
    return x, functional.avg_pool2d(x, 4).flatten(1).argmax(1)


def tokens(length: int, vocabulary: int, samples: int = SAMPLES) -> Tensor:
    """Sequences of tokens, int64 ``(samples, length)``."""
    return torch.randint(1, vocabulary, (samples, length), generator=torch.Generator().manual_seed(7))


class Samples(Dataset[Any]):
    """A dataset of any samples, one after the other."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]
