"""Weights in four bits, and adapters beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remote_agent.models.adapters import CannotAdapt, LoraLinear, adapt, merge
from remote_agent.models.nf4 import VALUES, Nf4Linear, dequantize, quantize

OFFSET = 0.9677083
"""Of the largest quantile, as the paper's authors chose it."""


def _quantile(p: Tensor) -> Tensor:
    return 2**0.5 * torch.erfinv(2 * p - 1)


def test_the_values_are_the_papers_quantiles() -> None:
    positive = _quantile(torch.linspace(OFFSET, 0.5, 9, dtype=torch.float64)[:-1])
    negative = -_quantile(torch.linspace(OFFSET, 0.5, 8, dtype=torch.float64)[:-1])
    expected = torch.cat([positive, negative, torch.zeros(1, dtype=torch.float64)]).sort().values
    torch.testing.assert_close(torch.tensor(VALUES).double(), expected / expected.max(), atol=2e-6, rtol=0)


def test_codes_are_the_nearest_values_two_a_byte() -> None:
    weight = torch.tensor(VALUES).repeat(8).view(2, 64) * torch.tensor([[3.0], [0.5]])
    codes, largest = quantize(weight)
    assert codes[:8].tolist() == [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF]
    assert largest.tolist() == [3.0, 0.5]
    assert torch.equal(dequantize(codes, largest, weight.shape, torch.float32), weight)


@pytest.mark.parametrize("shape", [(64, 64), (3, 5), (7, 33), (1, 1)])
def test_any_shape_comes_back_within_half_a_step(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    codes, largest = quantize(weight)
    assert codes.numel() == (weight.numel() + 1) // 2
    back = dequantize(codes, largest, weight.shape, torch.float32)
    assert float((back - weight).abs().max()) <= 0.16 * float(weight.abs().max())
    again, same = quantize(back)
    assert torch.equal(again, codes)
    assert torch.equal(same, largest)


def test_the_gradient_is_that_of_a_layer_with_the_rounded_weight() -> None:
    torch.manual_seed(2)
    linear = nn.Linear(33, 17)
    quantized = Nf4Linear(linear)
    rounded = nn.Linear(33, 17)
    with torch.no_grad():
        rounded.bias.copy_(linear.bias)
        rounded.weight.copy_(dequantize(quantized.codes, quantized.largest, linear.weight.shape, torch.float32))
    one, other = (torch.randn(4, 33, generator=torch.Generator().manual_seed(3)).requires_grad_() for _ in "ab")
    quantized(one).square().sum().backward()
    rounded(other).square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad)
    held = sum(each.numel() * each.element_size() for each in quantized.buffers())
    assert held <= 0.3 * 2 * linear.weight.numel()  # of bfloat16, with the blocks' magnitudes


def test_bitsandbytes_has_the_same_bytes() -> None:
    bitsandbytes: Any = pytest.importorskip("bitsandbytes.functional")
    weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(4))
    packed, state = bitsandbytes.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    codes, largest = quantize(weight)
    assert torch.equal(packed.view(-1), codes)
    assert torch.equal(state.absmax, largest)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(8, 16), "down": nn.Linear(16, 8)}) for _ in range(2))
        self.lm_head = nn.Linear(8, 11, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block["down"](torch.relu(block["up"](x)))
        result: Tensor = self.lm_head(x)
        return result


def test_adapters_alone_are_trained_and_begin_as_nothing() -> None:
    torch.manual_seed(5)
    model, ids = _Model(), torch.tensor([[1, 2, 3]])
    before = model(ids)
    adapt(model, four_bits=False, rank=4, alpha=8.0, targets=("up",))
    assert torch.equal(model(ids), before)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == ["blocks.0.up.lora_a", "blocks.0.up.lora_b", "blocks.1.up.lora_a", "blocks.1.up.lora_b"]
    model(ids).sum().backward()
    assert model.get_parameter("blocks.1.up.lora_b").grad is not None


def test_four_bits_are_for_all_linear_layers_but_the_output() -> None:
    model = adapt(_Model(), four_bits=True, rank=2, alpha=2.0)
    kinds = {name: type(module).__name__ for name, module in model.named_modules() if "Linear" in type(module).__name__}
    assert kinds["blocks.0.up"] == kinds["blocks.1.down"] == LoraLinear.__name__
    assert kinds["blocks.0.up.base"] == Nf4Linear.__name__
    assert kinds["lm_head"] == "Linear"
    assert not [name for name in model.state_dict() if "codes" in name]


def test_an_unknown_target_names_the_nearest() -> None:
    with pytest.raises(CannotAdapt, match="lora_targets=upp") as refused:
        adapt(_Model(), four_bits=False, rank=2, alpha=2.0, targets=("upp",))
    assert refused.value.hint == "did you mean up?"


class _Attending(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.up, self.block = nn.Linear(4, 8), block

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        found: Tensor = self.block(x, x, x)[0] if isinstance(self.block, nn.MultiheadAttention) else self.block(x)
        return found


def _blocks() -> list[nn.Module]:
    return [nn.MultiheadAttention(8, 2, batch_first=True), nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("block", [0, 1])
def test_torchs_own_attention_reads_the_weights_with_their_adapters(block: int, training: bool) -> None:
    """It never calls its output layer, and in evaluation a whole encoder layer calls none of its layers."""
    torch.manual_seed(6)
    model = _Attending(_blocks()[block]).train(training)
    x = torch.randn(2, 3, 4)
    before = model(x)
    adapt(model, four_bits=False, rank=2, alpha=2.0)
    torch.testing.assert_close(model(x), before)
    model(x).square().sum().backward()
    assert not [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
    changed = _with_other_adapters(model)
    with torch.no_grad():
        found = changed(x)
        assert not torch.allclose(found, before)
        torch.testing.assert_close(merge(changed)(x), found)


def _with_other_adapters(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lora_b"):
                parameter.normal_(std=0.3)
    return model


class _Experts(_Model):
    """As a mixture of experts in transformers: all experts' matrices are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.zeros(4, 8, 16))


def test_four_bits_are_refused_where_much_is_in_no_linear_layer() -> None:
    with pytest.raises(CannotAdapt, match=r"4\d% of the model would stay as it is, such as experts") as refused:
        adapt(_Experts(), four_bits=True, rank=2, alpha=2.0)
    assert "quantize=none" in refused.value.hint
    adapt(_Experts(), four_bits=False, rank=2, alpha=2.0)
