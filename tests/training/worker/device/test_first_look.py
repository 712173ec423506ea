"""What a worker makes of the first samples: the same on each machine, unless the job is another one there."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset

from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.shared.job_fingerprint import JobFingerprint, refuse
from remote_agent.training.worker.device import held_values
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.first_look import look

CPU = torch.device("cpu")
SAMPLES = 40


class Points(Dataset[Any]):
    """Points with labels; ``change`` gets the point, the label and the data set."""

    def __init__(self, change: Callable[[Tensor, int, Points], Any] | None = None) -> None:
        self.change = change or (lambda point, label, _: (point, label))
        self.own = np.random.default_rng(0)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        point = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return self.change(point, index % 3, self)


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def net(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 3))


def seen(
    data: Any = None,
    loss: Callable[..., Any] = cross_entropy,
    model: nn.Module | None = None,
    owner: object = None,
    room: bool = True,
    most: int | None = None,
) -> JobFingerprint:
    model = (model or net()).train()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    made = JobFingerprint(held=held_values.beside(model))
    prepared = datasets.as_dataset(data if data is not None else Points())
    computer = SliceComputer(model, loss, prepared, CPU, seed=0, most=most)
    found = look(model, computer, datasets.to_measure(prepared), made, room=room)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == generators[1:]  # type: ignore[index, union-attr]
    return found


def compared(one: JobFingerprint, other: JobFingerprint) -> str:
    try:
        refuse([("a/cpu", one), ("b/cpu", other)], JobFingerprint())
    except JobError as error:
        return error.cause
    return ""


# --- Other jobs ------------------------------------------------------------------------------------------------------


def test_all_is_compared_of_a_usual_job() -> None:
    found = seen()
    assert len(found.samples) == 2 * 12
    assert found.loss is not None
    assert found.loss.evaluating
    assert 0 < found.loss.allowed < 0.1 * min(found.loss.values)


@pytest.mark.parametrize(
    "change",
    [
        lambda point, label, _: (point, (label + 1) % 3),
        lambda point, label, _: (2 * point, label),
        lambda point, label, _: (point.flip(0), label),
        lambda point, label, _: (torch.cat([point, point[:1]])[1:], label),
    ],
)
@pytest.mark.parametrize("wrapped", [lambda data: data, lambda data: DataLoader(data, batch_size=4)])
def test_another_version_of_the_data_is_seen(change: Any, wrapped: Callable[[Any], Any]) -> None:
    found = compared(seen(wrapped(Points())), seen(wrapped(Points(change))))
    assert "batch[" in found
    assert " of sample " in found


def test_files_in_another_order_are_seen() -> None:
    order = np.random.default_rng(5).permutation(SAMPLES).tolist()
    assert " of sample " in compared(seen(Points()), seen(Subset(Points(), order)))


class Weighted:
    """A job whose loss has a weight in an attribute."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model, batch) + self.alpha * model(batch[0]).square().mean()


@pytest.mark.parametrize("room", [True, False])
def test_a_loss_that_weighs_its_parts_otherwise_is_seen(room: bool) -> None:
    one, same, other = (seen(loss=job.loss, owner=job, room=room) for job in map(Weighted, (0.1, 0.1, 0.5)))
    assert not compared(one, same)
    assert "the loss of the same samples" in compared(one, other)


def test_another_version_of_a_function_that_the_loss_uses_is_seen() -> None:
    smooth = lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.2)  # noqa: E731
    assert "the loss" in compared(seen(), seen(loss=smooth))


# --- The same job, computed otherwise --------------------------------------------------------------------------------


class Autocast:
    """A loss that computes in bfloat16."""

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, batch)


def augmented(point: Tensor, label: int, data: Points) -> Any:
    return point + 0.1 * torch.randn(6) + random.random() + float(np.random.rand()), label


def of_its_own(point: Tensor, label: int, data: Points) -> Any:
    """By a generator of the data set's own, of which each worker has a copy, wherever it is."""
    return point * data.own.random(), label


def from_the_system(point: Tensor, label: int, data: Points) -> Any:
    return point * random.SystemRandom().random(), label


class Wide(nn.Module):
    """Many layers, so that rounding adds up."""

    def __init__(self, kind: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(8)]
        self.net = nn.Sequential(nn.Linear(6, 64), *layers, nn.Linear(64, 3)).to(kind)
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        return self.net(x.to(self.kind)).float()


def distilled(kind: torch.dtype) -> Callable[..., Any]:
    """The teacher, which is rounded, is what the student is at first: the loss is rounding alone."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        outputs = model(batch[0])
        teacher = functional.log_softmax(outputs.to(kind), -1).float()
        student = functional.log_softmax(outputs, -1)
        return functional.kl_div(student, teacher, log_target=True, reduction="batchmean")

    return loss


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({}, {"loss": Autocast()}, id="bf16 on one device"),
        pytest.param({"model": Wide()}, {"model": Wide(), "loss": Autocast()}, id="bf16 on one device, many layers"),
        pytest.param({"model": Wide()}, {"model": Wide(torch.bfloat16)}, id="weights in bf16 on one device"),
        pytest.param({"model": Wide()}, {"model": Wide(torch.float64)}, id="weights in float64 on one device"),
        pytest.param(
            {"loss": distilled(torch.float64)}, {"loss": distilled(torch.bfloat16)}, id="a loss that is rounding alone"
        ),
        pytest.param({"most": 1}, {"most": 7}, id="other numbers of samples at a time"),
        pytest.param({"room": False}, {}, id="a stage, and a device that holds all"),
    ],
)
def test_what_devices_compute_a_little_differently_is_the_same(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> None:
    assert not compared(seen(**one), seen(**other))


@pytest.mark.parametrize(
    ("made", "loss_too"),
    [
        (lambda: {"model": net(nn.Dropout(0.5))}, True),
        (lambda: {"model": net(nn.BatchNorm1d(8))}, True),
        (lambda: {"data": Points(augmented)}, True),
        (lambda: {"data": Points(of_its_own)}, False),
        (lambda: {"data": Points(from_the_system)}, False),
        (lambda: {"loss": lambda model, batch: cross_entropy(model, batch) + torch.rand(())}, False),
        (lambda: {"loss": lambda model, batch: cross_entropy(model, batch) / random.SystemRandom().random()}, False),
        (lambda: {"loss": lambda model, batch: cross_entropy(model, batch) * float("nan")}, False),
        (lambda: {"loss": in_training_only}, True),
        (lambda: {"loss": fails_with_two}, False),
        (
            lambda: {"data": Points(lambda point, label, _: {"text": "some", "x": point, "y": label, "path": "/a"})},
            False,
        ),
    ],
)
def test_a_job_with_random_numbers_is_compared_as_far_as_it_is_the_same_twice(made: Any, loss_too: bool) -> None:
    one, other = seen(**made()), seen(**made())
    assert not compared(one, other)
    assert (one.loss is not None) is loss_too


def in_training_only(model: nn.Module, batch: Any) -> Tensor:
    if not model.training:
        raise TypeError("the model gives boxes in evaluation mode")
    return cross_entropy(model, batch)


def fails_with_two(model: nn.Module, batch: Any) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_dataset_may_say_that_its_samples_are_others_on_each_host() -> None:
    ours, theirs = Points(), Points(lambda point, label, _: (point + 1, label))
    assert compared(seen(ours), seen(theirs))
    ours.by_host = theirs.by_host = True  # type: ignore[attr-defined]
    for wrapped in (
        lambda data: data,
        lambda data: DataLoader(data, batch_size=4),
        lambda data: Subset(data, range(9)),
    ):
        assert not compared(seen(wrapped(ours)), seen(wrapped(theirs)))
