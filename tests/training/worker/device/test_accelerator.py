"""What a GPU asks of the code, on a device whose tensors are apart from the CPU's and that has no float64."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence

from benchmarks.compatible import accelerator
from remote_agent.training.data import datasets
from remote_agent.training.shared.audit import compared
from remote_agent.training.shared.messages import Slice
from remote_agent.training.shared.own_devices import KINDS
from remote_agent.training.user_code import losses
from remote_agent.training.user_code.user_errors import as_job_error
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device.audit import Auditor
from remote_agent.training.worker.device.compute import SliceComputer

losses.install()

Pair = namedtuple("Pair", "image label")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: Tensor
    label: int


class Graph:
    def __init__(self) -> None:
        self.edges, self.parts, self.whole = torch.ones(2, 3), [torch.ones(1)], self


@pytest.fixture(autouse=True)
def twin() -> Iterator[torch.device]:
    accelerator.register()
    yield torch.device(accelerator.KIND, 0)
    del KINDS[accelerator.KIND]


def plain(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def weighted(model: nn.Module, batch: Any) -> Tensor:
    """A mean whose weight is no number of samples."""
    weight = torch.tensor([1.0, 2.0, 3.0]).to(batch[0].device)
    return functional.cross_entropy(model(batch[0]), batch[1], weight=weight)


def places(value: Any) -> list[str]:
    """The devices of the tensors in it."""
    if isinstance(value, Tensor):
        return [value.device.type]
    if hasattr(value, "items"):
        value = list(value.values())
    if hasattr(value, "__dict__") and not isinstance(value, tuple | list):
        value = [each for each in vars(value).values() if each is not value and not isinstance(each, Graph)]
    return [place for each in value for place in places(each)] if isinstance(value, tuple | list) else []


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        (torch.ones(2), {"label": [torch.ones(1), "name"]}),
        Pair(torch.ones(2), 3),
        Sample(torch.ones(2), 3),
        UserDict(image=torch.ones(2)),
        OrderedDict(image=torch.ones(2)),
        Graph(),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_batch_is_moved_whole_and_keeps_its_type(twin: torch.device, batch: Any) -> None:
    before = places(batch)
    moved = devices.move(batch, twin)
    assert type(moved) is type(batch)
    assert set(before) == {"cpu"}
    assert places(moved) == [accelerator.KIND] * len(before)
    assert places(batch) == before, "the dataset's own sample stays where it is"


def test_what_can_move_itself_is_asked_to(twin: torch.device) -> None:
    packed = devices.move([pack_sequence([torch.ones(3, 2)])], twin)[0]
    assert (packed.data.device, packed.batch_sizes.device.type) == (twin, "cpu"), "torch keeps the sizes on the CPU"


class Weighing:
    loss = nn.CrossEntropyLoss(weight=torch.ones(3))

    def __init__(self) -> None:
        self.teacher = nn.Linear(2, 3)


def test_what_a_job_or_its_class_keeps_beside_the_model_is_moved(twin: torch.device) -> None:
    job = Weighing()
    devices.move_beside(job, nn.Linear(2, 3), twin)
    assert (job.loss.weight.device, job.teacher.weight.device) == (twin, twin)


def test_the_device_is_as_strict_as_a_gpu(twin: torch.device) -> None:
    with pytest.raises(RuntimeError, match="device") as mixed:
        torch.ones(2, device=twin) + torch.ones(2)
    with pytest.raises(TypeError, match="float64") as wide:
        torch.ones(2, device=twin).double()
    assert "device=x.device" in as_job_error("loss", mixed.value).hint
    assert "float32" in as_job_error("loss", wide.value).hint
    lengths = RuntimeError("'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor")
    assert "lengths.cpu()" in as_job_error("loss", lengths).hint


@pytest.mark.parametrize("loss", [plain, weighted])
def test_a_loss_is_checked_and_computed_as_on_the_cpu(twin: torch.device, loss: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    data = datasets.as_dataset((torch.randn(40, 6, generator=generator), torch.arange(40) % 3))
    gradients, sketches = [], []
    for device in (torch.device("cpu"), twin):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).to(device).train()
        computer = SliceComputer(model, loss, data, device, seed=0, most=7)
        found = Auditor(model, computer).alone(np.arange(40))
        assert found.finding is None
        sketches.append((device.type, found.whole))
        computer(1, Slice.whole(np.arange(20), begin=0))
        gradients.append([parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None])
    assert compared(found, sketches) is None
    assert all(torch.allclose(mine, its, atol=1e-6) for mine, its in zip(*gradients, strict=True))
