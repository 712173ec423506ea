"""A run's last step and sample: what is set, what the data allows, and what a checkpoint leaves to do. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from remote_agent.training.config import TrainingConfig
from remote_agent.training.data.extent import Begin, batch_of, in_rounds, of_loader, resolve
from remote_agent.training.errors import JobError


def points(size: int) -> TensorDataset:
    return TensorDataset(torch.zeros(size, 2))


def refusal(call: Any, *arguments: Any) -> JobError:
    with pytest.raises(JobError) as refused:
        call(*arguments)
    return refused.value


# --- Without a loader ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "size", "batch"),
    [
        ({}, 1000, 64),
        ({}, 10, 10),
        ({"batch_size": 10}, 10, 10),
        ({"batch_size": 11, "epochs": 1}, 10, 10),
    ],
)
def test_a_batch_is_one_that_the_data_can_fill(given: dict[str, Any], size: int, batch: int) -> None:
    assert batch_of(TrainingConfig(**given), size).batch_size == batch


@pytest.mark.parametrize(
    ("given", "size", "cause", "hint"),
    [
        ({"batch_size": 11}, 10, "has 10 samples, fewer than one batch of 11", "set batch_size to 10 or less"),
        ({}, 0, "has 0 samples, fewer than one batch of 64", "bring some data"),
        ({"batch_size": 4, "epochs": 2}, 0, "has 0 samples, fewer than one batch of 4", "bring some data"),
    ],
)
def test_data_that_fills_no_batch_is_refused(given: dict[str, Any], size: int, cause: str, hint: str) -> None:
    error = refusal(batch_of, TrainingConfig(**given), size)
    assert cause in error.cause
    assert hint in error.hint


@pytest.mark.parametrize(
    ("done", "start", "steps"),
    [(0, 0, 25), (5, 20, 25), (7, 40, 22), (24, 98, 25)],
)
def test_epochs_decide_the_number_of_steps_after_what_is_done(done: int, start: int, steps: int) -> None:
    config, order = resolve(TrainingConfig(batch_size=4, epochs=10), 10, done, start)
    assert config.num_iterations == steps
    assert order.limit == 100


@pytest.mark.parametrize(("local_steps", "rounds"), [(1, 25), (5, 5), (8, 4)])
def test_a_round_of_local_steps_counts_as_so_many_steps(local_steps: int, rounds: int) -> None:
    config, order = resolve(TrainingConfig(batch_size=4, epochs=10, strategy="local_sgd", local_steps=local_steps), 10)
    assert config.num_iterations == rounds
    assert in_rounds(config, order, 30).num_iterations == 4  # as the devices' speeds have it


def test_a_checkpoint_that_leaves_nothing_to_do_is_refused() -> None:
    by_steps = TrainingConfig(batch_size=4, num_iterations=9)
    error = refusal(resolve, by_steps, 10, 9, 36)
    assert (error.cause, error.hint) == ("the checkpoint of step 9 holds all 9 steps", "set num_iterations to more")
    assert resolve(by_steps, 10, 8, 32)[0].num_iterations == 9

    by_epochs = TrainingConfig(batch_size=4, epochs=2, num_iterations=1)
    error = refusal(resolve, by_epochs, 10, 5, 20)
    assert (error.cause, error.hint) == ("the checkpoint of step 5 holds all 2 epochs", "set epochs to more")
    assert resolve(by_epochs, 10, 5, 19)[0].num_iterations == 6


# --- Of a loader -----------------------------------------------------------------------------------------------------


def extent(loader: DataLoader[Any], folder: Path, begin: dict[str, Any] | None = None, **given: Any) -> TrainingConfig:
    size = len(loader.dataset)  # type: ignore[arg-type]
    return of_loader(TrainingConfig(**given), loader, size, Begin(folder=folder, **(begin or {})))[0]


def test_a_loaders_batch_counts_where_none_is_set(tmp_path: Path) -> None:
    loader = DataLoader(points(10), batch_size=4)
    assert extent(loader, tmp_path, epochs=3).batch_size == 4
    assert extent(loader, tmp_path, epochs=3, batch_size=5).batch_size == 5


def test_an_epoch_ends_with_its_last_batch_where_batches_are_the_steps(tmp_path: Path) -> None:
    loader = DataLoader(points(10), batch_size=4)
    assert extent(loader, tmp_path, epochs=3).num_iterations == 9  # of 4, 4 and 2 samples
    assert extent(loader, tmp_path, num_iterations=7).num_iterations == 7
    assert extent(loader, tmp_path, {"done": 4, "start": 14, "batch": 4}, epochs=3).num_iterations == 9


def test_the_largest_of_a_batch_samplers_batches_is_the_batch(tmp_path: Path) -> None:
    class Unlike(BatchSampler):
        def __iter__(self) -> Any:
            yield from ([0], [1, 2, 3], [4, 5])

    loader = DataLoader(points(6), batch_sampler=Unlike(SequentialSampler(range(6)), 3, drop_last=False))
    config = extent(loader, tmp_path, epochs=2)
    assert (config.batch_size, config.num_iterations) == (3, 6)


def test_another_batch_than_the_checkpoints_is_refused_where_the_last_one_is_dropped(tmp_path: Path) -> None:
    loader = DataLoader(points(10), batch_size=4, drop_last=True)
    error = refusal(lambda: extent(loader, tmp_path, {"done": 1, "start": 5, "batch": 5}, epochs=3))
    assert "steps had 5 samples and these would have 4" in error.cause
    assert "set batch_size to 5" in error.hint
    assert extent(loader, tmp_path, {"done": 1, "start": 4, "batch": 4}, epochs=3).num_iterations == 6


def test_a_batch_sampler_is_refused_where_its_batches_can_not_be_the_steps(tmp_path: Path) -> None:
    loader = DataLoader(points(6), batch_sampler=BatchSampler(SequentialSampler(range(6)), 3, drop_last=False))
    assert "has no steps that could be" in refusal(lambda: extent(loader, tmp_path, strategy="local_sgd")).cause
    assert "batch_size=2 is set" in refusal(lambda: extent(loader, tmp_path, batch_size=2)).cause
    assert extent(loader, tmp_path, batch_size=3, epochs=1).batch_size == 3
