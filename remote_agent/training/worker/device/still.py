"""Notices that the job's code begins to change state of the model that it left alone in the measurement.

A teacher that follows from step 1,000 on, or a target network that is copied every 100 steps: each worker would change
a copy of its own. Only some numbers of each tensor are compared, since that is done for each slice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from remote_agent.training.errors import StateChanged
from remote_agent.training.shared import flat

CHANGES_HINT = "use strategy=sync or strategy=allreduce, which keep such state the same on all devices"
NUMBERS = 100
"""Of each tensor, that are compared."""


class Still:
    """The buffers and frozen parameters of a model but those that are ``changing``."""

    def __init__(self, model: nn.Module, changing: Collection[str]) -> None:
        self._by_type: dict[torch.dtype, dict[str, Tensor]] = {}
        for name, tensor in flat.state(model).items():
            is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_meta
            if name not in changing and is_plain and tensor.numel():
                self._by_type.setdefault(tensor.dtype, {})[name] = tensor

    def look(self) -> list[Tensor]:
        """Some numbers of all of them, as bytes: a tensor for each type."""
        some = [[flat.some(tensor, NUMBERS) for tensor in each.values()] for each in self._by_type.values()]
        return [torch.cat(each).cpu().view(torch.uint8) for each in some]

    def check(self, before: Sequence[Tensor], whose: str = "the model's code") -> None:
        """Raise StateChanged if something is not as ``before`` says, after something ``whose`` it was."""
        for tensors, then, now in zip(self._by_type.values(), before, self.look(), strict=True):
            if not torch.equal(then, now):
                sizes = [flat.some(tensor, NUMBERS).nbytes for tensor in tensors.values()]
                pairs = zip(tensors, torch.split(then, sizes), torch.split(now, sizes), strict=True)
                name = next(name for name, one, other in pairs if not torch.equal(one, other))
                raise StateChanged(
                    f"{whose} begins to change {name}, which is not trained, after the measurement",
                    hint=CHANGES_HINT,
                )
