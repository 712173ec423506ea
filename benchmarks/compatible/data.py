"""Data and loaders: samplers, orders, iterables, and samples of all kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from benchmarks.compatible.case import BATCH, SAMPLES, Case, Samples, case, points

AREA = "data"


def dataset() -> TensorDataset:
    """Points as a TensorDataset."""
    return TensorDataset(*points())


@case("tuple-of-tensors", AREA)
class Tensors(Case):
    """A tuple of tensors."""


@case("tuple-of-arrays", AREA)
class Arrays(Case):
    """A tuple of numpy arrays."""

    def create_data(self) -> Any:
        return tuple(part.numpy() for part in points())


@case("dict-of-arrays", AREA)
class DictOfArrays(Case):
    """A dict of arrays."""

    def create_data(self) -> Any:
        x, y = points()
        return {"x": x.numpy(), "y": y.numpy()}

    def batch(self, data: Any, indices: NDArray[np.int64]) -> Any:
        return {name: torch.from_numpy(array[indices]) for name, array in data.items()}


@case("list-of-samples", AREA)
class Listed(Case):
    """A list of (x, y) samples."""

    def create_data(self) -> Any:
        return list(zip(*points(), strict=True))


@case("list-of-arrays", AREA)
class ListedArrays(Case):
    """A list of samples of numpy arrays and Python's integers."""

    def create_data(self) -> Any:
        return [(x.numpy(), int(y)) for x, y in zip(*points(), strict=True)]


@case("loader-shuffled", AREA)
class Shuffled(Case):
    """DataLoader(shuffle=True)."""

    def create_data(self) -> Any:
        return DataLoader(dataset(), batch_size=BATCH, shuffle=True)


def expect_in_turn(steps: Sequence[NDArray[np.int64]]) -> str:
    """Nothing is said where the samples are used in their own order, epoch after epoch."""
    used = np.concatenate(steps)
    return "" if np.array_equal(used, np.arange(len(used)) % SAMPLES) else f"the order is {used[:8]}"


@case("loader-in-order", AREA)
class InOrder(Case):
    """DataLoader(shuffle=False): the order of the data set."""

    killed = quick = True

    def create_data(self) -> Any:
        return DataLoader(dataset(), batch_size=BATCH, shuffle=False)

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        return expect_in_turn(steps)


CHOSEN = list(range(0, SAMPLES, 2))


@case("subset-sampler", AREA)
class OfSubset(Case):
    """SubsetRandomSampler: a train/validation split."""

    quick = True

    def create_data(self) -> Any:
        return DataLoader(dataset(), batch_size=BATCH, sampler=SubsetRandomSampler(CHOSEN))

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        used = np.concatenate(steps)
        if set(used.tolist()) - set(CHOSEN):
            return "samples that the sampler does not have were used"
        return "" if set(used[: len(CHOSEN)].tolist()) == set(CHOSEN) else "not every sample in the first epoch"


@case("subset", AREA)
class PartOfData(Case):
    """A Subset of a data set."""

    def create_data(self) -> Any:
        return Subset(dataset(), CHOSEN)

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        return "" if set(np.concatenate(steps).tolist()) <= set(range(len(CHOSEN))) else "beyond the subset"


@case("weighted-sampler", AREA)
class OfWeights(Case):
    """WeightedRandomSampler with replacement: classes without weight never come."""

    killed = True

    def create_data(self) -> Any:
        weights = (points()[1] == 1).double()
        return DataLoader(dataset(), batch_size=BATCH, sampler=WeightedRandomSampler(weights.tolist(), SAMPLES))

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        return "" if (points()[1][np.concatenate(steps)] == 1).all() else "samples without weight were used"


@case("random-sampler", AREA)
class OfReplacement(Case):
    """RandomSampler(replacement=True, num_samples=...)."""

    def create_data(self) -> Any:
        return DataLoader(
            dataset(), batch_size=BATCH, sampler=RandomSampler(dataset(), replacement=True, num_samples=90)
        )

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        used = np.concatenate(steps)
        return "" if len(set(used[:SAMPLES].tolist())) < SAMPLES else "drawn without replacement"


class Backwards(Sampler[int]):
    """The samples from the last to the first: a sampler of a user's own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES - 1, -1, -1))

    def __len__(self) -> int:
        return SAMPLES


@case("own-sampler", AREA)
class OwnSampler(Case):
    """A sampler class of the user's own."""

    def create_data(self) -> Any:
        return DataLoader(dataset(), batch_size=BATCH, sampler=Backwards())

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        return expect_in_turn([SAMPLES - 1 - indices for indices in steps])


@case("batch-sampler", AREA)
class OfBatches(Case):
    """DataLoader(batch_sampler=...), whose batches are the steps."""

    settings: ClassVar = {"batch_size": None}

    def create_data(self) -> Any:
        return DataLoader(dataset(), batch_sampler=BatchSampler(SequentialSampler(dataset()), BATCH, drop_last=True))

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        used = np.concatenate(steps)
        whole = SAMPLES // BATCH * BATCH
        return "" if np.array_equal(used, np.arange(len(used)) % whole) else f"the order is {used[:8]}"


class ByLength(Sampler[list[int]]):
    """Batches of samples that go together, of unequal sizes: a batch sampler of a user's own."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from (list(range(start, min(start + 5 + start % 3, SAMPLES))) for start in range(0, SAMPLES, 7))

    def __len__(self) -> int:
        return 6


@case("batch-sampler-unequal", AREA)
class OfUnequalBatches(Case):
    """A batch sampler whose batches are of unequal sizes."""

    settings: ClassVar = {"batch_size": None}

    def create_data(self) -> Any:
        return DataLoader(dataset(), batch_sampler=ByLength())

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        expected = list(ByLength())
        return "" if [indices.tolist() for indices in steps] == expected[: len(steps)] else f"the order is {steps}"


@case("drop-last", AREA)
class DropLast(InOrder):
    """DataLoader(drop_last=True) in order: the last, smaller batch of an epoch is left out."""

    killed = quick = False

    def create_data(self) -> Any:
        return DataLoader(dataset(), batch_size=BATCH, shuffle=False, drop_last=True)

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        used = np.concatenate(steps)
        whole = SAMPLES // BATCH * BATCH
        return "" if np.array_equal(used, np.arange(len(used)) % whole) else f"the order is {used[:8]}"


def to_matrix(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of unequal lengths as their sums and counts."""
    x = torch.stack([torch.stack([row.sum(), row.mean(), row.max(), row.min(), row[0], row[-1]]) for row, _ in samples])
    return x, torch.tensor([label for _, label in samples])


@case("ragged-collated", AREA)
class RaggedCollated(Case):
    """Samples of unequal lengths, and a collate_fn."""

    def create_data(self) -> Any:
        generator = torch.Generator().manual_seed(8)
        ragged = [(torch.randn(2 + i % 5, generator=generator), i % 3) for i in range(SAMPLES)]
        return DataLoader(Samples(ragged), batch_size=BATCH, shuffle=True, collate_fn=to_matrix)


@case("ragged", AREA)
class Ragged(Case):
    """Samples of unequal lengths without a collate_fn."""

    expect, says = "refused", "collate_fn"

    def create_data(self) -> Any:
        return Samples([(torch.ones(2 + i % 5), i % 3) for i in range(SAMPLES)])


class Streaming(Case):
    """Data that can only be read from its beginning."""

    stream = True
    steps = 3

    def batch(self, data: Any, indices: NDArray[np.int64]) -> Any:
        return default_collate([list(zip(*points(), strict=True))[int(index)] for index in indices])


def generated() -> Iterator[Any]:
    """Samples one after the other."""
    yield from zip(*points(), strict=True)


@case("generator", AREA)
class Generated(Streaming):
    """A generator of samples."""

    def create_data(self) -> Any:
        return generated()


class Endless(IterableDataset[Any]):
    """Points again and again."""

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*points(), strict=True)


@case("iterable-dataset", AREA)
class Iterable(Streaming):
    """An IterableDataset."""

    killed = True

    def create_data(self) -> Any:
        return Endless()


@case("iterable-loader", AREA)
class IterableLoader(Streaming):
    """A DataLoader over an IterableDataset, which gives batches."""

    def create_data(self) -> Any:
        return DataLoader(Endless(), batch_size=5)


@case("augmented", AREA)
class Augmented(Case):
    """Random augmentation in __getitem__, by numpy and torch, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def create_data(self) -> Any:
        return Noisy(list(zip(*points(), strict=True)))


class Noisy(Samples):
    """Noise on each sample."""

    def __getitem__(self, index: int) -> Any:
        x, y = self.samples[index]
        return x * (1 + 0.1 * float(np.random.randn())) + 0.1 * torch.randn(6), y


@case("one-sample-twice", AREA)
class Small(Case):
    """A data set that is smaller than a batch and a half: epochs end within steps."""

    def create_data(self) -> Any:
        return points(samples=17)

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        used = np.concatenate(steps)
        return "" if set(used[:17].tolist()) == set(range(17)) else "not every sample in the first epoch"
