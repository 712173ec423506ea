"""Whole-set figures out of batches, and a model that does not notice that it was measured."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.validation import validation_of
from remote_agent.training.errors import JobError
from remote_agent.training.shared.figures import figures_of, whole
from remote_agent.training.worker.evaluation import BatchMeter, metrics_of

CPU = torch.device("cpu")


class Default:
    """A job with the default loss."""


def measured(model: nn.Module, data: Any, factory: Any = Default, batch: int = 16) -> dict[str, float | None]:
    validation = validation_of(data, TrainingConfig(batch_size=batch))
    meter = BatchMeter(model, metrics_of(factory), CPU, seed=0)
    return whole(meter(validation.data, list(enumerate(validation.batches))).values())


def test_the_default_is_the_cross_entropy_and_the_accuracy_of_all_samples_the_last_odd_batch_too() -> None:
    model, x, y = nn.Linear(4, 3), torch.randn(53, 4), torch.randint(0, 3, (53,))
    found = measured(model, (x, y))
    assert found["val_loss"] == pytest.approx(float(functional.cross_entropy(model(x), y).detach()), rel=1e-6)
    assert found["accuracy"] == pytest.approx(float((model(x).argmax(1) == y).double().mean()))


def test_targets_that_the_cross_entropy_ignores_weigh_nothing() -> None:
    model, x, y = nn.Linear(4, 3), torch.randn(53, 4), torch.randint(0, 3, (53,))
    y[:20] = -100
    found = measured(model, (x, y))
    assert found["val_loss"] == pytest.approx(float(functional.cross_entropy(model(x), y).detach()), rel=1e-6)
    assert found["accuracy"] == pytest.approx(float((model(x).argmax(1) == y)[20:].double().mean()))


def test_a_mean_weighs_its_samples_and_a_pair_brings_its_own_weight() -> None:
    batches = [
        figures_of({"loss": 1.0, "tokens": (8.0, 2)}, 3),
        figures_of({"loss": torch.tensor(2.0), "tokens": (1, 1)}, 1),
    ]
    assert whole(batches) == {"loss": 1.25, "tokens": 3.0}


def test_a_figure_that_is_no_finite_number_is_none_and_leaves_the_others() -> None:
    assert whole([{"a": (float("nan"), 1.0), "b": (1.0, 1.0)}, {"a": (1.0, 1.0), "b": (3.0, 1.0)}]) == {
        "a": None,
        "b": 2.0,
    }
    assert whole([{"a": (0.0, 0.0)}]) == {"a": None}


@pytest.mark.parametrize("value", [3.0, {"a": "text"}, {"a": torch.zeros(2)}, {"a": (1, 2, 3)}])
def test_metrics_of_another_form_are_refused_with_what_to_return(value: object) -> None:
    with pytest.raises(JobError) as error:
        figures_of(value, 4)
    assert "dict of names" in error.value.hint


def test_the_loss_of_the_job_is_measured_where_it_has_no_metrics() -> None:
    class Squares:
        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            return functional.mse_loss(model(batch[0]), batch[1])

    model, x, y = nn.Linear(4, 3), torch.randn(53, 4), torch.randn(53, 3)
    found = measured(model, (x, y), Squares())
    assert found == {"val_loss": pytest.approx(float(functional.mse_loss(model(x), y).detach()), rel=1e-6)}


def test_each_term_of_a_loss_is_a_mean_of_the_whole_set() -> None:
    class Terms:
        def loss(self, model: nn.Module, batch: Any) -> Any:
            scores, counts = model(batch[0]), batch[0][:, 0] > 0.5
            masked = scores.square().sum(1)[counts].sum(), counts.sum()
            return [functional.cross_entropy(scores, batch[1]), masked, scores.mean()], {"rare": counts.float().mean()}

    model, x, y = nn.Linear(4, 3), torch.randn(53, 4), torch.randint(0, 3, (53,))
    y[::3] = -100
    scores, counts = model(x).detach(), x[:, 0] > 0.5
    loss = functional.cross_entropy(scores, y) + scores.square().sum(1)[counts].mean() + scores.mean()
    assert measured(model, (x, y), Terms(), batch=8) == {
        "val_loss": pytest.approx(float(loss), rel=1e-5),
        "val_rare": pytest.approx(float(counts.float().mean())),
    }


def test_a_loader_is_taken_with_its_sampler_and_its_batches() -> None:
    x = torch.arange(40.0)
    loader = DataLoader(TensorDataset(x), batch_size=7, sampler=SubsetRandomSampler([*range(10, 33)]))
    validation = validation_of(loader, TrainingConfig(seed=5))
    assert [len(batch) for batch in validation.batches] == [7, 7, 7, 2]
    assert sorted(index for batch in validation.batches for index in batch) == [*range(10, 33)]
    again = validation_of(loader, TrainingConfig(seed=5))
    assert all(map(np.array_equal, validation.batches, again.batches))


def test_what_has_no_length_or_no_sample_is_refused() -> None:
    with pytest.raises(JobError, match="read from its beginning"):
        validation_of(iter([1, 2]), TrainingConfig())
    with pytest.raises(JobError, match="no sample"):
        validation_of([], TrainingConfig())


class Restless(nn.Module):
    """Everything about it moves when it is used, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("last", torch.zeros(2))
        self.inner[1].eval()  # a frozen layer keeps its mode

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x.mean() * torch.ones(2)
        return self.inner(x)


def test_modes_buffers_gradients_and_generators_are_as_they_were() -> None:
    model = Restless().train()
    model.inner[1].eval()
    modes = [module.training for module in model.modules()]
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    held, data = model.last, TensorDataset(torch.randn(20, 4))
    draws: list[Any] = []

    def metrics(model: nn.Module, batch: Any) -> Mapping[str, Any]:
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        draws.append((torch.rand(1).item(), np.random.rand(), random.random()))
        return {"a": model(batch[0]).mean()}

    generators = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    meter = BatchMeter(model, metrics, CPU, seed=3)
    batches = [(number, np.arange(10) + 10 * number) for number in (0, 1)]
    first = meter(data, batches)
    assert meter(data, batches[::-1]) == first  # whoever computes a batch, and when
    assert sorted(draws[:2]) == sorted(draws[2:])
    assert [module.training for module in model.modules()] == modes
    assert model.last is held
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert np.random.get_state()[1].tolist() == generators[1]
    assert random.getstate() == generators[2]


def test_a_batch_for_which_memory_is_full_is_measured_in_halves() -> None:
    sizes: list[int] = []

    def metrics(model: nn.Module, batch: Any) -> Mapping[str, Any]:
        sizes.append(len(batch[0]))
        if len(batch[0]) > 3:
            raise MemoryError
        return {"a": batch[0].mean()}

    x = torch.randn(10, 1)
    meter = BatchMeter(nn.Linear(1, 1), metrics, CPU, seed=0)
    found = whole(meter(TensorDataset(x), [(0, np.arange(10))]).values())
    assert found["a"] == pytest.approx(float(x.mean()), rel=1e-5)
    assert sizes == [10, 5, 2, 3, 5, 2, 3]


def test_a_batch_with_labels_is_measured_by_the_models_own_loss() -> None:
    def model(x: Tensor, labels: Tensor) -> Any:
        return {"loss": functional.mse_loss(x, labels)}

    with torch.no_grad():
        found = metrics_of(Default)(model, {"x": torch.ones(2), "labels": torch.zeros(2)})
    assert figures_of(found, 2) == {"val_loss": (2.0, 2)}


@pytest.mark.parametrize("batch", [4, 16])
def test_the_val_loss_of_a_sum_is_the_mean_over_the_samples_whatever_the_batches(batch: int) -> None:
    def squares(model: nn.Module, data: Any) -> Tensor:
        return functional.mse_loss(model(data[0]), data[1], reduction="sum")

    model, x, y = nn.Linear(4, 3), torch.randn(53, 4), torch.randn(53, 3)
    validation = validation_of((x, y), TrainingConfig(batch_size=batch))
    metrics = metrics_of(type("Job", (), {"loss": staticmethod(squares)}), summed=True)
    meter = BatchMeter(model, metrics, CPU, seed=0)
    found = whole(meter(validation.data, list(enumerate(validation.batches))).values())
    assert found == {"val_loss": pytest.approx(float(squares(model, (x, y)).detach()) / 53, rel=1e-5)}


class Kept:
    """An accuracy over all that was ever seen, as an object of torchmetrics keeps it."""

    def __init__(self, *, resets: bool) -> None:
        self.resets, self.right, self.count = resets, 0.0, 0

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        if self.resets:
            self.right, self.count = 0.0, 0
        self.right += float((model(batch[0]).argmax(1) == batch[1]).sum())
        self.count += len(batch[1])
        return {"accuracy": self.right / self.count, "nothing": float("nan")}


def test_metrics_that_keep_what_they_saw_are_refused_with_the_first_batch() -> None:
    torch.manual_seed(0)
    model, data = nn.Linear(4, 3), (torch.randn(53, 4), torch.randint(0, 3, (53,)))
    validation = validation_of(data, TrainingConfig(batch_size=16))
    first = [(0, validation.batches[0])]
    with pytest.raises(JobError, match="gives another accuracy for the same batch once it has seen another one"):
        BatchMeter(model, metrics_of(Kept(resets=False)), CPU, seed=0)(validation.data, first, checked=True)
    meter = BatchMeter(model, metrics_of(Kept(resets=True)), CPU, seed=0)
    assert meter(validation.data, first, checked=True)[0]["accuracy"]
