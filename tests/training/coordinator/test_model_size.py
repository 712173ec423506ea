"""A model that is too large is refused while it is made."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from remote_agent.training.coordinator import model_size
from remote_agent.training.errors import JobError


def test_a_model_that_the_coordinator_has_no_memory_for_is_refused_before_all_of_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = types.SimpleNamespace(available=1_000_000)
    monkeypatch.setattr(model_size, "psutil", types.SimpleNamespace(virtual_memory=lambda: memory))
    made: list[nn.Module] = []

    def too_large() -> None:
        with model_size.limited("mercer"):
            made.extend(nn.Linear(300, 300) for _ in range(10))

    with pytest.raises(JobError, match=r"does not fit into mercer's memory.* 0\.0 GB are free"):
        too_large()
    assert len(made) == 2
    with model_size.limited("mercer"), torch.device("meta"):
        nn.Linear(3000, 3000)
    nn.Linear(600, 600)  # nothing is counted afterwards


def test_tied_and_lazy_parameters_and_those_that_were_thrown_away_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = types.SimpleNamespace(available=1_000_000)
    monkeypatch.setattr(model_size, "psutil", types.SimpleNamespace(virtual_memory=lambda: memory))
    with model_size.limited("mercer"):
        first, second, _ = nn.Linear(400, 400), nn.Linear(400, 1), nn.LazyLinear(400)
        second.weight = first.weight
        for _ in range(4):
            nn.Linear(250, 250)
