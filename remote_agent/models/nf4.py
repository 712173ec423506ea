"""Weights in four bits: blockwise NormalFloat (NF4) of Dettmers et al., "QLoRA", 2023 (arXiv:2305.14314).

A weight's numbers are taken in their order in blocks of 64. Each is divided by the largest magnitude of its block and
stored as the nearest of 16 values, quantiles of a normal distribution: 4 bits, and a float32 for each block, 0.5625
bytes a number. Two numbers make a byte, the first in its higher half. That is bitsandbytes' form, byte for byte.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_PLAIN = frozenset({"FalconLinear"})
"""Classes that have a forward of their own and compute what torch's layer computes."""


def is_linear(module: nn.Module) -> bool:
    """Whether it is one; a class with another forward may make anything of its weight (Llama 4's router)."""
    kind = type(module)
    is_plain = isinstance(module, nn.Linear) and (kind.forward is nn.Linear.forward or kind.__name__ in _PLAIN)
    return is_plain or _is_conv1d(module)


def _is_conv1d(module: nn.Module) -> bool:
    made_by = sys.modules.get("transformers.pytorch_utils")  # a model that has such layers has loaded it
    return made_by is not None and isinstance(module, made_by.Conv1D)


def is_transposed(layer: nn.Module) -> bool:
    """Whether the weight of a linear layer, or of one in its place, is of shape ``(in_features, out_features)``."""
    return _is_conv1d(layer) or bool(getattr(layer, "transposed", False))


def matrix_of(layer: nn.Module) -> Tensor:
    """The matrix of a linear layer, ``(out_features, in_features)``."""
    weight: Any = layer.weight
    return turned(layer, weight)


def turned(layer: nn.Module, matrix: Tensor) -> Tensor:
    """A matrix in the form of the layer's weight, or such a weight as a matrix."""
    return matrix.t() if is_transposed(layer) else matrix


def put_matrix(layer: nn.Module, matrix: Tensor) -> None:
    """Have a frozen ``matrix``, ``(out_features, in_features)``, in the place of the layer's own."""
    layer.weight = nn.Parameter(turned(layer, matrix).contiguous(), requires_grad=False)


def blank(out_features: int, in_features: int, *, transposed: bool) -> nn.Module:
    """A layer of that shape without a bias, whose weight is to be put."""
    if not transposed:
        return nn.Linear(in_features, out_features, bias=False)
    made: nn.Module = sys.modules["transformers.pytorch_utils"].Conv1D(out_features, in_features)
    return made


BLOCK = 64

DIGEST = "nf4_digest"
"""The name of a layer's digest in state dicts."""

_DIGEST_BYTES = 16

VALUES = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""What 4 bits stand for: of each half of a normal distribution so many quantiles that zero is one of them."""


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight in four bits.

    Args:
        weight: of any shape.

    Returns:
        Its codes, uint8 of shape ``(ceil(numel / 2),)``, and the blocks' largest magnitudes, float32.
    """
    values = torch.tensor(VALUES, dtype=torch.float32, device=weight.device)
    middles = (values[1:] + values[:-1]) / 2
    flat = weight.detach().reshape(-1).float()
    padded = functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    largest = padded.abs().amax(1)
    scaled = padded / largest.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    codes = torch.bucketize(scaled, middles).to(torch.uint8).view(-1)[: flat.numel() + flat.numel() % 2]
    return (codes[::2] << 4) | codes[1::2], largest


def dequantize(codes: Tensor, largest: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The weight that :func:`quantize` made ``codes`` and ``largest`` of, nearly."""
    pairs = torch.index_select(_pairs(codes.device), 0, codes.int()).view(torch.float32)
    flat = functional.pad(pairs, (0, -pairs.numel() % BLOCK)) if pairs.numel() % BLOCK else pairs
    blocks = flat.view(-1, BLOCK) * largest[:, None]
    return blocks.view(-1)[: shape.numel()].view(shape).to(dtype)


@functools.cache
def _pairs(device: torch.device) -> Tensor:
    """The two values of each byte, taken together as one number of 8 bytes: so a byte is one look-up.

    It is made once for each device, since bringing numbers to a GPU waits for all work given to it.
    """
    with torch.inference_mode(False):
        values = torch.tensor(VALUES, dtype=torch.float32)
        both = torch.stack((values.repeat_interleave(16), values.repeat(16)), dim=1)
        return both.view(torch.int64).view(-1).to(device)


def _digest(codes: Tensor, largest: Tensor) -> Tensor:
    if codes.is_meta:
        return torch.empty(_DIGEST_BYTES, dtype=torch.uint8, device="meta")
    made = hashlib.blake2b(codes.cpu().numpy().data, digest_size=_DIGEST_BYTES)
    made.update(largest.cpu().numpy().data)
    return torch.tensor(list(made.digest()), dtype=torch.uint8)


def is_other(one: Tensor, other: Tensor) -> bool:
    """Whether two digests are of different weights."""
    return not torch.equal(one.cpu(), other.cpu())


def other_base(name: str) -> str:
    """What there is to say of the digest ``name`` if it is that of other weights."""
    layer = name.removesuffix(DIGEST).strip(".")
    return f"the frozen weights of {layer} (in four bits) differ: give each host the same files of the model"


class _Multiply(torch.autograd.Function):
    """``x @ weight.T``; backward makes the weight from its codes again, instead of keeping it."""

    @staticmethod
    def forward(context: Any, x: Tensor, codes: Tensor, largest: Tensor, shape: torch.Size) -> Tensor:
        context.save_for_backward(codes, largest)
        context.shape = shape
        return functional.linear(x, dequantize(codes, largest, shape, x.dtype))

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        codes, largest = context.saved_tensors
        (gradient,) = gradients
        return gradient @ dequantize(codes, largest, context.shape, gradient.dtype), None, None, None


class Nf4Linear(nn.Module):
    """A linear layer whose weight is frozen, and held in four bits. Its bias is as it was, and frozen.

    The codes are in no state dict: they are made from the weights that the job's model begins with. Their digest is, so
    that adapters never come to stand beside another base than the one that they were trained with.

    Args:
        layer: torch's, or a ``Conv1D``; see :mod:`~remote_agent.models.linear`.
    """

    codes: Tensor
    largest: Tensor
    nf4_digest: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        matrix = matrix_of(layer)
        self.shape, self.transposed = matrix.shape, is_transposed(layer)
        codes, largest = quantize(matrix)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("largest", largest, persistent=False)
        self.register_buffer(DIGEST, _digest(codes, largest))
        self.has_bias = "bias" in dict(layer.named_parameters())
        bias: Any = layer.bias
        self.bias = bias

    @property
    def matrix(self) -> Tensor:
        """``(out_features, in_features)``, in float32."""
        return dequantize(self.codes, self.largest, self.shape, torch.float32)

    @property
    def weight(self) -> Tensor:
        """For code that reads the layer's weight in the place of calling it."""
        return turned(self, self.matrix)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        result: Tensor = _Multiply.apply(x, self.codes, self.largest, self.shape)  # type: ignore[no-untyped-call]
        return result + self.bias.to(result.dtype) if self.has_bias else result

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        *_, missing, _, errors = others
        given = state_dict.get(prefix + DIGEST)
        if given is not None and given.device.type != "meta" and is_other(given, self.nf4_digest):
            errors.append(other_base(prefix + DIGEST))
        super()._load_from_state_dict(state_dict, prefix, *others)
        if prefix + DIGEST in missing:
            missing.remove(prefix + DIGEST)  # state dicts had none before

    def dense(self) -> nn.Module:
        """A layer as the one that was quantized, with the weight that this one has, in float32."""
        plain = blank(*self.shape, transposed=self.transposed)
        put_matrix(plain, self.matrix)
        if self.has_bias:
            plain.bias = self.bias
        return plain
