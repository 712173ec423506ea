"""A DataLoader's order and batches: as a plain loop has them, the same after a resume, and mistakes are named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import sources
from remote_agent.training.data import datasets, extent, samplers
from remote_agent.training.data.extent import Begin
from remote_agent.training.data.order import EpochOrder, SampleOrder
from remote_agent.training.data.order_record import FILE, OrderRecord
from remote_agent.training.errors import JobError

SIZE = 23
SAMPLES = torch.arange(SIZE)
WEIGHTS = [float(index % 5) for index in range(SIZE)]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class Halves(Sampler[int]):
    """The even samples in one epoch, and the odd ones in the next."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch % 2, SIZE, 2))


class Growing:
    """Batches of one sample, then of two, and so on; another epoch begins where the last one ended."""

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.begun += 1
        for size in range(1, 4 + self.begun % 2):
            yield [(self.begun * 7 + place * size) % SIZE for place in range(size)]


class Endless:
    def __iter__(self) -> Iterator[int]:
        while True:
            yield from np.random.permutation(SIZE)


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(SAMPLES, **({"batch_size": 4} | options))  # type: ignore[arg-type]


def opened(given: DataLoader[Any], folder: Path, begin: Begin | None = None, **settings: Any) -> EpochOrder:
    _, order = sources.Loaded(given).open(TrainingConfig(**settings), begin or Begin(folder=folder))
    assert isinstance(order, EpochOrder)
    return order


def batches(order: SampleOrder, steps: int) -> list[list[int]]:
    return [order.step(order.done + number).tolist() for number in range(1, steps + 1)]


def plain(given: DataLoader[Any], epochs: int) -> list[list[int]]:
    """What a plain loop over the loader sees."""
    seen = []
    for epoch in range(epochs):
        if hasattr(given.sampler, "set_epoch"):
            given.sampler.set_epoch(epoch)
        seen += [batch.tolist() for batch in given]
    return seen


@pytest.mark.parametrize(
    "options",
    [
        dict,
        lambda: {"drop_last": True},
        lambda: {"batch_size": SIZE + 1},
        lambda: {"sampler": SubsetRandomSampler(range(7, 20), generator())},
        lambda: {"sampler": WeightedRandomSampler(WEIGHTS, 31, generator=generator())},
        lambda: {"sampler": WeightedRandomSampler(WEIGHTS, 10, replacement=False, generator=generator())},
        lambda: {"sampler": RandomSampler(SAMPLES, replacement=True, num_samples=9, generator=generator())},
        lambda: {"sampler": RandomSampler(SAMPLES, num_samples=50, generator=generator()), "drop_last": True},
        lambda: {"shuffle": True, "generator": generator()},
        lambda: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6]},
        lambda: {"sampler": SequentialSampler(range(9))},
        lambda: {"sampler": Halves(), "drop_last": True},
        lambda: {"batch_size": 1, "batch_sampler": BatchSampler(SequentialSampler(SAMPLES), 5, drop_last=False)},
        lambda: {"batch_size": 1, "batch_sampler": Growing()},
        lambda: {"batch_size": 1, "batch_sampler": [[1, 2, 3], [4], [5, 6]]},
    ],
)
def test_steps_are_the_batches_of_a_plain_loop_epoch_after_epoch(
    options: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    expected = plain(loader(**options()), 3)
    order = opened(loader(**options()), tmp_path, epochs=3)
    assert batches(order, len(expected)) == expected
    assert order.limit == sum(map(len, expected))
    assert order.steps_left() == len(expected)
    assert order.span(len(expected) + 1) == (order.limit, order.limit)
    # Without the number of epochs, and from the middle of an epoch on, they are the same.
    assert batches(opened(loader(**options()), tmp_path, num_iterations=100), len(expected)) == expected
    used = sum(map(len, expected[:2]))
    begin = Begin(folder=tmp_path, done=2, start=used, batch=4, earlier=tmp_path)
    if loader(**options()).batch_size in (4, None):
        assert batches(opened(loader(**options()), tmp_path, begin, epochs=3), len(expected) - 2) == expected[2:]


@pytest.mark.parametrize(
    "options",
    [
        lambda: {"shuffle": True},
        lambda: {"sampler": SubsetRandomSampler(range(7, 20))},
        lambda: {"sampler": WeightedRandomSampler(WEIGHTS, 31)},
        lambda: {"sampler": RandomSampler(SAMPLES, replacement=True)},
        lambda: {"sampler": RandomSampler(range(9))},
    ],
)
def test_an_order_without_a_generator_of_its_own_follows_the_runs_seed(
    options: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    random.seed(1)
    state = torch.get_rng_state(), random.getstate()
    first = opened(loader(**options()), tmp_path, seed=3)
    _, steps = first.first_epoch
    again, other = opened(loader(**options()), tmp_path, seed=3), opened(loader(**options()), tmp_path, seed=4)
    assert batches(first, 2 * steps) == batches(again, 2 * steps) != batches(other, 2 * steps)
    assert batches(first, steps) != batches(first, 2 * steps)[steps:]
    assert first.take(0, 100).max() < len(getattr(loader(**options()).sampler, "data_source", SAMPLES))
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]


def test_a_shuffled_loader_has_the_runs_own_order_and_ends_each_epoch(tmp_path: Path) -> None:
    order = opened(loader(shuffle=True), tmp_path, seed=3, epochs=2)
    assert [len(batch) for batch in batches(order, 12)] == [4, 4, 4, 4, 4, 3] * 2
    assert order.take(0, 2 * SIZE).tolist() == SampleOrder(3, SIZE, 4).take(0, 2 * SIZE).tolist()
    assert [order.epoch_end(position) for position in (0, SIZE - 1, SIZE)] == [SIZE, SIZE, 2 * SIZE]
    assert not (tmp_path / FILE).exists()


def test_a_batch_size_that_is_set_cuts_the_loaders_order_anew_and_the_plan_says_so(tmp_path: Path) -> None:
    source = sources.Loaded(loader(drop_last=True))
    config, order = source.open(TrainingConfig(batch_size=10), Begin(folder=tmp_path))
    assert config.batch_size == 10
    assert batches(order, 3) == [[*range(10)], [*range(10, 20)], [*range(10)]]
    assert "batch_size=10 is used in the place of the data loader's 4" in source.notes


def test_a_batch_size_that_is_the_batch_samplers_own_is_no_contradiction(tmp_path: Path) -> None:
    given = BatchSampler(SequentialSampler(SAMPLES), 5, drop_last=False)
    assert batches(opened(loader(batch_size=1, batch_sampler=given), tmp_path, batch_size=5), 1) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(("sizes", "measured"), [((1, 1, 3, 5), [2, 3, 4]), ((4, 1), [0, 1, 2, 3]), ((1,), [0])])
def test_devices_are_measured_with_a_batch_of_several_samples_where_the_first_one_has_one(
    sizes: tuple[int, ...], measured: list[int], tmp_path: Path
) -> None:
    ends = np.cumsum(sizes)
    given = [list(range(end - size, end)) for end, size in zip(ends.tolist(), sizes, strict=True)]
    source = sources.source_of(loader(batch_size=1, batch_sampler=given))
    source.open(TrainingConfig(epochs=1), Begin(folder=tmp_path))
    assert datasets.to_measure(source.for_workers()).tolist() == measured


def test_strategies_without_common_steps_take_runs_of_the_same_order_across_its_epochs(tmp_path: Path) -> None:
    order = opened(loader(drop_last=True), tmp_path, strategy="local_sgd", epochs=2)
    assert order.limit == 40
    assert order.take(15, 25).tolist() == [15, 16, 17, 18, 19, 0, 1, 2, 3, 4]


def test_a_resumed_run_uses_the_epoch_that_was_drawn_even_if_the_sampler_would_give_another(tmp_path: Path) -> None:
    class Unseeded:
        def __iter__(self) -> Iterator[int]:
            return iter(np.random.default_rng().permutation(SIZE).tolist())

    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    before = opened(loader(sampler=Unseeded()), first, num_iterations=100)
    expected = batches(before, 9)
    with (first / FILE).open("ab") as file:
        file.write(b'{"epoch":2,"samples":[1,2')  # its coordinator was killed
    begin = Begin(folder=second, done=7, start=SIZE + 4, batch=4, earlier=first)
    assert batches(opened(loader(sampler=Unseeded()), second, begin), 2) == expected[7:]
    taken_over = Begin(folder=first, done=7, start=SIZE + 4, batch=4, earlier=first)
    assert batches(opened(loader(sampler=Unseeded()), first, taken_over), 2) == expected[7:]
    onward = opened(loader(sampler=Unseeded()), first, taken_over)
    third = onward.take(2 * SIZE, 3 * SIZE).tolist()
    assert sorted(third) == [*range(SIZE)]
    drawn = OrderRecord(first, first)
    assert len(drawn) == 3
    assert drawn.epoch(2).indices.tolist() == third
    drawn = OrderRecord(second, second)
    assert [drawn.epoch(0).indices.tolist(), drawn.epoch(1).indices.tolist()] == [
        before.take(0, SIZE).tolist(),
        before.take(SIZE, 2 * SIZE).tolist(),
    ]


def test_a_long_epoch_is_recorded_in_lines_that_can_be_sent(tmp_path: Path) -> None:
    data = torch.arange(200_000)
    order = opened(DataLoader(data, 1000, sampler=RandomSampler(data, replacement=True)), tmp_path)  # type: ignore[arg-type]
    assert max(map(len, (tmp_path / FILE).read_bytes().splitlines())) < 1 << 20
    assert order.take(0, 200_000).tolist() == OrderRecord(tmp_path, tmp_path).epoch(0).indices.tolist()


def test_of_an_endless_sampler_only_so_much_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "MAX", 1 << 17)
    order = opened(loader(sampler=Endless()), tmp_path, num_iterations=100)
    seen = order.take(0, 100_000)
    assert len(seen) == 100_000
    assert np.bincount(seen).tolist() == pytest.approx([100_000 / SIZE] * SIZE, abs=2)
    assert len({*order.step(16_400).tolist()}) >= 3  # a whole batch beyond what is drawn at once
    source = sources.Loaded(loader(sampler=Endless()))
    with pytest.raises(JobError, match="Endless has no end") as error:
        source.open(TrainingConfig(epochs=2), Begin(folder=tmp_path))
    assert "num_iterations" in error.value.hint


@pytest.mark.parametrize(
    ("options", "settings", "said"),
    [
        ({"sampler": DistributedSampler(SAMPLES, 2, 0)}, {}, "DistributedSampler"),  # type: ignore[arg-type]
        (
            {"batch_size": 1, "batch_sampler": BatchSampler(DistributedSampler(SAMPLES, 2, 0), 4, False)},  # type: ignore[arg-type]
            {},
            "DistributedSampler",
        ),
        ({"batch_size": None}, {}, "batch_size=None"),
        ({"sampler": [4, 23]}, {}, "gave index 23 in epoch 1, and the dataset has 23 samples"),
        ({"sampler": [4, -1]}, {}, "gave index -1"),
        ({"sampler": SequentialSampler([])}, {}, "SequentialSampler gave no sample in epoch 1"),
        ({"sampler": []}, {}, "sampler list gave no sample in epoch 1"),
        ({"sampler": [1, 2.0]}, {}, "gave 2.0, which is no index"),
        ({"sampler": [[1, 2]]}, {}, r"gave \[1, 2\], which is no index"),
        ({"sampler": iter([1, 2])}, {}, "list_iterator, which can be read once"),
        ({"sampler": [1, 2], "drop_last": True}, {}, "2 samples in epoch 1, fewer than one batch of 4"),
        ({"batch_size": 30, "drop_last": True}, {}, "fewer than one batch of 30"),
        ({"batch_size": 1, "batch_sampler": [[1], []]}, {}, "a batch without samples"),
        ({"batch_size": 1, "batch_sampler": [1, 2]}, {}, "gave 1, which is no batch"),
        (
            {"batch_size": 1, "batch_sampler": Growing()},
            {"batch_size": 4},
            "batch_size=4 is set, .* batch_sampler Growing",
        ),
        ({"batch_size": 1, "batch_sampler": Growing()}, {"strategy": "local_sgd"}, "strategy=local_sgd"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    options: dict[str, Any], settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match=said) as error:
        opened(loader(**options), tmp_path, **settings)
    assert error.value.hint


def test_an_error_of_the_users_sampler_names_it(tmp_path: Path) -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise OSError("no index file")

    with pytest.raises(JobError, match=r"the sampler Broken.*: OSError: no index file"):
        opened(loader(sampler=Broken()), tmp_path)


def test_a_run_that_goes_on_within_a_batch_begins_with_the_rest_of_it(tmp_path: Path) -> None:
    begin = Begin(folder=tmp_path, done=3, start=6, batch=2, earlier=tmp_path)
    order = opened(loader(), tmp_path, begin, epochs=1)
    assert batches(order, 2) == [[6, 7], [8, 9, 10, 11]]
    assert batches(order.going_on(5, 12), 1) == [[12, 13, 14, 15]]


def test_the_options_of_a_loader_hold_for_workers_without_a_word(tmp_path: Path) -> None:
    source = sources.Loaded(loader(num_workers=2, pin_memory=True, worker_init_fn=print, timeout=3))
    source.open(TrainingConfig(), Begin(folder=tmp_path))
    assert len(source.notes) == 1
    assert source.ahead == 4


class Epochs(list[int]):
    """A dataset that wants to know the epoch."""

    def set_epoch(self, epoch: int) -> None:
        raise AssertionError("it is not called")


def test_a_dataset_whose_set_epoch_is_not_called_is_told_of(tmp_path: Path) -> None:
    source = sources.Loaded(DataLoader(Epochs(range(20)), batch_size=4))
    source.open(TrainingConfig(), Begin(folder=tmp_path))
    assert [note for note in source.notes if "set_epoch is not called" in note]


def test_without_a_loader_a_batch_that_is_not_set_has_64_samples_or_all_that_there_are() -> None:
    assert extent.resolve(TrainingConfig(), 1000)[0].batch_size == 64
    assert extent.resolve(TrainingConfig(), 10)[0].batch_size == 10
    with pytest.raises(JobError, match="fewer than one batch of 64"):
        extent.resolve(TrainingConfig(batch_size=64), 10)
    assert extent.resolve(TrainingConfig(batch_size=64, epochs=1), 10)[0].batch_size == 10
