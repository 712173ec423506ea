"""The table of scripts: each a job as people write it, how common its like is, and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

STEPS, BATCH, SAMPLES, SEED = 6, 16, 56, 3
"""Of a run, unless its script says otherwise. An epoch ends within a step."""

SCRIPTS: dict[str, Script] = {}
"""By name; :mod:`benchmarks.compatible.scripts` fills it."""

T = TypeVar("T", bound=type)


@dataclass(frozen=True, kw_only=True)
class Script:
    """A job of the table.

    Attributes:
        job: its class; the first line of the docstring describes it.
        common: how common its like is, from 1 to 3.
        refused: words in the refusal's cause and in its hint; empty: it trains as it is. Where the hint names a
            ``unit``, the script has to train with it.
        random: loss, model or data draw random numbers, so plain torch has to draw the same.
        group: samples that the model normalises together; 0: any.
        summed: the loss adds its samples up.
        counts: names of the state that only counts, which is another one on each worker.
        quick: it is also run by ``make test``.
        settings: of its run.
    """

    job: type
    common: int = 1
    refused: tuple[str, str] | None = None
    random: bool = False
    group: int = 0
    summed: bool = False
    counts: tuple[str, ...] = ()
    quick: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The class's name."""
        return self.job.__name__

    @property
    def area(self) -> str:
        """The file that it is in."""
        return self.job.__module__.rpartition(".")[2]

    def config(self, **others: Any) -> dict[str, Any]:
        """Settings of a run, with ``others``."""
        common = {
            "num_iterations": STEPS,
            "batch_size": BATCH,
            "seed": SEED,
            "learning_rate": 0.01,
            "measure_seconds": 0.02,
            "checkpoint_seconds": 0.0,
            "rebalance": False,
        }
        return common | dict(self.settings) | others


def script(common: int = 1, settings: Mapping[str, Any] | None = None, **expected: Any) -> Callable[[T], T]:
    """Put a job's class into :data:`SCRIPTS`; the arguments are the attributes of :class:`Script`."""

    def enter(job: T) -> T:
        SCRIPTS[job.__name__] = Script(job=job, common=common, settings=settings or {}, **expected)
        return job

    return enter


# --- Data that needs no download -------------------------------------------------------------------------------------


class Samples(Dataset[Any]):
    """A dataset of these samples."""

    def __init__(self, *columns: Sequence[Any]) -> None:
        self.samples = list(zip(*columns, strict=True)) if len(columns) > 1 else list(columns[0])

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def generator(seed: int = 1) -> torch.Generator:
    """Random numbers that are the same in each process."""
    return torch.Generator().manual_seed(seed)


def images(count: int = SAMPLES, channels: int = 3, size: int = 8) -> tuple[Tensor, Tensor]:
    """Images ``(count, channels, size, size)``, and the brightest of four quarters as their class ``(count,)``."""
    x = torch.randn(count, channels, size, size, generator=generator())
    return x, functional.avg_pool2d(x.mean(1), size // 2).flatten(1).argmax(1)


def table(count: int = SAMPLES, features: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Rows ``(count, features)``, and a class of each ``(count,)`` that can be learned."""
    x = torch.randn(count, features, generator=generator(2))
    return x, (x[:, :classes] + 0.3 * torch.randn(count, classes, generator=generator(3))).argmax(1)


def text(length: int = 9, vocabulary: int = 20, count: int = SAMPLES) -> Tensor:
    """Tokens ``(count, length)``, from 1."""
    return torch.randint(1, vocabulary, (count, length), generator=generator(4))


def sentences(vocabulary: int = 20, longest: int = 9, count: int = SAMPLES) -> list[Tensor]:
    """Token sequences of unequal lengths."""
    return [row[: 3 + number % (longest - 2)] for number, row in enumerate(text(longest, vocabulary, count))]
