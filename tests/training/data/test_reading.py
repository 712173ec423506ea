"""Batches of coming slices are read ahead by the processes of torch's ``DataLoader``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from remote_agent.training.data import datasets
from remote_agent.training.data.reading import Part, Reader
from remote_agent.training.errors import JobError

SIZE, SEED = 8, 7
READ_S = 0.002
WITHIN_S = 60.0


class Slow(Dataset[Any]):
    """The index of a sample, something random, and the process that reads it."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        time.sleep(READ_S)
        return index, torch.rand(()), os.getpid()


class Marking(Slow):
    """Writes a file for each sample that is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        (self.folder / str(index)).touch()
        return super().__getitem__(index)


class Broken(Slow):
    def __getitem__(self, index: int) -> Any:
        if index == SIZE + 2:
            raise ValueError("no such file")
        return super().__getitem__(index)


def reader(dataset: Dataset[Any], processes: int) -> Reader:
    loader = DataLoader(dataset, batch_size=SIZE, num_workers=processes)
    return Reader(datasets.as_dataset(loader), SEED)


def part(number: int, size: int = SIZE) -> Part:
    return np.arange(number * SIZE, number * SIZE + size), number * SIZE


PARTS = [part(number) for number in range(12)]


@pytest.mark.parametrize("processes", [0, 2])
def test_planned_batches_are_those_of_a_plain_reader_and_come_from_other_processes(processes: int) -> None:
    ahead, plain = reader(Slow(), processes), reader(Slow(), 0)
    for number in range(8):
        ahead.plan(PARTS[number : number + 4])
        found, expected = ahead.read(PARTS[number]), plain.read(PARTS[number])
        assert found[0].tolist() == list(PARTS[number][0])
        assert torch.equal(found[1], expected[1]), "seeded by sample"
        assert (os.getpid() in found[2].tolist()) is (processes == 0)


def test_a_batch_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    ahead = reader(Marking(tmp_path), 2)
    ahead.plan(PARTS)
    ahead.read(PARTS[0])
    last, end = tmp_path / str(PARTS[1][0][-1]), time.monotonic() + WITHIN_S
    while not last.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert ahead.read(PARTS[1])[0].tolist() == list(PARTS[1][0])


def test_what_was_not_foreseen_is_read_at_once_and_what_is_skipped_does_not_come_later() -> None:
    ahead = reader(Slow(), 2)
    ahead.plan(PARTS[:6])
    assert ahead.read(PARTS[0])[0][0] == 0
    unplanned = ahead.read(part(50, size=3))
    assert (unplanned[0].tolist(), unplanned[2][0]) == ([400, 401, 402], os.getpid())
    assert ahead.read(part(1, size=3))[0].tolist() == [8, 9, 10], "the same place, cut in another way"
    ahead.plan(PARTS[4:])
    assert ahead.read(PARTS[4])[0][0] == 4 * SIZE
    assert ahead.read(PARTS[7])[0][0] == 7 * SIZE


def test_an_error_of_the_dataset_is_the_users_and_later_batches_are_read() -> None:
    ahead = reader(Broken(), 2)
    ahead.plan(PARTS[:4])
    ahead.read(PARTS[0])
    with pytest.raises(JobError, match=rf"__getitem__\({SIZE + 2}\)"):
        ahead.read(PARTS[1])
    assert ahead.read(PARTS[2])[0][0] == 2 * SIZE
