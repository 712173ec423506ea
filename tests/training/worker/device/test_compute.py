"""A device's slices: the same gradient sum in whatever parts, precision or second attempt they are computed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError, LossNotFinite
from remote_agent.training.shared.messages import Slice
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device import recompute
from remote_agent.training.worker.device.compute import SliceComputer

CPU = torch.device("cpu")
SAMPLES, WIDTH, CLASSES = 40, 12, 5


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.back = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.back(F.gelu(self.wide(self.norm(x)))))


class Net(nn.Module):
    """Repeated blocks, as most deep models have."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def samples() -> Any:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    return datasets.as_dataset((x, torch.randint(0, CLASSES, (SAMPLES,), generator=generator)))


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def computer(model: nn.Module, loss: Callable[..., Tensor] = cross_entropy, **options: Any) -> SliceComputer:
    return SliceComputer(model, loss, samples(), CPU, seed=3, **options)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def expected(model: nn.Module, indices: np.ndarray) -> dict[str, Tensor]:
    """The mean gradient by torch alone, with fp32 and all samples at once."""
    model = copy.deepcopy(model)
    model.zero_grad()
    cross_entropy(model, datasets.fetch(samples(), indices)).backward()
    return gradients(model)


def assert_close(found: dict[str, Tensor], right: dict[str, Tensor], error: float = 1e-5) -> None:
    assert found.keys() == right.keys()
    for name, value in right.items():
        assert found[name].dtype == value.dtype
        assert (found[name] - value).norm() <= error * value.norm().clamp_min(1e-12), name


class FullAbove:
    """A loss that fails as a device does whose memory takes `limit` samples."""

    def __init__(self, limit: int, error: Exception | None = None) -> None:
        self.limit, self.sizes = limit, list[int]()
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        self.sizes.append(len(batch[0]))
        loss = cross_entropy(model, batch)
        if len(batch[0]) > self.limit:
            loss.backward()  # memory often ends in the middle of backward
            raise self.error
        return loss


# --- Accumulation ----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(1, SAMPLES), st.integers(1, SAMPLES))
def test_a_slice_in_parts_gives_the_gradient_of_the_whole(size: int, most: int) -> None:
    model, indices = Net(), np.arange(size)
    loss = computer(model, most=most)(1, Slice.whole(indices)).loss
    assert_close(gradients(model), expected(model, indices))
    with torch.no_grad():
        assert loss == pytest.approx(cross_entropy(model, datasets.fetch(samples(), indices)).item(), rel=1e-5)


def test_parts_are_of_equal_size_so_that_no_single_sample_is_left_over() -> None:
    watching = FullAbove(SAMPLES)
    computer(Net(), watching, most=8)(1, Slice.whole(np.arange(17)))
    assert watching.sizes == [6, 6, 5]


def test_what_is_final_is_announced_before_the_last_backward_with_the_mean_loss() -> None:
    model = Net()
    compute = computer(model, most=8)
    seen: list[tuple[float, float, bool]] = []
    compute.on_last = lambda result: seen.append((result.loss, result.weight, model.head.weight.grad is not None))
    result = compute(1, Slice.whole(np.arange(17)))
    assert seen == [(pytest.approx(result.loss), pytest.approx(result.weight), True)]


# --- Full memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError("Unable to allocate 8 GiB"),
    ],
)
def test_full_memory_halves_what_is_computed_at_a_time_and_loses_nothing(error: Exception) -> None:
    model, indices, full = Net(), np.arange(30), FullAbove(8, error)
    compute, repeats = computer(model, full), list[int]()
    compute.on_repeat = lambda: repeats.append(len(full.sizes))
    compute(1, Slice.whole(indices))
    assert_close(gradients(model), expected(model, indices))
    assert full.sizes == [30, 15, 6, 6, 6, 6, 6]  # at most 7
    assert repeats == [1, 2]


def test_the_smaller_part_stays_and_is_told_once() -> None:
    compute = computer(Net(), FullAbove(8))
    assert compute.reduced() == 0
    compute(1, Slice.whole(np.arange(30)))
    assert (compute.reduced(), compute.reduced(), compute.most) == (7, 0, 7)
    compute(2, Slice.whole(np.arange(30)))
    assert compute.reduced() == 0


def test_a_single_sample_that_does_not_fit_is_an_error_with_advice() -> None:
    with pytest.raises(JobError, match="OutOfMemoryError") as caught:
        computer(Net(), FullAbove(0))(1, Slice.whole(np.arange(4)))
    assert "memory is full" in caught.value.hint


def test_an_error_of_the_jobs_own_is_not_tried_again() -> None:
    failing = FullAbove(0, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(JobError, match="shapes cannot be multiplied"):
        computer(Net(), failing)(1, Slice.whole(np.arange(4)))
    assert failing.sizes == [4, 2, 1, 1, 1, 1], "after the slice a sample was looked for that is to blame"


def test_a_token_that_the_model_does_not_have_is_found_though_the_loss_is_the_jobs_own() -> None:
    tokens = torch.arange(SAMPLES).remainder(7).repeat(3, 1).T.contiguous()
    tokens[31, 1] = 99
    model = nn.Embedding(7, CLASSES)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(batch["tokens"]).square().mean()

    data = datasets.as_dataset([{"tokens": row, "label": at} for at, row in enumerate(tokens)])
    with pytest.raises(JobError, match=r"sample 31 of the data is to blame, with the target 31 \("):
        SliceComputer(model, loss, data, CPU, seed=3)(1, Slice.whole(np.arange(SAMPLES)))


def test_a_second_attempt_has_the_same_random_numbers_and_changes_buffers_once() -> None:
    def once(limit: int, most: int | None) -> tuple[dict[str, Tensor], Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, CLASSES))
        compute = computer(model, FullAbove(limit), most=most)
        compute.changing = ["0.running_mean", "0.running_var", "0.num_batches_tracked"]
        compute(1, Slice.whole(np.arange(16)))
        return gradients(model), model[0].running_mean.clone()

    (first, mean), (second, again) = once(SAMPLES, 8), once(8, None)
    assert_close(first, second, 0.0)
    assert torch.equal(mean, again)


# --- Precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision_gives_float32_gradients_close_to_the_exact_ones(dtype: torch.dtype) -> None:
    model, indices = Net(), np.arange(30)
    loss = computer(model, dtype=dtype, most=8)(1, Slice.whole(indices)).loss
    right = expected(model, indices)
    assert_close(gradients(model), right, 0.03)
    with pytest.raises(AssertionError):
        assert_close(gradients(model), right, 1e-6)  # it was really computed in fewer bits
    assert loss == pytest.approx(cross_entropy(model, datasets.fetch(samples(), indices)).item(), rel=0.02)


def test_small_gradients_survive_float16() -> None:
    def tiny(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model, batch) * 1e-7

    model, indices = Net(), np.arange(30)
    computer(model, tiny, dtype=torch.float16)(1, Slice.whole(indices))
    found = {name: gradient * 1e7 for name, gradient in gradients(model).items()}
    assert_close(found, expected(model, indices), 0.03)


def test_where_float16_overflows_the_slice_is_computed_again_with_a_smaller_scale() -> None:
    def large(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model, batch) * 300

    model, indices, repeats = Net(), np.arange(30), list[int]()
    compute = computer(model, large, dtype=torch.float16, most=8)
    compute.on_repeat = lambda: repeats.append(1)
    compute(1, Slice.whole(indices))
    found = {name: gradient / 300 for name, gradient in gradients(model).items()}
    assert_close(found, expected(model, indices), 0.03)
    assert 0 < len(repeats) < 10
    before = len(repeats)
    compute(2, Slice.whole(indices))
    assert len(repeats) == before, "the scale is remembered"


def test_what_the_loss_itself_differentiates_by_parameters_is_not_divided_by_the_scale() -> None:
    indices, model, whole = np.arange(6), Net(), Net()

    def penalised(model: nn.Module, batch: Any) -> Tensor:
        loss = cross_entropy(model, batch)
        (slope,) = torch.autograd.grad(loss, model.head.weight, create_graph=True)
        return loss + 100 * slope.float().square().mean()

    computer(model, penalised, dtype=torch.float16)(1, Slice.whole(indices))
    computer(whole, penalised)(1, Slice.whole(indices))
    assert_close(gradients(model), gradients(whole), 0.03)


def test_a_loss_that_is_not_finite_is_told_apart_from_weights_that_are_not() -> None:
    model = Net()
    with pytest.raises(LossNotFinite) as caught:
        computer(model, lambda *given: cross_entropy(*given) / 0)(1212, Slice.whole(np.arange(3, 10)))
    expected = "the loss is inf in step 1,212 (7 samples: 3, 4, 5, 6, 7, ...); the weights are finite"
    assert caught.value.cause == expected
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    with pytest.raises(LossNotFinite) as caught:
        computer(model)(2, Slice.whole(np.array([8, 1])), "the run's slice 9")
    assert caught.value.cause == (
        "the weights are not finite: a gradient of the step before was not;"
        " the loss is nan in the run's slice 9 (2 samples: 8, 1)"
    )


def test_each_device_says_what_it_computes_in() -> None:
    assert devices.autocast_dtype(CPU, "fp32") == (None, "")
    assert devices.autocast_dtype(CPU, "bf16") == (torch.bfloat16, "autocast to bf16")
    dtype, note = devices.autocast_dtype(CPU, "fp16")
    assert dtype is torch.bfloat16
    assert "CPU has no fast fp16" in note
    assert devices.autocast_dtype(torch.device("cuda"), "fp16")[0] is torch.float16
    dtype, note = devices.autocast_dtype(torch.device("meta"), "bf16")
    assert dtype is None
    assert "fp32" in note


# --- Activation checkpointing ----------------------------------------------------------------------------------------


def kept_bytes(model: nn.Module, indices: np.ndarray) -> int:
    """Bytes of distinct memory that autograd keeps from forward for backward, parameters aside."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = cross_entropy(model, datasets.fetch(samples(), indices))
    loss.backward()
    return sum(kept.values())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_checkpointed_blocks_give_the_same_gradients_and_names_with_less_kept(dtype: torch.dtype | None) -> None:
    plain, spared, indices = Net(dropout=0.3), Net(dropout=0.3), np.arange(30)
    assert recompute.apply(spared) == 3
    assert list(spared.state_dict()) == list(plain.state_dict())
    losses = [computer(model, dtype=dtype, most=11)(1, Slice.whole(indices)) for model in (plain, spared)]
    assert losses[0] == losses[1]
    assert_close(gradients(spared), gradients(plain), 0.0)
    assert kept_bytes(spared, indices) < 0.4 * kept_bytes(plain, indices)


def test_blocks_are_the_parts_that_repeat() -> None:
    def kinds(model: nn.Module) -> Iterator[str]:
        return (type(block).__name__ for block in recompute.blocks(model))

    def layer() -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    assert list(kinds(Net())) == ["Block"] * 3
    assert list(kinds(nn.Sequential(nn.Sequential(layer(), layer()), nn.Linear(4, 4)))) == ["Sequential"] * 2
    assert list(kinds(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))) == []
    assert list(kinds(nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)), layer()))) == ["Sequential"]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    assert list(kinds(encoder)) == ["TransformerEncoderLayer"] * 2
