"""Figures that a loss returns beside the loss: means over the step's samples, whatever the parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remote_agent.training.errors import JobError
from remote_agent.training.shared.figures import whole
from remote_agent.training.worker.device.scalars import Scalars
from remote_agent.training.worker.evaluation import metrics_of


def collected(loss: Any, *batches: Tensor) -> Scalars:
    scalars = Scalars(loss)
    for batch in batches:
        scalars.samples = len(batch)
        scalars.loss(nn.Linear(1, 1), batch)
    return scalars


def test_the_loss_goes_on_without_them_and_they_are_means_over_all_samples() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Any:
        return batch.mean(), {"mean": batch.mean(), "tokens": (batch.sum(), 2 * len(batch))}

    batches = torch.arange(3.0), torch.arange(5.0, 10.0)
    scalars = collected(loss, *batches)
    scalars.settle()
    together = torch.cat(batches)
    expected = {"mean": pytest.approx(float(together.mean())), "tokens": pytest.approx(float(together.mean() / 2))}
    assert whole([scalars.take()]) == expected
    assert scalars.take() == {}
    scalars.samples = 2
    assert float(scalars.loss(nn.Linear(1, 1), torch.ones(2))) == 1.0


def test_a_slice_that_is_computed_again_counts_once() -> None:
    scalars = collected(lambda model, batch: (batch.mean(), {"mean": batch.mean()}), torch.zeros(4))
    scalars.again()
    scalars.samples = 2
    scalars.loss(nn.Linear(1, 1), torch.ones(2))
    scalars.settle()
    assert scalars.take() == {"mean": (2.0, 2)}


def test_a_loss_with_its_weight_or_alone_has_none() -> None:
    for given in (torch.tensor(1.0), (torch.tensor(1.0), torch.tensor(2))):
        scalars = Scalars(lambda model, batch, given=given: given)
        assert scalars.loss(nn.Linear(1, 1), None) is given
        scalars.settle()
        assert scalars.take() == {}


def test_a_figure_that_is_no_number_is_an_error_of_the_loss() -> None:
    scalars = collected(lambda model, batch: (batch.mean(), {"mean": "text"}), torch.zeros(4))
    with pytest.raises(JobError, match="loss gave a str for 'mean'"):
        scalars.settle()


def test_the_validation_measures_them_too() -> None:
    class Job:
        def loss(self, model: nn.Module, batch: Tensor) -> Any:
            return batch.mean(), {"kl": 2.0}

    with torch.no_grad():
        found = metrics_of(Job())(nn.Linear(1, 1), torch.ones(3))
    assert found == {"val_loss": torch.tensor(1.0), "val_kl": 2.0}
