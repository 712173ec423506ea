"""Applies a chunk's mean gradient on a shard: the optimizer's step, one chunk at a time.

An optimizer whose rule is elementwise (SGD, Adam, AdamW, RMSprop, Adagrad, Lion, ...) gives the same numbers chunk by
chunk as for the whole model. One that looks at a parameter's shape or at all of it (LBFGS, Shampoo, LAMB, Adafactor,
Muon) does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from remote_agent.training.checkpoint import optimizer_state
from remote_agent.training.shared import optimizer_options
from remote_agent.training.shared.average import EMA, WeightAverage
from remote_agent.training.wire.layout import Layout

MakeOptimizer = Callable[[int, nn.Parameter], torch.optim.Optimizer]
"""A function that makes an optimizer over a chunk, from the parameter group's number and the chunk."""


class OptimizerUpdate:
    """A torch optimizer for each chunk. It is called for one chunk from one thread at a time, for several at once.

    Args:
        make: makes an optimizer for a chunk of a parameter group.
        decay: of the weights' moving average; 0: none is kept.
    """

    def __init__(self, layout: Layout, make: MakeOptimizer, decay: float = 0.0) -> None:
        self._layout = layout
        self._make = make
        self._average = WeightAverage(decay)
        self._chunks: dict[int, tuple[nn.Parameter, torch.optim.Optimizer]] = {}

    def bind(self, chunk: int, weights: Tensor) -> None:
        """Use ``weights`` (float32, flat) as the chunk's memory; call it before the first step."""
        parameter = nn.Parameter(weights)
        self._chunks[chunk] = (parameter, self._make(self._layout.chunks[chunk].group, parameter))

    def apply(self, chunk: int, gradient: Tensor, options: bytes = b"") -> None:
        """Change the chunk's weights in place by its mean ``gradient`` (float32, flat; may be overwritten).

        ``options``: what the scheduler has set in the step, encoded; see :mod:`.optimizer_options`.
        """
        parameter, optimizer = self._chunks[chunk]
        if options:
            given = optimizer_options.decoded(options)[self._layout.chunks[chunk].group]
            for group in optimizer.param_groups:
                optimizer_options.into_group(group, given)
        parameter.grad = gradient
        optimizer.step()
        parameter.grad = None
        self._average.update((parameter,))

    def state(self, chunk: int) -> Mapping[str, Tensor]:
        """The optimizer's state for the chunk, by name."""
        parameter, optimizer = self._chunks[chunk]
        entries: Mapping[str, Any] = optimizer.state_dict()["state"].get(0, {})
        kept = {name: torch.as_tensor(value).detach().clone() for name, value in entries.items() if value is not None}
        kept = {
            optimizer_state.named(name, value, parameter) if isinstance(entries[name], Tensor) else name: value
            for name, value in kept.items()
        }
        return kept | self._average.of(parameter)

    def load_state(self, chunk: int, state: Mapping[str, Tensor]) -> None:
        """Load a state that :meth:`state` returned elsewhere."""
        parameter, optimizer = self._chunks[chunk]
        self._average.take(parameter, state.get(EMA))
        own = {name: tensor for name, tensor in state.items() if name != EMA}
        optimizer_state.load(optimizer, {0: own} if own else {})
