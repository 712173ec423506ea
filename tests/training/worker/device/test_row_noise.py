"""Random losses are compared with the same random numbers for each sample, in the whole batch and in its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from remote_agent.training.data import datasets
from remote_agent.training.shared.audit import Audit, Cause
from remote_agent.training.worker.device.audit import Auditor
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.row_noise import RowNoise

SAMPLES = 40


def found(loss: Callable[..., Any], model: nn.Module) -> Audit:
    x = torch.randn(SAMPLES, 5, 6, generator=torch.Generator().manual_seed(3))
    data = datasets.as_dataset((x, x[:, 0, :3].argmax(1)))
    computer = SliceComputer(model.train(), loss, data, torch.device("cpu"), seed=0)
    return Auditor(model, computer).alone(np.arange(SAMPLES))


def cause(audit: Audit) -> Cause | None:
    return audit.finding.cause if audit.finding is not None else None


class Net(nn.Module):
    """Layers with dropout of several kinds, between a first and a last one."""

    def __init__(self, *middle: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Sequential(*middle), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.middle(self.first(x))).mean(1)


class Transposed(nn.Module):
    """Computes with the samples in the second dimension."""

    def forward(self, x: Tensor) -> Any:
        return functional.dropout(x.transpose(0, 1), 0.3).transpose(0, 1)


class Recomputed(nn.Module):
    """Dropout that is computed again in backward."""

    def forward(self, x: Tensor) -> Any:
        return checkpoint(functional.dropout, x, 0.3, use_reentrant=False)


class NoisyWeight(nn.Module):
    """Noise on a weight, whose first dimension has nothing to do with samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, x: Tensor) -> Any:
        return x @ (self.weight + 0.1 * torch.randn(8, 8))


class Recurrent(nn.Module):
    """An LSTM of two layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(8, 8, 2, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.cells(x)[0]


def entropy(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def noisy(model: nn.Module, batch: Any) -> Tensor:
    """As in diffusion: a time for each sample, and noise."""
    x = batch[0]
    time = torch.randint(1, 10, (len(x), 1, 1))
    return functional.mse_loss(model(x + torch.randn_like(x) * time / 10), x[:, 0, :3])


def sampled(model: nn.Module, batch: Any) -> Tensor:
    """Samples of several distributions."""
    out = model(batch[0])
    latent = torch.distributions.Normal(out, 1.0).rsample()
    chosen = functional.gumbel_softmax(out, hard=True)
    mask = torch.bernoulli(out.sigmoid())
    drawn = torch.multinomial(out.softmax(1), 2, replacement=True)
    return (latent**2 + chosen * mask + out.gather(1, drawn).sum(1, keepdim=True)).mean()


LAYERS = [
    nn.Dropout(0.3),
    nn.Dropout1d(0.3),
    nn.AlphaDropout(0.2),
    nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    Transposed(),
    Recomputed(),
    Recurrent(),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("loss", [entropy, noisy, sampled])
def test_a_random_mean_over_samples_is_one_without_a_word_of_chance(layer: nn.Module, loss: Any) -> None:
    seen = found(loss, Net(layer))
    assert (cause(seen), seen.summed, seen.unchecked) == (None, False, False)


def variance(model: nn.Module, batch: Any) -> Tensor:
    return noisy(model, batch) + 0.01 * model(batch[0]).var(0).sum()


def baseline(model: nn.Module, batch: Any) -> Tensor:
    policy = torch.distributions.Categorical(logits=model(batch[0]))
    actions = policy.sample()
    reward = (actions == batch[1]).float()
    return -(policy.log_prob(actions) * (reward - reward.mean())).mean()


def mixed(model: nn.Module, batch: Any) -> Tensor:
    return noisy(model, batch) + 0.01 * model(batch[0]).square().sum()


@pytest.mark.parametrize("loss", [variance, baseline, mixed])
def test_a_small_term_over_the_batch_is_found_under_noise(loss: Any) -> None:
    assert cause(found(loss, Net(nn.Dropout(0.3)))) is Cause.PARTS_DO_NOT_ADD_UP


class OwnNorm(nn.Module):
    """Batch normalisation by hand, in training mode alone."""

    def forward(self, x: Tensor) -> Any:
        return functional.dropout((x - x.mean(0)) / (x.std(0) + 1e-3) if self.training else x, 0.3, self.training)


@pytest.mark.parametrize("layer", [OwnNorm(), NoisyWeight()], ids=lambda layer: type(layer).__name__)
def test_what_samples_have_in_common_in_training_mode_alone_is_found(layer: nn.Module) -> None:
    assert cause(found(entropy, Net(layer))) is Cause.PARTS_DO_NOT_ADD_UP


def test_a_part_draws_the_rows_of_the_whole() -> None:
    noise = RowNoise(6, torch.device("cpu"))

    def drawn(begin: int, end: int) -> list[Tensor]:
        with noise.of(begin, end):
            count = end - begin
            masks = torch.ones(3, 2 * count).bernoulli_(0.5)  # the second dimension follows the samples
            return [torch.rand(count, 2), torch.randn(4), masks]

    rows, common, masks = drawn(0, 6)
    for begin, end in ((0, 2), (2, 6)):
        part = drawn(begin, end)
        assert torch.equal(part[0], rows[begin:end])
        assert not torch.equal(part[1], common), "slices draw such numbers each for itself"
        assert torch.equal(part[2], masks[:, 2 * begin : 2 * end])
    assert noise.exact
    with noise.of(0, 2):
        torch.rand(3)
    assert not noise.exact


def test_a_permutation_pairs_each_sample_with_itself() -> None:
    noise = RowNoise(6, torch.device("cpu"))
    for begin, end in ((0, 6), (0, 2), (2, 6)):
        with noise.of(begin, end):
            assert torch.equal(torch.randperm(end - begin), torch.arange(end - begin))
    assert noise.exact
