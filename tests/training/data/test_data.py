"""Whatever is given as data: it is understood by a rule, each sample is used once, and mistakes are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from remote_agent.training.data import blocks, datasets, record
from remote_agent.training.data.blocks import Block
from remote_agent.training.errors import JobError
from tests.training.scripts import run_script


class Samples(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(3), 1)])


class Loader:
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(4, 3), torch.zeros(4))])


class LoaderOfSamples(Loader):
    batched = False


class Doubled(DataLoader[Any]):
    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


class Indexable(Dataset[Any]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)), index % 2

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("what can be indexed is not iterated over")


def generate() -> Iterator[Any]:
    yield torch.zeros(3), 1


@pytest.mark.parametrize(
    ("given_data", "batched"),
    [
        (Samples(), False),
        (Loader(), True),
        (LoaderOfSamples(), False),
        (generate, False),
        (generate(), False),
        (DataLoader(Samples(), batch_size=2), True),
        (Doubled(torch.arange(4), batch_size=2), True),  # type: ignore[arg-type]
        (DataLoader(Samples(), batch_size=None), True),
    ],
)
def test_an_iterable_yields_batches_if_it_is_a_loader_and_samples_otherwise(given_data: object, batched: bool) -> None:
    stream = datasets.as_stream(given_data)
    assert stream is not None
    assert stream.batched is batched


@pytest.mark.parametrize(
    "given_data",
    [Indexable(), DataLoader(Indexable(), batch_size=3), [(1, 2)], (torch.zeros(7, 3), torch.zeros(7)), torch.zeros(7)],
)
def test_what_can_be_indexed_is_no_stream(given_data: object) -> None:
    assert datasets.as_stream(given_data) is None
    assert len(datasets.as_dataset(given_data)) in (1, 7)


def test_an_iterator_that_somebody_took_samples_of_is_used_up_and_one_that_is_fresh_is_not() -> None:
    begun = generate()
    assert not datasets.is_used_up(begun)
    next(begun)
    assert datasets.is_used_up(begun)
    assert datasets.is_used_up(iter([1]))
    assert not any(map(datasets.is_used_up, (generate, Loader(), Indexable(), [(1, 2)])))


def test_a_loaders_own_collate_function_makes_the_batches() -> None:
    def collate(samples: list[Any]) -> Any:
        return torch.stack([x for x, _ in samples]) + 100, torch.tensor([y for _, y in samples])

    dataset = datasets.as_dataset(DataLoader(Indexable(), collate_fn=collate))
    x, y = datasets.fetch(dataset, np.array([5, 2]))
    assert x[:, 0].tolist() == [105, 102]
    assert y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("several", "named"),
    [
        ([DataLoader(Indexable()), DataLoader(Indexable())], r"list of several \(DataLoader, DataLoader\)"),
        ((Indexable(), Samples()), r"tuple of several \(Indexable, Samples\)"),
        ({"train": DataLoader(Indexable())}, r"dict of several \(DataLoader\)"),
    ],
)
def test_several_sets_of_data_are_no_samples(several: object, named: str) -> None:
    with pytest.raises(JobError, match=f"the data is a {named}") as error:
        datasets.as_dataset(several)
    assert "create_validation_data" in error.value.hint


@pytest.mark.parametrize("given_data", [7, None, object()])
def test_what_is_no_data_is_an_error_that_says_what_is(given_data: object) -> None:
    assert datasets.as_stream(given_data) is None
    with pytest.raises(JobError) as error:
        datasets.as_dataset(given_data)
    assert "iterable" in error.value.hint


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_samples_come_in_the_order_that_was_asked_for_whatever_the_blocks(sizes: list[int], draw: Any) -> None:
    ends = np.cumsum(sizes).tolist()
    parts = [
        Block(end - size, end, {"x": torch.arange(end - size, end)}) for size, end in zip(sizes, ends, strict=True)
    ]
    positions = draw.draw(st.lists(st.integers(0, ends[-1] - 1), min_size=1, max_size=12))
    assert blocks.gather(np.array(positions), parts)["x"].tolist() == positions


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ((torch.zeros(3, 2), torch.zeros(2)), "2 and 3 samples"),
        ((torch.zeros(3), torch.tensor(1)), "single number"),
        ((torch.zeros(0, 2), torch.zeros(0)), "no sample"),
        ("text", "a str"),
    ],
)
def test_what_is_no_batch_is_told_why(value: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        blocks.as_batch(value)


SCRIPT = """
import json
import ray
import torch
from torch import nn
from remote_agent.training import DistributedTrainer, TrainingConfig, TrainingError


class MyModelFactory:
    def create_model(self):
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=config.learning_rate)

    def loss(self, model, batch):
        x, y = batch
        with open(f"seen-{id(self)}-{__import__('os').getpid()}", "a") as file:
            file.writelines(f"{int(number)}\\n" for number in x[:, 0])
        return nn.functional.cross_entropy(model(x / 100), y)


def sample(number):
    return torch.tensor([float(number), 1.0, number % 7, 0.0]), number % 2


ray.init(log_to_driver=False, include_dashboard=False)  # one for all runs
DATA

results = {}
for name, given, workers, steps, folder, resume in RUNS:
    config = TrainingConfig(batch_size=32, learning_rate=0.001, num_gpu_workers=0, num_cpu_workers=workers)
    try:
        trainer = DistributedTrainer(model_factory=MyModelFactory(), data_loader=given, config=config)
        result = trainer.train(num_iterations=steps, folder=folder, resume=resume)
        results[name] = {
            "steps": [row["samples"] for row in result.metrics],
            "losses": [row["loss"] for row in result.metrics],
            "folder": str(result.events.parent),
        }
    except TrainingError as error:
        results[name] = {"error": str(error)}
print(json.dumps(results))
"""


def trained(folder: Path, source: str, runs: str, stub: Path) -> dict[str, Any]:
    """What each of the runs gave, all in one script, as most of the time goes into starting it and its Ray."""
    return run_script(folder, SCRIPT.replace("DATA", source).replace("RUNS", runs), stub)[1]


def covered(folder: str, end: int, begin: int = 0) -> tuple[str, ...]:
    slices = [span for spans in record.read(Path(folder) / record.FILE).values() for span in spans]
    return record.gaps_and_overlaps(slices, end, begin)


RAY_DATA = """
import numpy as np
numbers = np.arange(100, dtype=np.float32)
dataset = ray.data.from_numpy(np.stack([numbers, numbers * 0, numbers % 7, numbers * 0], 1)).repartition(8)
dataset = dataset.map_batches(lambda batch: {"x": batch["data"], "y": (batch["data"][:, 0] % 2).astype(np.int64)})

class MyModelFactory(MyModelFactory):
    def loss(self, model, batch):
        return super().loss(model, (batch["x"], batch["y"]))

TrainingConfig = __import__("functools").partial(TrainingConfig, epochs=2)
"""


@pytest.mark.ray
@pytest.mark.long
def test_a_ray_dataset_is_read_block_by_block_and_each_sample_once_an_epoch(tmp_path: Path, stub: Path) -> None:
    pytest.importorskip("pyarrow", reason="Ray Data needs pyarrow: pip install -e '.[data]'")
    pytest.importorskip("pandas", reason="Ray Data needs pandas: pip install -e '.[data]'")
    results = trained(tmp_path, RAY_DATA, '[("ray", dataset, 2, None, "ray", None)]', stub)
    assert "error" not in results["ray"], results
    assert results["ray"]["steps"] == [32] * 6 + [8]
    assert covered(tmp_path / "ray", 200) == ()
    seen = [int(line) for file in tmp_path.glob("seen-*") for line in file.read_text().split()]
    assert set(seen) == set(range(100))


def test_a_dataset_of_tensors_is_fetched_in_one_operation() -> None:
    x = torch.arange(10)
    assert datasets.fetch(TensorDataset(x, x + 1), np.array([3, 1]))[1].tolist() == [4, 2]
