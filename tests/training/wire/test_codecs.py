"""What travels: how much a codec loses, what it costs, and that nothing of it is lost in the long run."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from remote_agent.settings import CODECS
from remote_agent.training.wire import codecs
from remote_agent.training.wire.codecs import INT8_BLOCK, Codec

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
LOSSY = [name for name in CODECS if name != "fp32"]
NOT_NUMBERS = [math.nan, math.inf, -math.inf]
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def decoded(codec: Codec, payload: Tensor, count: int) -> Tensor:
    out = torch.full((count,), 7.0, device=payload.device)
    codec.decode(payload, out)
    return out


def round_trip(codec: Codec, values: Tensor) -> Tensor:
    payload = codec.encode(values)
    assert payload.dtype == torch.uint8
    assert len(payload) == codec.size(len(values))
    return decoded(codec, payload, len(values))


def bound(name: str, values: Tensor) -> Tensor:
    """The largest error that the codec's documentation allows, for each number."""
    if name == "fp32":
        return torch.zeros(len(values), dtype=torch.float64)
    if name == "bf16":
        return values.abs().double() * 2**-8 + 2**-133
    padded = torch.nn.functional.pad(values.double().abs(), (0, -len(values) % INT8_BLOCK))
    scales = (padded.view(-1, INT8_BLOCK).amax(1) / 127).clamp(min=1.2e-38)
    return scales.repeat_interleave(INT8_BLOCK)[: len(values)] / 2 * (1 + 1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("count", [0, 1, 2, 511, 512, 513, 1024, 5003])
def test_every_length_comes_back_within_the_stated_error(name: str, count: int, device: str) -> None:
    values = (
        torch.randn(count, generator=torch.Generator().manual_seed(count))
        * torch.logspace(-6, 6, max(count, 1))[:count]
    )
    back = round_trip(codecs.create(name), values.to(device)).cpu()
    assert ((back.double() - values.double()).abs() <= bound(name, values)).all()


@settings(max_examples=60, deadline=None)
@given(values=st.lists(FLOATS, min_size=1, max_size=40), name=st.sampled_from(["fp32", "bf16", "int8"]))
def test_numbers_of_any_size_come_back_within_the_stated_error(values: list[float], name: str) -> None:
    tensor = torch.tensor(values)
    if name == "bf16":
        tensor = tensor.clamp(-3e38, 3e38)  # bfloat16's largest number is a little below float32's
    back = round_trip(codecs.create(name), tensor)
    assert ((back.double() - tensor.double()).abs() <= bound(name, tensor)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", NOT_NUMBERS)
@pytest.mark.parametrize("name", CODECS)
def test_what_is_not_finite_stays_visible(name: str, bad: float, device: str) -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(2)).to(device)
    values[777] = bad
    back = round_trip(codecs.create(name), values)
    assert not torch.isfinite(back[777])
    outside = torch.ones(2000, dtype=torch.bool, device=device)
    outside[512:1024] = False
    assert torch.isfinite(back[outside]).all(), "it must not spread beyond its block"


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 1500),
    rounds=st.integers(1, 30),
    name=st.sampled_from(LOSSY),
)
def test_with_error_feedback_what_arrives_adds_up_to_the_truth(seed: int, count: int, rounds: int, name: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    codec = codecs.create(name)
    truth, arrived = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    residual = torch.zeros(count)
    for _ in range(rounds):
        values = torch.randn(count, generator=generator)
        before = values.clone()
        payload = codecs.encode_with_feedback(codec, values, residual)
        assert torch.equal(values, before)
        truth += values.double()
        arrived += decoded(codec, payload, count).double()
    assert torch.allclose(arrived + residual.double(), truth, atol=1e-5 * rounds, rtol=0)


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_error_feedback_does_not_grow(name: str) -> None:
    codec, residual = codecs.create(name), torch.zeros(4096)
    generator = torch.Generator().manual_seed(3)
    for _ in range(200):
        codecs.encode_with_feedback(codec, torch.randn(4096, generator=generator), residual)
    assert residual.abs().max() < 0.03


@pytest.mark.parametrize("bad", NOT_NUMBERS)
@pytest.mark.parametrize("name", LOSSY)
def test_a_round_that_is_not_finite_does_not_poison_the_next(name: str, bad: float) -> None:
    codec, residual = codecs.create(name), torch.zeros(1000)
    values = torch.ones(1000)
    values[5] = bad
    assert not torch.isfinite(decoded(codec, codecs.encode_with_feedback(codec, values, residual), 1000)).all()
    assert torch.isfinite(residual).all()
    payload = codecs.encode_with_feedback(codec, torch.ones(1000), residual)
    assert torch.isfinite(decoded(codec, payload, 1000)).all()


def test_wire_bytes_are_as_stated() -> None:
    count = 1 << 20
    sizes = {name: codecs.create(name).size(count) / count for name in CODECS}
    assert sizes == {"fp32": 4, "bf16": 2, "int8": 1 + 4 / 512}
