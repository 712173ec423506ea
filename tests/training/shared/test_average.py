"""The average of the weights: torch's own, by the parameter and by the chunk, and remembered."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from remote_agent.training.checkpoint.optimizer_state import into_optimizer, of_optimizer
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.shared.average import EMA, WeightAverage
from remote_agent.training.wire.layout import Chunk, Layout

DECAY, STEPS = 0.7, 9


def gradients(numel: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(numel, generator=generator) for _ in range(STEPS)]


def textbook(weights: torch.Tensor) -> torch.Tensor:
    """torch's own average of a parameter that Adam steps."""
    module = nn.ParameterList([nn.Parameter(weights.clone())])
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    for gradient in gradients(weights.numel()):
        module[0].grad = gradient.clone()
        optimizer.step()
        average.update_parameters(module)
    return next(average.parameters()).detach()


@pytest.mark.parametrize("resumed_after", [0, 1, 4])
def test_chunks_have_torchs_average_and_go_on_from_what_they_remembered(resumed_after: int) -> None:
    layout = Layout(chunks=(Chunk(0, 6, 0), Chunk(6, 10, 0)), owners=(0, 0), shards=1)
    weights = torch.arange(10.0)
    now = weights.clone()

    def opened() -> OptimizerUpdate:
        update = OptimizerUpdate(layout, lambda _, part: torch.optim.Adam([part], lr=0.1), decay=DECAY)
        for number, chunk in enumerate(layout.chunks):
            update.bind(number, now[chunk.begin : chunk.end])
        return update

    update = opened()
    for step, gradient in enumerate(gradients(10), start=1):
        if step - 1 == resumed_after > 0:
            states = [copy.deepcopy(dict(update.state(number))) for number in (0, 1)]
            update = opened()
            for number, state in enumerate(states):
                update.load_state(number, state)
        for number, chunk in enumerate(layout.chunks):
            update.apply(number, gradient[chunk.begin : chunk.end].clone())
    found = torch.cat([update.state(number)[EMA] for number in (0, 1)])
    torch.testing.assert_close(found, textbook(weights), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("resumed_after", [0, 1, 4])
def test_whole_parameters_have_torchs_average_and_go_on_from_what_was_remembered(resumed_after: int) -> None:
    weights = torch.arange(10.0)
    model = nn.ParameterList([nn.Parameter(weights.clone())])
    optimizer, average = torch.optim.Adam(model.parameters(), lr=0.1), WeightAverage(DECAY)
    for number, gradient in enumerate(gradients(10)):
        if number and number == resumed_after:
            states = copy.deepcopy(of_optimizer(model, optimizer, average))
            optimizer, average = torch.optim.Adam(model.parameters(), lr=0.1), WeightAverage(DECAY)
            into_optimizer(model, optimizer, states, average)
        model[0].grad = gradient.clone()
        optimizer.step()
        average.update(model.parameters())
    assert torch.equal(average.of(model[0])[EMA], textbook(weights))


def test_a_parameter_that_the_optimizer_has_not_stepped_does_not_confuse_it() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))])
    optimizer, average = torch.optim.Adam(model.parameters(), lr=0.1), WeightAverage(DECAY)
    model[0].grad = torch.ones(2)
    optimizer.step()
    average.update(model.parameters())
    into_optimizer(model, optimizer, of_optimizer(model, optimizer, average), average)
    model[1].grad = torch.ones(3)
    optimizer.step()  # it begins to remember what it needs now
    assert set(of_optimizer(model, optimizer, average)["1"]) == {"step", "exp_avg", "exp_avg_sq", EMA}


def test_without_a_decay_there_is_none_and_one_that_was_remembered_is_let_go() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(2))])
    optimizer, average = torch.optim.Adam(model.parameters(), lr=0.1), WeightAverage(0.0)
    into_optimizer(model, optimizer, {"0": {EMA: torch.zeros(2)}}, average)
    average.update(model.parameters())
    assert of_optimizer(model, optimizer, average) == {}
