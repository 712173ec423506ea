"""A model that is made in files has the weights that it has in memory, and takes none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from remote_agent.protocol import CLUSTER_MARK
from remote_agent.training.shared import file_memory


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, 512)
        self.layer = nn.TransformerEncoderLayer(512, 4, 2048)
        self.own = nn.Parameter(torch.randn(600, 512))
        self.out = nn.Linear(512, 1000, bias=False)
        self.out.weight = self.tokens.weight
        self.register_buffer("mask", torch.ones(1024, 512).tril())


def _made(*, wanted: bool) -> Model:
    torch.manual_seed(3)
    with file_memory.making(wanted=wanted) as into_files:
        model = Model()
        into_files(model)
    return model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CLUSTER_MARK, str(tmp_path))
    return tmp_path


def test_weights_are_the_same_and_large_ones_lie_in_files_without_a_name(folder: Path) -> None:
    plain, filed = _made(wanted=False), _made(wanted=True)
    assert filed.out.weight is filed.tokens.weight
    for (name, one), other in zip(plain.state_dict().items(), filed.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
        assert (other.untyped_storage().filename is not None) is (other.nbytes >= file_memory.SMALLEST), name
    assert not list(folder.iterdir())


def test_it_trains_as_in_memory(folder: Path) -> None:
    weights = []
    for wanted in (False, True):
        model = _made(wanted=wanted)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            torch.manual_seed(0)
            model.out(model.layer(model.tokens(torch.arange(6)[:, None]))).square().mean().backward()
            optimizer.step()
        weights.append(model.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(weights[0].values(), weights[1].values(), strict=True))


def test_where_the_disk_has_no_room_it_lies_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    model = _made(wanted=True)
    assert all(each.untyped_storage().filename is None for each in model.parameters())
    assert torch.equal(model.own, _made(wanted=False).own)
    assert not list(folder.iterdir())
