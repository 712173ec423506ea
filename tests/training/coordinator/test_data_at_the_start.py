"""What the coordinator makes of a job's data before the first step: the same in each process, on any devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset, random_split

from remote_agent.protocol import DeviceSpec
from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import sources, validation
from remote_agent.training.coordinator.request import Request
from remote_agent.training.data import datasets
from remote_agent.training.job import Job

WHOLE = TensorDataset(torch.arange(200.0))


def split() -> list[Subset[Any]]:
    return random_split(WHOLE, [150, 50])


def request(devices: int, config: TrainingConfig, away: int = 0) -> Request:
    specs = [DeviceSpec(host=f"h{n}", device="cpu", name="test", max_batch=9 + n) for n in range(devices)]
    return Request(
        run="r",
        job=Job("test", object(), lambda: split()[0], create_validation=lambda: split()[1]),
        config=config,
        devices=tuple(specs[away:]),
        away=tuple(specs[:away]),
        server_host="h0",
        host="h0",
        folder=Path(),
    )


def cut(request: Request, **measured: Any) -> list[int]:
    found = validation.of_job(request, replace(request.config, batch_size=32, **measured))
    assert found is not None
    return [len(batch) for batch in found.batches]


def test_the_validation_is_cut_alike_on_any_number_of_devices() -> None:
    config = TrainingConfig()
    assert cut(request(1, config)) == cut(request(2, config)) == cut(request(40, config)) == [9] * 5 + [5]
    assert cut(request(40, config, away=1)) == [9] * 5 + [5]  # its host is lost, and may come back
    assert cut(request(3, config), unit=4) == [9] * 5 + [5]  # of a number of devices that the run had


@pytest.mark.parametrize(("unit", "batches"), [(20, [20, 20, 10]), (32, [32, 18]), (100, [32, 18])])
def test_what_one_device_computes_together_is_validated_together(unit: int, batches: list[int]) -> None:
    assert cut(request(3, TrainingConfig(unit=unit))) == batches


def test_a_random_split_is_the_same_for_training_and_validation_and_in_another_process() -> None:
    made = request(1, TrainingConfig(seed=5))
    torch.manual_seed(1)
    trained = sources.given_by(made.job, seed=5)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    found = validation.of_job(made, replace(made.config, batch_size=32))
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(trained, Subset)
    assert found is not None
    validated = {float(x) for batch in found.batches for x in datasets.fetch(found.data, batch)[0]}
    assert {float(x) for (x,) in trained} == {float(n) for n in range(200)} - validated
    again = sources.given_by(made.job, seed=5)
    assert isinstance(again, Subset)
    assert again.indices == trained.indices


def test_what_a_jobs_file_draws_is_the_same_in_each_process(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import random, numpy, torch\n"
        "DRAWN = torch.randperm(50).tolist(), numpy.random.permutation(50).tolist(), random.random()\n"
        "class Mine:\n"
        "    def create_model(self): return torch.nn.Linear(1, 1)\n"
        "    def create_data(self): return DRAWN\n"
    )
    drawn = [job.load("own.py:Mine", tmp_path).create_data() for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert sorted(drawn[0][0]) == list(range(50))
