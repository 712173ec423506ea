"""Data that holds the model: the plan says that its samples follow the first weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from remote_agent.training.data import held_model

MODEL = nn.Sequential(nn.Linear(4, 2))
OTHER = nn.Linear(4, 2)


class Played(IterableDataset[Any]):
    """Acts with a policy."""

    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy

    def __iter__(self) -> Iterator[Any]:
        yield torch.zeros(4), int(self.policy(torch.zeros(4)).argmax())


class ByName(Dataset[Any]):
    """Names the model of its file."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return MODEL(torch.full((4,), float(index)))


class Job:
    """Has the model, and a method that puts samples together."""

    def __init__(self) -> None:
        self.model = MODEL

    def create_model(self) -> nn.Module:
        return self.model

    def collate(self, samples: list[Any]) -> Any:
        return torch.stack(samples)


class Acting:
    """Has a policy, and puts samples together with it."""

    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy

    def collate(self, samples: list[Any]) -> Any:
        return self.policy(torch.stack(samples))


def collating(policy: nn.Module) -> Any:
    return lambda samples: policy(torch.stack(samples))


def generated(policy: nn.Module) -> Iterator[Any]:
    yield policy(torch.zeros(4))


@pytest.mark.parametrize(
    "data",
    [
        Played(MODEL),
        DataLoader(Played(MODEL), batch_size=2),
        DataLoader(Played(MODEL[0]), batch_size=2),
        ByName(),
        generated(MODEL),
        [(0, MODEL)],
        [{"policy": MODEL}],
        DataLoader(TensorDataset(torch.zeros(8, 4)), collate_fn=collating(MODEL)),
        Played(nn.Sequential(MODEL)),
        DataLoader(TensorDataset(torch.zeros(8, 4)), collate_fn=Acting(MODEL).collate),
        DataLoader(ByName(), collate_fn=lambda samples: MODEL(torch.stack(samples))),
    ],
)
def test_it_is_found_wherever_the_data_has_it(data: object) -> None:
    assert held_model.note(data, MODEL) == (held_model.NOTE,)


@pytest.mark.parametrize(
    "data",
    [
        Played(OTHER),
        generated(OTHER),
        DataLoader(TensorDataset(torch.zeros(8, 4)), collate_fn=Job().collate),
        (torch.zeros(8, 4), torch.zeros(8)),
    ],
)
def test_other_data_is_not_mentioned(data: object) -> None:
    assert held_model.note(data, MODEL) == ()
