"""Data sets with state, and of torch's kinds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from benchmarks.compatible.case import BATCH, SAMPLES, Case, Samples, case, points
from benchmarks.compatible.data import AREA, Streaming


class Scaled(TensorDataset):
    """A TensorDataset whose samples are changed when they are taken."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x * 3 - 1, y


@case("tensor-dataset-subclass", AREA)
class ScaledCase(Case):
    """A subclass of TensorDataset with a __getitem__ of its own."""

    def create_data(self) -> Any:
        return Scaled(*points())


@case("tensor-dataset-subclass-loader", AREA)
class ScaledLoader(Case):
    """The same in a DataLoader."""

    def create_data(self) -> Any:
        return DataLoader(Scaled(*points()), batch_size=BATCH, shuffle=True)


@case("subset-of-subclass", AREA)
class ScaledSubset(Case):
    """A Subset of that."""

    def create_data(self) -> Any:
        return DataLoader(Subset(Scaled(*points()), list(range(SAMPLES))), batch_size=BATCH, shuffle=True)


@case("concat-dataset", AREA)
class Concatenated(Case):
    """A ConcatDataset of two."""

    def create_data(self) -> Any:
        x, y = points()
        return ConcatDataset([TensorDataset(x[:20], y[:20]), Scaled(x[20:], y[20:])])


@case("stack-dataset", AREA)
class Stacked(Case):
    """A StackDataset."""

    def create_data(self) -> Any:
        x, y = points()
        return StackDataset(list(x), list(y))


class TensorLike(Dataset[Any]):
    """Has a method called batch, which is about something else."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = points()
        return x[index], y[index]

    def batch(self, size: Any) -> Any:
        """How many batches there are."""
        return SAMPLES // size


@case("method-called-batch", AREA)
class Named(Case):
    """A dataset with a method called batch that means something else."""

    expect, says = "refused", "batch"

    def create_data(self) -> Any:
        return TensorLike()


class Counting(Samples):
    """Its samples depend on how many were taken (a curriculum)."""

    def __init__(self, samples: Sequence[Any]) -> None:
        super().__init__(samples)
        self.taken = 0

    def __getitem__(self, index: int) -> Any:
        self.taken += 1
        x, y = self.samples[index]
        return x * min(1.0, self.taken / 60), y


def listed() -> list[Any]:
    """Points as samples."""
    return list(zip(*points(), strict=True))


@case("counting-dataset", AREA)
class Curriculum(Case):
    """A dataset whose samples depend on how many were taken."""

    expect, says = "refused", "taken"

    def create_data(self) -> Any:
        return Counting(listed())


@case("counting-dataset-loader", AREA)
class CurriculumLoader(Case):
    """The same in a DataLoader."""

    expect, says = "refused", "taken"

    def create_data(self) -> Any:
        return DataLoader(Counting(listed()), batch_size=BATCH, shuffle=True)


class OwnGenerator(Samples):
    """Augments by a generator of its own."""

    def __init__(self, samples: Sequence[Any]) -> None:
        super().__init__(samples)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        x, y = self.samples[index]
        return x + torch.from_numpy(self.rng.normal(size=6)).float() * 0.1, y


@case("dataset-own-generator", AREA)
class OwnGeneratorCase(Case):
    """A dataset that augments by a generator of its own, with deterministic=True."""

    expect, says = "refused", "deterministic"
    settings: ClassVar = {"deterministic": True}

    def create_data(self) -> Any:
        return OwnGenerator(listed())


class Cached(Samples):
    """Keeps what it has prepared."""

    def __init__(self, samples: Sequence[Any]) -> None:
        super().__init__(samples)
        self.cache: dict[int, Any] = {}
        self.hits = 0

    def __getitem__(self, index: int) -> Any:
        self.hits += 1
        if index not in self.cache:
            self.cache[index] = self.samples[index]
        return self.cache[index]


@case("cached-dataset", AREA)
class CachedCase(Case):
    """A dataset that keeps what it has prepared, and counts for its own log: samples are the same."""

    def create_data(self) -> Any:
        return Cached(listed())


class InFile(Dataset[Any]):
    """Reads from a file, which it makes and opens when it is first used."""

    file: Any = None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115
            self.file.write(points()[0].numpy().tobytes())
        self.file.seek(index * 6 * 4)
        x = torch.frombuffer(bytearray(self.file.read(6 * 4)), dtype=torch.float32)
        return x, points()[1][index]


@case("dataset-over-file", AREA)
class OverFile(Case):
    """A dataset that opens a file when it is first used."""

    def create_data(self) -> Any:
        return InFile()


class Mixed(Samples):
    """Mixes two samples of itself."""

    def __getitem__(self, index: int) -> Any:
        other = int(np.random.randint(len(self.samples)))
        (a, y), (b, _) = self.samples[index], self.samples[other]
        return 0.8 * a + 0.2 * b, y


@case("mixing-dataset", AREA)
class Mixing(Case):
    """A dataset that mixes two samples, by numpy's random numbers, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def create_data(self) -> Any:
        return Mixed(listed())


class Noisy:
    """A collate_fn object that draws noise from a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, samples: list[Any]) -> Any:
        x = torch.stack([x for x, _ in samples])
        return x + 0.1 * torch.randn(x.shape, generator=self.generator), torch.stack([y for _, y in samples])


@case("noisy-collate", AREA)
class NoisyCollate(Case):
    """A collate_fn that draws noise from a generator of its own, with deterministic=True."""

    expect, says = "refused", "deterministic"
    settings: ClassVar = {"deterministic": True}

    def create_data(self) -> Any:
        return DataLoader(Samples(listed()), batch_size=BATCH, shuffle=True, collate_fn=Noisy())


class WholeBatches(IterableDataset[Any]):
    """Gives batches."""

    def __iter__(self) -> Iterator[Any]:
        for begin in range(0, SAMPLES, BATCH // 2):
            yield tuple(part[begin : begin + BATCH // 2] for part in points())


@case("iterable-loader-of-batches", AREA)
class WholeBatchesCase(Streaming):
    """A DataLoader with batch_size=None over an IterableDataset that gives batches."""

    def create_data(self) -> Any:
        return DataLoader(WholeBatches(), batch_size=None)


@case("several-loaders", AREA)
class SeveralLoaders(Case):
    """A list of DataLoaders."""

    expect, says = "refused", "ConcatDataset"

    def create_data(self) -> Any:
        return [DataLoader(TensorDataset(*points()), batch_size=BATCH) for _ in range(2)]


class Keyed(IterableDataset[Any]):
    """Samples with their keys, as of a web data set."""

    def __iter__(self) -> Iterator[Any]:
        for number, (x, y) in enumerate(zip(*points(), strict=True)):
            yield {"__key__": f"{number:06}", "x": x, "y": y}


@case("keys-in-a-stream", AREA)
class KeysInStream(Case):
    """A web data set: a DataLoader over a stream of samples with keys, which are texts."""

    stream: ClassVar[bool] = True
    steps: ClassVar[int] = 3

    def create_data(self) -> Any:
        return DataLoader(Keyed(), batch_size=BATCH)

    def batch(self, data: Any, indices: Any) -> Any:
        return default_collate([list(Keyed())[int(index)] for index in indices])

    def loss(self, model: Any, batch: Any) -> Any:
        return functional.cross_entropy(model(batch["x"]), batch["y"]) * len(batch["__key__"]) / len(batch["x"])


def lists(samples: Sequence[Any]) -> tuple[Any, ...]:
    """Images, and targets."""
    return tuple(zip(*samples, strict=True))


class Detected(Dataset[Any]):
    """Images, each with as many boxes as comes."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return points()[0][index], {"boxes": torch.full((1 + index % 4, 3), 0.1 * index), "image": index}


@case("detection-dicts", AREA)
class Detection(Case):
    """Detection as torchvision has it: lists of images and of dicts of boxes; a mean of images' means."""

    def create_data(self) -> Any:
        return DataLoader(Detected(), batch_size=BATCH, shuffle=True, collate_fn=lists)

    def loss(self, model: Any, batch: Any) -> Any:
        images, targets = batch
        found = [
            (out - each["boxes"]).abs().mean() for out, each in zip(model(torch.stack(images)), targets, strict=True)
        ]
        return torch.stack(found).mean()
