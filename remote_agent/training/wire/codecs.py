"""Defines the codecs, which encode a flat float32 tensor for the network and decode it.

====== ==================== =================================================================================
name   bytes a number       what is lost
====== ==================== =================================================================================
fp32   4                    nothing
bf16   2                    rounding to 8 significant bits
int8   1 + 4/512 = 1.008    rounding to 1/254 of the largest magnitude among 512 neighbours (symmetric, one scale each)
topk   8 x fraction         all but the ``fraction`` of numbers that are largest in magnitude
====== ==================== =================================================================================

A number that is not finite stays visible: its decoded value is not finite either (with ``int8`` the whole block of
512). With *error feedback* (:func:`encode_with_feedback`) the encoder keeps the error and adds it to its next payload,
so that training does not lose it (Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et
al., "Error feedback fixes SignSGD and other gradient compression schemes", ICML 2019).

Codecs use only elementwise torch operations, each rounded once (IEEE 754), so that CPU and GPU, and all workers, decode
the same payload to bitwise the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from remote_agent.settings import CODECS as CODECS

INT8_BLOCK = 512
"""Numbers that share a scale."""

DEFAULT_TOPK_FRACTION = 0.01

_SCALE = (1 - 2**-22) / 127  # a little less than 1/127: the largest float32 must not decode to infinity
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # below it, 1/scale would overflow


class Codec(Protocol):
    """The interface of a codec. It has no state: the encoding side keeps the error."""

    name: str
    code: int
    """Number of the codec on the wire."""
    lossy: bool
    feedback: bool
    """Whether gradients need error feedback, since the codec loses much."""

    def size(self, count: int) -> int:
        """Bytes of the payload for ``count`` numbers."""

    def encode(self, values: Tensor) -> Tensor:
        """Encode ``values`` (float32, shape ``(n,)``) as uint8 of shape ``(size(n),)``, on the same device.

        It may share memory with ``values`` (``fp32`` does).
        """

    def decode(self, payload: Tensor, out: Tensor) -> None:
        """Decode ``payload`` into ``out`` (float32, shape ``(n,)``, same device).

        Raises:
            ValueError: no encoder makes such a payload.
        """


class Float32:
    """Sends the numbers unchanged; a payload is a view of them."""

    name, code, lossy, feedback = "fp32", 0, False, False

    def size(self, count: int) -> int:
        return 4 * count

    def encode(self, values: Tensor) -> Tensor:
        return values.contiguous().view(torch.uint8)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        out.copy_(payload.view(torch.float32))


class BFloat16:
    """Rounds numbers to bfloat16 (to nearest, ties to even); the relative error is at most 2**-8."""

    name, code, lossy, feedback = "bf16", 1, True, False

    def size(self, count: int) -> int:
        return 2 * count

    def encode(self, values: Tensor) -> Tensor:
        return values.to(torch.bfloat16).view(torch.uint8)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        out.copy_(payload.view(torch.bfloat16))


class BlockInt8:
    """Rounds numbers to multiples, -127 to 127, of a float32 scale for each block of :data:`INT8_BLOCK` numbers.

    The error is at most half a scale, and the scale is the block's largest magnitude / 127 (at least 1.2e-38). Payload:
    the scales, then one byte a number. See Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022.
    """

    name, code, lossy, feedback = "int8", 2, True, True

    def size(self, count: int) -> int:
        return count + 4 * _blocks(count)

    def encode(self, values: Tensor) -> Tensor:
        count = len(values)
        payload = torch.empty(self.size(count), dtype=torch.uint8, device=values.device)
        scales = payload[: 4 * _blocks(count)].view(torch.float32)
        levels = payload[4 * _blocks(count) :].view(torch.int8)
        for numbers, own, target in _by_block(count, values, scales, levels):
            # A NaN or infinity in a block makes the scale NaN or infinite, and with it all that is decoded.
            largest = torch.maximum(numbers.amax(1), numbers.amin(1).neg_())
            torch.clamp(largest.mul_(_SCALE), min=_SMALLEST_SCALE, out=own)
            target.copy_(torch.mul(numbers, own.reciprocal().unsqueeze_(1)).round_())
        return payload

    def decode(self, payload: Tensor, out: Tensor) -> None:
        count = len(out)
        scales = payload[: 4 * _blocks(count)].view(torch.float32)
        levels = payload[4 * _blocks(count) :].view(torch.int8)
        for target, own, source in _by_block(count, out, scales, levels):
            target.copy_(source)
            target.mul_(own.unsqueeze(1))


class TopK:
    """Sends the ``fraction`` of numbers with the largest magnitude, at least one; the others decode to zero.

    Payload: the positions (int32), then the numbers. See Stich et al., "Sparsified SGD with memory", NeurIPS 2018.
    """

    name, code, lossy, feedback = "topk", 3, True, True

    def __init__(self, fraction: float = DEFAULT_TOPK_FRACTION) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"the fraction of numbers that topk keeps is above 0 and at most 1, not {fraction}")
        self.fraction = fraction

    def size(self, count: int) -> int:
        return 8 * self._kept(count)

    def _kept(self, count: int) -> int:
        return min(count, math.ceil(self.fraction * count))

    def encode(self, values: Tensor) -> Tensor:
        # torch orders NaN above all numbers, so it is among those kept.
        positions = values.abs().topk(self._kept(len(values)), sorted=False).indices
        return torch.cat((positions.to(torch.int32).view(torch.uint8), values[positions].view(torch.uint8)))

    def decode(self, payload: Tensor, out: Tensor) -> None:
        kept = self._kept(len(out))
        positions = payload[: 4 * kept].view(torch.int32).to(torch.int64)
        if kept and not 0 <= int(positions.min()) <= int(positions.max()) < len(out):
            raise ValueError(f"a position outside of {len(out)} numbers")
        out.zero_()
        out[positions] = payload[4 * kept :].view(torch.float32)


def create(name: str, *, topk_fraction: float = DEFAULT_TOPK_FRACTION) -> Codec:
    """Make the codec of that name; raises ValueError if there is none, or the fraction is invalid."""
    made = _MADE.get(name)
    if made is None:
        raise ValueError(f"there is no codec {name!r}; there are {', '.join(CODECS)}")
    return made(topk_fraction)


_MADE: dict[str, Callable[[float], Codec]] = {
    "fp32": lambda _: Float32(),
    "bf16": lambda _: BFloat16(),
    "int8": lambda _: BlockInt8(),
    "topk": TopK,
}


def register(name: str, make: Callable[[], Codec]) -> None:
    """Add a codec; a job's file calls this, and the codec is sent to workers and servers with the run.

    Args:
        name: the value of the setting ``codec``.
        make: makes the codec. It has this ``name``, and a ``code`` that no other codec has.
    """
    _MADE[name] = lambda _: make()
    CODECS[name] = None


def encode_with_feedback(codec: Codec, values: Tensor, residual: Tensor) -> Tensor:
    """Encode ``values`` plus the ``residual`` of earlier payloads, and store this payload's error in ``residual``.

    Over any number of rounds, the sum of the decoded payloads and the last residual equals the sum of the values (to
    float32 rounding).

    Args:
        values: float32, shape ``(n,)``; unchanged.
        residual: float32, shape ``(n,)``, same device; initially zero, changed in place. If some numbers of a round are
            not finite, the payload shows it, and the residual is reset to zero.

    Returns:
        The payload, as of :meth:`Codec.encode`; with a lossy codec it never shares memory with the arguments.
    """
    residual.add_(values)
    payload = codec.encode(residual)
    decoded = torch.empty_like(residual)
    codec.decode(payload, decoded)
    residual.sub_(decoded)
    if not torch.isfinite(residual.sum()):
        residual.zero_()
    return payload


def _blocks(count: int) -> int:
    return -(-count // INT8_BLOCK)


def _by_block(count: int, numbers: Tensor, scales: Tensor, levels: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
    """The same blocks of all three, as (rows of numbers, scales, rows of levels): whole blocks, then the rest."""
    whole = count // INT8_BLOCK
    end = whole * INT8_BLOCK
    parts = []
    if whole:
        parts.append((numbers[:end].view(-1, INT8_BLOCK), scales[:whole], levels[:end].view(-1, INT8_BLOCK)))
    if end < count:
        parts.append((numbers[end:].unsqueeze(0), scales[whole:], levels[end:].unsqueeze(0)))
    return tuple(parts)
