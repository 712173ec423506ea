"""Defines the codecs, which encode a flat float32 tensor for the network and decode it.

====== ==================== =================================================================================
name   bytes a number       what is lost
====== ==================== =================================================================================
fp32   4                    nothing
bf16   2                    rounding to 8 significant bits
int8   1 + 4/512 = 1.008    rounding to 1/254 of the largest magnitude among 512 neighbours (symmetric, one scale each)
====== ==================== =================================================================================

A number that is not finite stays visible: its decoded value is not finite either (with ``int8`` the whole block of
512). With *error feedback* (:func:`encode_with_feedback`) the encoder keeps the error and adds it to its next payload,
so that training does not lose it (Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et
al., "Error feedback fixes SignSGD and other gradient compression schemes", ICML 2019).

Codecs use only elementwise torch operations, each rounded once (IEEE 754), so that CPU and GPU, and all workers, decode
the same payload to bitwise the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from remote_agent.training.wire.errors import MalformedFrame
from remote_agent.training.wire.layout import Layout

INT8_BLOCK = 512
"""Numbers that share a scale."""

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


_BY_NAME: dict[str, Codec] = {codec.name: codec for codec in (Float32(), BFloat16(), BlockInt8())}


def create(name: str) -> Codec:
    """Return the codec of that name; raises KeyError if there is none."""
    return _BY_NAME[name]


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


# --- What all workers and shards agree on -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Codecs:
    """The codecs for gradients and for weights."""

    gradients: Codec
    weights: Codec

    def signature(self, layout: Layout) -> bytes:
        """Bytes that are the same at both ends of a connection if they agree on the cut and the codecs."""
        return layout.digest + f"{self.gradients.name},{self.weights.name}".encode()


EXACT = Codecs(Float32(), Float32())
"""Codecs that lose nothing."""


def decode(codec: Codec, payload: Tensor, out: Tensor) -> None:
    """Call :meth:`Codec.decode` for a payload from the network; raises MalformedFrame if it can't be one."""
    try:
        codec.decode(payload, out)
    except ValueError as error:
        raise MalformedFrame(f"a payload that is not {codec.name}: {error}") from error
