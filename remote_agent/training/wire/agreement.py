"""Defines what all workers and shards of a run must agree on; they compare it before they send anything else."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from remote_agent.training.wire.codecs import Codec, Float32
from remote_agent.training.wire.errors import MalformedFrame
from remote_agent.training.wire.layout import Layout


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
