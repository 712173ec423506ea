"""A batch out of the user's data: random numbers by sample, and errors that name the function and the sample."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError


class Augmented(Dataset[Any]):
    """Each sample: its index, and a number of each of the three generators."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


class Failing(Augmented):
    def __getitem__(self, index: int) -> Any:
        if index == 17:
            raise ValueError("bad image")
        return super().__getitem__(index)


ORDER = np.array([5, 3, 8, 1, 9, 7])


@pytest.mark.parametrize("data", [Augmented(), Subset(Augmented(), range(100)), DataLoader(Augmented())])
def test_what_a_sample_draws_depends_on_its_position_alone_not_on_the_cut(data: Any) -> None:
    dataset = datasets.as_dataset(data)
    whole = datasets.fetch(dataset, ORDER, seed=3, begin=40)
    parts = [datasets.fetch(dataset, ORDER[place : place + 2], seed=3, begin=40 + place) for place in (4, 0, 2)]
    assert torch.equal(whole, torch.cat([parts[1], parts[2], parts[0]]))
    assert len(set(whole[:, 1:].flatten().tolist())) == 18  # each draws numbers of its own
    assert not torch.equal(whole, datasets.fetch(dataset, ORDER, seed=3, begin=46))  # the next epoch's are others
    assert not torch.equal(whole, datasets.fetch(dataset, ORDER, seed=4, begin=40))


def test_what_the_data_draws_leaves_the_generator_of_dropout_as_it_was() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    datasets.fetch(Augmented(), ORDER, seed=3)
    assert torch.equal(torch.rand(3), expected)


def test_an_error_of_the_users_data_names_the_function_and_the_sample() -> None:
    indices = np.array([3, 17, 40])
    with pytest.raises(JobError) as error:
        datasets.fetch(Failing(), indices, seed=0)
    assert error.value.cause.startswith("__getitem__(17)")
    assert error.value.cause.endswith(": ValueError: bad image")

    def collate(samples: list[Any]) -> Any:
        raise KeyError("mask")

    with pytest.raises(JobError) as error:
        datasets.fetch(datasets.as_dataset(DataLoader(Augmented(), collate_fn=collate)), indices, seed=0)
    assert error.value.cause.startswith("collate_fn of samples 3, 17, 40")
    assert error.value.cause.endswith(": KeyError: 'mask'")


class Caching(Augmented):
    """Keeps what it has drawn in arrays, which Ray's object store makes read-only."""

    def __init__(self) -> None:
        self.kept = {"samples": np.zeros((100, 4)), "known": np.zeros(100, bool)}
        for each in self.kept.values():
            each.flags.writeable = False

    def __getitem__(self, index: int) -> Any:
        if not self.kept["known"][index]:
            self.kept["samples"][index] = super().__getitem__(index)
            self.kept["known"][index] = True
        return self.kept["samples"][index].copy()


@pytest.mark.parametrize("around", [lambda data: data, lambda data: DataLoader(Subset(data, range(50)))])
def test_a_data_set_may_write_into_its_arrays_and_draws_as_if_they_had_been_its_own(around: Any) -> None:
    plain = datasets.fetch(datasets.as_dataset(Augmented()), ORDER, seed=3, begin=40)
    shared = datasets.as_dataset(around(Caching()))
    assert torch.equal(datasets.fetch(shared, ORDER, seed=3, begin=40), plain)
    assert torch.equal(datasets.fetch(shared, ORDER, seed=4, begin=0), plain)
