"""A loss that returns a list of terms: each is a mean of the whole batch, by a weight of its own, as in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.shared.average import WeightAverage
from remote_agent.training.shared.messages import Reduced, ReductionTask, Slice
from remote_agent.training.user_code import losses
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.engine import Parts
from remote_agent.training.worker.reduction import Reduction
from remote_agent.training.worker.rendezvous import Rendezvous
from tests.training import plain
from tests.training.worker.test_reduction import ADDRESS, at_once

losses.install()

JOB = """
import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classes, self.box = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 2)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return self.classes(x), self.box(x)


class Job:
    def create_model(self):
        return Model()

    def loss(self, model, batch, step):
        x, labels, boxes, there = batch
        host = os.environ.get("TEST_HOST")
        if host == "b" and step == 7 and not os.path.exists(KILLED):
            open(KILLED, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.002 * len(x) * (3 if host == "b" else 1))
        classes, box = model(x)
        off = (box - boxes).abs().mean(1) * there
        return [
            F.cross_entropy(classes, labels, weight=torch.tensor([0.3, 1.0, 2.0, 5.0])),
            (2.0 * off.sum(), there.sum()),
            0.01 * classes.square().mean(),
        ]

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)

    def _samples(self, seed, count):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 12, generator=generator)
        labels = x[:, :4].argmax(1).masked_fill(x[:, 4] > 0, -100)  # about half have one
        return x, labels, x[:, 5:7], (x[:, 7] > 0.8).float()

    def create_data(self):
        return self._samples(5, 100)

    def create_validation_data(self):
        return self._samples(6, 45)
"""
STEPS, BATCH = 16, 24


def textbook(model: nn.Module, batch: Any) -> Tensor:
    """The same in plain torch."""
    x, labels, boxes, there = batch
    classes, box = model(x)
    off = (box - boxes).abs().mean(1) * there
    named = functional.cross_entropy(classes, labels, weight=torch.tensor([0.3, 1.0, 2.0, 5.0]))
    result: Tensor = named + 2.0 * off.sum() / there.sum() + 0.01 * classes.square().mean()
    return result


@pytest.mark.ray
@pytest.mark.parametrize("unit", [0, 5])
def test_weights_and_losses_are_those_of_plain_torch_when_a_worker_is_killed(
    launch: Any, tmp_path: Path, unit: int
) -> None:
    source = JOB.replace("KILLED", repr(str(tmp_path / "killed")))
    settings = {"num_iterations": STEPS, "batch_size": BATCH, "unit": unit, "measure_seconds": 0.1}
    run = launch(source, "ab", **settings, evaluate_every=8)
    assert run.finish() == (0, "")
    (lost,) = run.of_kind("worker_lost")
    assert (lost["host"], lost["step"]) == ("b", 7)
    reasons = run.of_kind("plan")[0]["reasons"]
    assert any("loss has 3 terms with weights of their own, and a step sums 3 gradients" in each for each in reasons)
    job, expected = plain.job_of(source, tmp_path), list[float]()

    def noting(model: nn.Module, batch: Any) -> Tensor:
        loss = textbook(model, batch)
        expected.append(float(loss.detach()))
        return loss

    weights = plain.train(job, TrainingConfig(num_iterations=STEPS, batch_size=BATCH), loss=noting)
    plain.assert_equal(plain.weights_of(run), weights)
    assert [event["loss"] for event in run.of_kind("step")] == pytest.approx(expected, rel=1e-4)
    model = job.create_model()
    model.load_state_dict(weights)
    loss = float(textbook(model, job.create_validation_data()).detach())
    assert run.of_kind("evaluated")[-1]["metrics"]["val_loss"] == pytest.approx(loss, rel=1e-4)


# --- On workers in threads -------------------------------------------------------------------------------------------


def model_and_data(folder: Path) -> tuple[Any, nn.Module, Any]:
    job = plain.job_of(JOB.replace("KILLED", "''"), folder)
    torch.manual_seed(3)
    return job, job.create_model(), datasets.as_dataset(job.create_data())


def computer_of(model: nn.Module, loss: Callable[..., Any], data: Any, most: int | None = None) -> SliceComputer:
    return SliceComputer(model.train(), loss, data, torch.device("cpu"), 0, most)


@pytest.mark.parametrize(("ordered", "most"), [(0, None), (3, None), (0, 2)])
def test_slices_of_lost_workers_count_once_in_each_term(tmp_path: Path, ordered: int, most: int | None) -> None:
    job, model, data = model_and_data(tmp_path)
    rows = np.random.default_rng(4).permutation(90).reshape(3, 30)
    cuts = [[part[:4], part[4:13], part[13:]] for part in rows]
    loss = losses.function_of(job.loss)
    workers = []
    for _ in range(2):
        _, own, _ = model_and_data(tmp_path)
        weights, compute = flat.FlatTensors(own), computer_of(own, loss, data, most)
        parts = Parts(
            model=own, weights=weights, compute=compute, factory=None, config=TrainingConfig(clip_norm=0.5), buffers=()
        )
        average, optimizer = WeightAverage(0.0), job.create_optimizer(own, None)
        workers.append(Reduction(parts, optimizer, first=(), done=0, address=ADDRESS, average=average))
    places = Rendezvous(ADDRESS).invite("ab")
    optimizer, expected = job.create_optimizer(model, None), []
    for step, slices in enumerate(cuts, start=1):
        owners = [(0,), (1, 2)] if step < 3 else [(0, 2), (1,)]  # slice 2 of a lost worker, beside the own one
        tasks = [
            ReductionTask(
                step=step,
                committed=step - 1,
                slices=tuple(Slice(index=at, indices=slices[at], total=30) for at in own),
                group=place,
                ordered=ordered,
                terms=3,
            )
            for own, place in zip(owners, places, strict=True)
        ]
        answers = at_once([lambda w=w, t=t: w.step(t) for w, t in zip(workers, tasks, strict=True)])
        optimizer.zero_grad()
        whole = textbook(model, datasets.fetch(data, np.concatenate(slices)))
        whole.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        expected.append((float(whole.detach()), norm, 30))
        for answer in answers:
            assert isinstance(answer, Reduced), answer
            assert (answer.loss, answer.norm, answer.samples) == pytest.approx(expected[-1], rel=1e-4)
    for worker in workers:
        worker.commit(3)
        for found, right in zip(worker._parameters, model.parameters(), strict=True):
            torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)


def test_a_term_that_nothing_counts_in_adds_nothing(tmp_path: Path) -> None:
    job, model, data = model_and_data(tmp_path)
    loss = losses.function_of(job.loss)
    (nobody,) = np.nonzero((job.create_data()[1] == -100).numpy())
    compute = computer_of(model, loss, data)
    compute.terms = 3
    named, boxes, small = compute.compute(1, Slice.whole(nobody[:12])).terms
    assert named.weight == 0
    assert boxes.weight > 0
    assert small.weight == pytest.approx(1.0)
    assert all(each is None or not each.any() for each in compute.gradients[0])


def test_another_number_of_terms_than_before_is_refused(tmp_path: Path) -> None:
    _, model, data = model_and_data(tmp_path)

    def loss(model: nn.Module, batch: Any) -> Any:
        terms = [model(batch[0])[0].mean(), (model(batch[0])[1].sum(), 3)]
        return terms if len(batch[0]) == 4 else terms[0]

    compute = computer_of(model, loss, data)
    compute.terms = 2
    assert len(compute.compute(1, Slice.whole(np.arange(4))).terms) == 2
    with pytest.raises(JobError, match="loss gave 1 terms, and 2 before") as error:
        compute.compute(1, Slice.whole(np.arange(5)))
    assert "(0.0, 0)" in error.value.hint
