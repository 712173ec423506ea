"""Gives a worker a handle for the exchange of one step."""

from __future__ import annotations

import time
from functools import partial
from typing import Generic

import torch
from torch import Tensor

from remote_agent.training.shared.slices import WHOLE, Part
from remote_agent.training.wire.deadlines import STEP_S
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.shard_links import Awaited, ShardLinks
from remote_agent.training.wire.steps import Contribution, Timings


class Exchanging(Generic[Awaited]):
    """The exchange of one step, from a client's ``begin`` until :meth:`finish` returns.

    Attributes:
        contributed: the slices that this worker sends.
    """

    def __init__(self, carrier: ShardLinks[Awaited], incoming: Awaited, slices: int, samples: int) -> None:
        self.contributed: tuple[Contribution, ...] = ()
        self.incoming = incoming
        self._carrier, self._slices, self._samples = carrier, slices, samples
        self._begun = time.monotonic()
        self._bytes = carrier.bytes_moved()

    def is_cut(self, slices: int, samples: int) -> None:
        """Say so late how many slices and samples the step has; before the first contribution."""
        self._slices, self._samples = slices, samples

    def contribute(
        self,
        index: int,
        gradient: Tensor,
        weight: float | None = None,
        *,
        part: Part = WHOLE,
        feedback: bool = True,
    ) -> Contribution:
        """Send a slice's gradient as it is offered. A worker may send any number of slices, also none.

        Args:
            index: the slice's number, from 0.
            gradient: the SUM of the gradients of its samples: float32, shape ``(layout.numel,)``; do not change it
                before :meth:`finish` has returned.
            weight: weight of its samples in the step's mean; None: the same for every slice.
            part: the part of the slice; a relay sums the parts.
            feedback: False for a slice of which another worker may have sent a part: chunks that are not counted must
                not leave an error for error feedback.
        """
        layout, codec = self._carrier.layout, self._carrier.gradient_codec
        if gradient.shape != (layout.numel,) or gradient.dtype != torch.float32:
            raise ValueError(f"a gradient is one flat float32 buffer of {layout.numel} numbers")
        residual = self._carrier.feedback_for(gradient) if codec.feedback and feedback else None
        about = Header(
            Kind.GRADIENT,
            step=self.incoming.step,
            slice=index,
            slices=self._slices,
            samples=self._samples,
            weight=equal_weight(self._samples, self._slices) if weight is None else weight,
            part=part.number,
            parts=part.of,
        )
        contribution = Contribution(layout, about, gradient, codec, residual)
        contribution.ready = partial(self._carrier.push, contribution)
        self.contributed = (*self.contributed, contribution)
        return contribution

    def finish(self, deadline: float = STEP_S) -> Timings:
        """Wait until all new weights are here.

        Raises:
            StepIncomplete: they did not arrive within ``deadline`` seconds; the exchange stays open, so that the
                missing slice can be contributed and :meth:`finish` called again.
            FellBehind: the shards continued without this worker.
            ShardUnreachable: a shard is gone.
        """
        self._carrier.wait(self.incoming, deadline)
        now = time.monotonic()
        begun = min((one.begun for one in self.contributed if one.begun is not None), default=None)
        pushed = self._begun if begun is None else min(max(self._carrier.last_sent(), begun), now)
        before, after = self._bytes, self._carrier.bytes_moved()
        return Timings(
            push_s=0.0 if begun is None else pushed - begun,
            pull_s=now - pushed,
            bytes_out=after[0] - before[0],
            bytes_in=after[1] - before[1],
        )


def equal_weight(samples: int, slices: int) -> float:
    """The weight of each slice if all have the same; together they weigh as much as the samples."""
    return samples / max(1, slices)
