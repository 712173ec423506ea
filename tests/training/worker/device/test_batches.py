"""What the data gives: the same sample each time, and a row for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.shared.messages import Slice
from remote_agent.training.worker.device import batches
from remote_agent.training.worker.device.compute import SliceComputer

SAMPLES = 24


class Points(Dataset[Any]):
    """Samples by ``change``, which is given the data set."""

    def __init__(self, change: Callable[[Points], float] = lambda _: 1.0, broken: int = -1) -> None:
        self.change, self.broken = change, broken
        self.taken, self.cache, self.rng = 0, dict[int, Any](), np.random.default_rng(0)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        self.taken += 1
        return None if index == self.broken else torch.full((4,), float(index)) * self.change(self)


def computer(data: Any, loss: Any = None) -> SliceComputer:
    def squares(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.mse_loss(model(batch), batch)

    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    return SliceComputer(model, loss or squares, datasets.as_dataset(data), torch.device("cpu"), seed=0)


def found(data: Any) -> str:
    return batches.unlike(computer(data), np.arange(12))[0]


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda data: data,
        lambda data: DataLoader(data, batch_size=4),
        lambda data: DataLoader(Subset(data, range(20)), batch_size=4),
        lambda data: ConcatDataset([data, data]),
    ],
)
def test_samples_that_depend_on_how_many_were_taken_are_told_with_the_count(wrapped: Any) -> None:
    assert "taken of the data set changes" in found(wrapped(Points(lambda data: 1 + data.taken / 100)))


def kept(samples: list[Any]) -> Any:
    """Leaves out what is broken."""
    return torch.stack([sample for sample in samples if sample is not None])


def slice_of(count: int, begin: int = 0) -> Slice:
    return Slice(index=0, indices=np.arange(begin, begin + count), total=2 * count, begin=begin)


def test_a_batch_that_lost_a_sample_is_told_where_the_loss_is_a_mean_over_samples() -> None:
    own = computer(DataLoader(Points(broken=17), batch_size=4, collate_fn=kept))
    assert batches.unlike(own, np.arange(12)) == ("", "")
    own(1, slice_of(6))
    with pytest.raises(JobError, match="6 samples became a batch of 5 rows"):
        own(2, slice_of(6, begin=14))


def test_a_batch_that_lost_a_sample_is_right_where_the_loss_says_its_weight() -> None:
    def loss(model: nn.Module, batch: Any) -> Any:
        return functional.mse_loss(model(batch), batch, reduction="sum"), batch.numel()

    own = computer(DataLoader(Points(broken=17), batch_size=4, collate_fn=kept), loss)
    batches.unlike(own, np.arange(12))
    assert own(2, slice_of(6, begin=14)).weight > 0


def test_batches_without_a_row_for_each_sample_are_not_counted() -> None:
    rows = batches.Rows()
    rows.note((torch.zeros(12, 2), {"edges": torch.zeros(2, 7)}), 12)
    assert not rows.lost({"y": [torch.zeros(3)]}, 3)
    assert "batch of 4 rows" in rows.lost((torch.zeros(4, 2), torch.zeros(2, 3)), 5)
    rows.note((torch.zeros(9, 2),), 5)
    assert not rows.lost((torch.zeros(4, 2),), 5)


def test_a_list_of_images_has_a_row_for_each_whatever_is_in_them() -> None:
    """Four images with other numbers of boxes are not taken for a batch of which one got lost."""

    def detection(*boxes: int) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
        return [torch.zeros(1, 8, 8) for _ in boxes], [{"boxes": torch.zeros(count, 4)} for count in boxes]

    rows = batches.Rows()
    rows.note(detection(1, 2, 3, 4), 4)
    rows.note(detection(1, 2), 2)
    assert not rows.lost(detection(1, 1, 2, 2), 4)
    assert "batch of 3 rows" in rows.lost(detection(1, 4, 4), 4)
