"""What only a GPU of NVIDIA's can show: the engine's parts on it, beside the same on the CPU. Left out without one."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.models.adapters import adapt
from remote_agent.models.nf4 import Nf4Linear, dequantize, quantize
from remote_agent.sampling import nvidia
from remote_agent.settings import CODECS
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets
from remote_agent.training.shared.audit import Cause, other_machine
from remote_agent.training.shared.flat import FlatTensors
from remote_agent.training.shared.messages import Slice
from remote_agent.training.wire import codecs
from remote_agent.training.worker.device import backend
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device.audit import Auditor
from remote_agent.training.worker.device.compute import FIRST, SliceComputer
from remote_agent.training.worker.device.profiling import Profiler
from tests.training.pipelines import LocalPipeline, assert_close, plain
from tests.training.worker.test_stage import Job

if not torch.cuda.is_available():
    pytest.skip("torch sees no NVIDIA GPU here", allow_module_level=True)

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
SAMPLES = 48
MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions and products in all the bits of float32, as on the CPU; cuDNN's default is TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


# --- Models of several kinds, each with data and loss ----------------------------------------------------------------


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def _labels(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, (SAMPLES, *shape), generator=torch.Generator().manual_seed(3))


class Recurrent(nn.Module):
    """Tokens to the class of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.cell, self.out = nn.Embedding(30, 16), nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, ids: Tensor) -> Any:
        return self.out(self.cell(self.tokens(ids))[0][:, -1])


def perceptron() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 5)), _random(SAMPLES, 32)


def convolutions() -> tuple[nn.Module, Any]:
    layers = nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.GroupNorm(4, 32)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 5)), _random(SAMPLES, 3, 16, 16)


def transformer() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(body, nn.Flatten(), nn.Linear(12 * 32, 5)), _random(SAMPLES, 12, 32)


def recurrent() -> tuple[nn.Module, Any]:
    return Recurrent(), _labels(30, 9)


def upsampled() -> tuple[nn.Module, Any]:
    """Its backward adds up in any order on a GPU."""
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Upsample(scale_factor=3, mode="bilinear")
    return nn.Sequential(*layers, nn.Conv2d(8, 4, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 5)), _random(
        SAMPLES, 3, 16, 16
    )


KINDS = pytest.mark.parametrize("make", [perceptron, convolutions, transformer, recurrent, upsampled])

Make = Callable[[], tuple[nn.Module, Any]]


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def computer(
    make: Make, device: torch.device, loss: Any = cross_entropy, **options: Any
) -> tuple[nn.Module, SliceComputer]:
    torch.manual_seed(1)
    model, x = make()
    model = model.train().to(device)
    data = datasets.as_dataset((x, _labels(5)))
    return model, SliceComputer(model, loss, data, device, seed=3, **options)


def gradient(model: nn.Module) -> Tensor:
    return torch.cat(
        [each.grad.detach().cpu().double().view(-1) for each in model.parameters() if each.grad is not None]
    )


def error(found: Tensor, right: Tensor) -> float:
    return float((found - right).norm() / right.norm())


def of_slice(make: Make, device: torch.device, **options: Any) -> tuple[float, Tensor]:
    """The loss and the gradient of two thirds of a batch."""
    model, compute = computer(make, device, **options)
    indices = np.arange(32)
    loss = compute(1, Slice(index=0, indices=indices, total=SAMPLES, begin=0)).loss
    return loss, gradient(model)


# --- The device ------------------------------------------------------------------------------------------------------


def test_the_gpu_is_chosen_where_any_will_do() -> None:
    assert devices.find(devices.ANY_GPU) == devices.find("cuda") == GPU
    assert backend.of(GPU).title(GPU) == torch.cuda.get_device_name(0)


def test_the_probe_and_the_sampler_see_what_torch_sees() -> None:
    probe = subprocess.run(
        [sys.executable, ROOT / "remote_agent/probe.py"], capture_output=True, text=True, timeout=60, check=True
    )
    (card,) = json.loads(probe.stdout)["accelerators"]
    seen = torch.cuda.get_device_properties(0)
    assert (card["kind"], card["index"], card["name"]) == ("cuda", 0, seen.name)
    assert card["capability"] == f"{seen.major}.{seen.minor}"
    assert card["memory_bytes"] == pytest.approx(seen.total_memory, rel=0.05)
    held = torch.zeros(512 * MIB // 4, device=GPU)
    (sample,) = [each for each in nvidia.read() if each.device == "cuda:0"]
    assert sample.memory_used is not None
    assert sample.memory_used >= held.nbytes
    assert sample.memory_total == pytest.approx(seen.total_memory, rel=0.05)
    assert sample.power_w is None or sample.power_w > 0


# --- Gradients -------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("most", [None, 5])
def test_a_slice_has_the_gradient_that_it_has_on_the_cpu(make: Make, most: int | None) -> None:
    loss, found = of_slice(make, GPU, most=most)
    right_loss, right = of_slice(make, CPU)
    assert loss == pytest.approx(right_loss, rel=1e-5)
    assert error(found, right) <= 1e-5


@KINDS
@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 3e-2), (torch.float16, 5e-3)])
def test_half_precision_gives_that_gradient_nearly(make: Make, dtype: torch.dtype, most: float) -> None:
    assert backend.of(GPU).has_bfloat16(GPU)
    loss, found = of_slice(make, GPU, dtype=dtype)
    right_loss, right = of_slice(make, CPU)
    assert loss == pytest.approx(right_loss, rel=2e-2)
    assert 0 < error(found, right) <= most


def test_float16_that_overflows_is_computed_again_with_a_smaller_scale() -> None:
    def steep() -> tuple[nn.Module, Any]:
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5))
        return model, 40 * _random(SAMPLES, 32)

    model, compute = computer(steep, GPU, dtype=torch.float16)
    indices = np.arange(32)
    for step in range(1, 4):
        compute(step, Slice(index=0, indices=indices, total=SAMPLES, begin=0))
        assert error(gradient(model), of_slice(steep, CPU)[1]) <= 2e-2
    scale = compute._scale
    assert scale is not None
    assert scale.value < FIRST


# --- The measurement and the audit -----------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_no_loss_is_judged_by_the_gpus_rounding(make: Make, dtype: torch.dtype | None) -> None:
    """With TF32, as cuDNN has it by default, and sums in any order; neither alone nor beside a CPU."""
    found = Auditor(*computer(make, GPU, dtype=dtype)).alone(np.arange(SAMPLES))
    assert found.finding is None
    assert other_machine(found, Auditor(*computer(make, CPU)).whole(found.indices), "cpu") is None


def dropout() -> tuple[nn.Module, Any]:
    layers = nn.Linear(32, 64), nn.Dropout(0.3), nn.GELU(), nn.Linear(64, 5)
    return nn.Sequential(*layers), _random(SAMPLES, 32)


def attention_with_dropout() -> tuple[nn.Module, Any]:
    body = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    return nn.Sequential(body, nn.Flatten(), nn.Linear(12 * 32, 5)), _random(SAMPLES, 12, 32)


def noise(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, (batch[0] + torch.randn_like(batch[0]), batch[1]))


@pytest.mark.parametrize("make", [dropout, attention_with_dropout])
@pytest.mark.parametrize("loss", [cross_entropy, noise])
def test_a_gpu_beside_a_cpu_draws_the_same_numbers_for_an_audit(make: Make, loss: Any) -> None:
    found = Auditor(*computer(make, CPU, loss=loss)).alone(np.arange(SAMPLES))
    assert found.finding is None
    other = Auditor(*computer(make, GPU, loss=loss)).whole(found.indices, evaluating=found.evaluating)
    assert other_machine(found, other, "gpu") is None


@pytest.mark.parametrize("layer", [0, 3])
def test_a_gpu_with_another_model_or_a_wrong_backward_is_found(layer: int) -> None:
    found = Auditor(*computer(perceptron, CPU)).alone(np.arange(SAMPLES))
    model, compute = computer(perceptron, GPU)
    hooked = model[layer].weight.register_hook(lambda given: given * 0.5)  # type: ignore[index]
    finding = other_machine(found, Auditor(model, compute).whole(found.indices), "gpu")
    assert finding is not None
    assert finding.cause is Cause.MACHINES_DIFFER
    hooked.remove()
    model[1] = nn.ReLU()  # type: ignore[operator]
    assert other_machine(found, Auditor(model, compute).whole(found.indices), "gpu") is not None


def test_what_a_sample_takes_is_found_within_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    width = 1 << 16

    def wide() -> tuple[nn.Module, Any]:
        return nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 5)), _random(SAMPLES, 32).repeat(200, 1)

    free = 1 << 30
    monkeypatch.setattr(backend.Cuda, "free_bytes", lambda self, device: float(free))
    torch.manual_seed(1)
    model, x = wide()
    model = model.to(GPU)
    data = datasets.as_dataset((x, _labels(5).repeat(200)))
    compute = SliceComputer(model, cross_entropy, data, GPU, seed=3)
    profiler = Profiler(compute, model, FlatTensors(model, GPU), GPU, np.arange(len(x)))
    profiler.measure((2, 256), 0.0, len(x))
    assert compute.most is not None
    before = torch.cuda.memory_allocated(GPU)
    torch.cuda.reset_peak_memory_stats(GPU)
    compute.compute(1, Slice.whole(np.arange(compute.most)))
    taken = torch.cuda.max_memory_allocated(GPU) - before
    assert 0.6 * free <= taken <= free


def test_memory_that_is_full_makes_parts_of_a_slice() -> None:
    """The process may use a small part of the GPU, and the slice would need more; the gradient is the same."""
    total = torch.cuda.get_device_properties(0).total_memory
    width = 1 << 16

    def wide() -> tuple[nn.Module, Any]:
        return nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 5)), _random(SAMPLES, 32).repeat(100, 1)

    torch.manual_seed(1)
    model, x = wide()
    right = copy.deepcopy(model)
    y = _labels(5).repeat(100)
    cross_entropy(right, (x, y)).backward()
    model = model.to(GPU)
    torch.cuda.empty_cache()
    compute = SliceComputer(model, cross_entropy, datasets.as_dataset((x, y)), GPU, seed=3)
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 30)) / total)
        compute(1, Slice.whole(np.arange(len(x))))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert compute.reduced()
    assert error(gradient(model), gradient(right)) <= 1e-4


def test_random_numbers_of_a_slice_are_the_same_again() -> None:
    def dropping() -> tuple[nn.Module, Any]:
        return nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.5), nn.Linear(64, 5)), _random(SAMPLES, 32)

    (_, one), (_, other) = (of_slice(dropping, GPU) for _ in range(2))
    assert torch.equal(one, other)


# --- Codecs and four bits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("count", [1, 511, 100_003])
def test_a_codec_gives_the_cpus_bytes_and_the_cpus_numbers(name: str, count: int) -> None:
    values = _random(count) * torch.logspace(-30, 30, count)
    codec = codecs.create(name)
    one, other = codec.encode(values), codec.encode(values.to(GPU))
    assert torch.equal(one, other.cpu())
    for payload in (one, other.cpu()):
        here, there = torch.empty(count), torch.empty(count, device=GPU)
        codec.decode(payload, here)
        codec.decode(payload.to(GPU), there)
        assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("name", CODECS)
def test_what_is_not_finite_stays_so_through_a_codec_on_the_gpu(name: str) -> None:
    values = _random(2000)
    values[7], values[700] = float("inf"), float("nan")
    codec, found = codecs.create(name), torch.empty(2000, device=GPU)
    codec.decode(codec.encode(values.to(GPU)), found)
    assert not found[7].isfinite()
    assert not found[700].isfinite()


def test_four_bits_are_the_same_bytes() -> None:
    weight = _random(257, 515)
    codes, largest = quantize(weight)
    there, also = quantize(weight.to(GPU))
    assert torch.equal(codes, there.cpu())
    assert torch.equal(largest, also.cpu())
    back = dequantize(codes, largest, weight.shape, torch.float32)
    assert torch.equal(back, dequantize(there, also, weight.shape, torch.float32).cpu())


def test_bitsandbytes_has_the_same_bytes_on_the_gpu() -> None:
    bitsandbytes: Any = pytest.importorskip("bitsandbytes.functional")
    weight = _random(256, 512).to(GPU)
    packed, state = bitsandbytes.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    codes, largest = quantize(weight)
    assert torch.equal(packed.view(-1), codes)
    assert torch.equal(state.absmax, largest)
    again = bitsandbytes.dequantize_4bit(packed, state)
    assert torch.equal(again, dequantize(codes, largest, weight.shape, torch.float32))


@pytest.mark.usefixtures("float32")
def test_adapters_beside_four_bits_train_as_on_the_cpu() -> None:
    gradients = []
    for device in (CPU, GPU):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 5))
        adapt(model, four_bits=True, rank=4, alpha=8.0, targets=("0", "2"))
        model.to(device)
        assert any(isinstance(each, Nf4Linear) for each in model.modules())
        data = datasets.as_dataset((_random(SAMPLES, 64), _labels(5)))
        SliceComputer(model, cross_entropy, data, device, seed=3)(1, Slice.whole(np.arange(SAMPLES)))
        gradients.append(gradient(model))
    assert error(*reversed(gradients)) <= 1e-5


# --- Stages ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize(("optimizer", "bounds"), [("sgd", (0, 2, 6)), ("adamw", (0, 1, 5, 6))])
def test_stages_on_a_gpu_give_a_plain_loops_weights(optimizer: str, bounds: tuple[int, ...]) -> None:
    job = Job(optimizer=optimizer)
    config = TrainingConfig(strategy="pipeline", num_iterations=20, batch_size=24, seed=7, micro_batch=5)
    with LocalPipeline(job, config, bounds, device=GPU) as pipeline:
        assert_close(pipeline.train(20), plain(job, config, 20))
