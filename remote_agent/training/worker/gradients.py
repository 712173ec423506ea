"""Copies each parameter's gradient to the send buffer as soon as backward has computed it, and reports it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from remote_agent.training.errors import UsageChanged
from remote_agent.training.shared import flat
from remote_agent.training.shared.dataplane import StreamPlan

Offer = Callable[[int, int], None]
"""A function that is called when the numbers ``begin`` to ``end`` of the flat buffer are final."""

BY_TURNS_HINT = "a model that uses its parameters by turns trains with strategy=allreduce"


class Gradients:
    """Copies gradients into a flat buffer during backward, while they are in the cache.

    A slice may take several backward passes. In the last one, each gradient is final as soon as it is computed; see
    :meth:`last`.

    Args:
        plan: says which parameters are in the buffer, and which ones must not get a gradient.

    Attributes:
        parameters: those in the buffer, in its order.
        once: in the newest last backward that was only watched, each parameter got its gradient in one part, so it can
            be offered as soon as it is computed.
        moments: the time of that for each parameter (``time.perf_counter()``).
        begins: the position of each parameter in the buffer.
    """

    def __init__(self, model: nn.Module, plan: StreamPlan) -> None:
        everything = flat.trained(model)
        self.parameters = [everything[name] for name in plan.names]
        self.once = False
        self.moments = [0.0] * len(plan.names)
        self._names = plan.names
        self._shapes = [parameter.shape for parameter in self.parameters]
        ends = list(accumulate(shape.numel() for shape in self._shapes))
        self.begins = [end - shape.numel() for end, shape in zip(ends, self._shapes, strict=True)]
        self._watched = {name: everything[name] for name in plan.watched}
        self._views: Sequence[Tensor] = ()
        self._written: list[bool] = []
        self._passed: list[int] = []
        self._is_last = False
        self._offer: Offer | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(position))  # type: ignore[no-untyped-call]
            for position, parameter in enumerate(self.parameters)
        ]

    def close(self) -> None:
        """Stop receiving gradients of the parameters."""
        for hook in self._hooks:
            hook.remove()

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Views into ``buffer``, one for each parameter."""
        parts = buffer.split([shape.numel() for shape in self._shapes])  # type: ignore[no-untyped-call]
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    @torch.no_grad()
    def show(self, views: Sequence[Tensor]) -> None:
        """Have the parameters be these views, or copies of them where they are on another device."""
        for parameter, view in zip(self.parameters, views, strict=True):
            if view.device == parameter.device:
                parameter.data = view
            else:
                parameter.copy_(view)

    def begin(self, views: Sequence[Tensor]) -> None:
        """Write the next gradients to ``views``, and add further ones of the same parameter."""
        self._views = views
        self.again()

    def again(self) -> None:
        """Discard all gradients since :meth:`begin`, since they are computed again."""
        self._written = [False] * len(self._names)
        self._is_last, self._offer = False, None
        for parameter in self._watched.values():
            parameter.grad = None

    def last(self, offer: Offer | None) -> None:
        """Announce the slice's last backward. Call ``offer`` for each gradient; None: only watch it."""
        self._is_last, self._offer = True, offer
        self._passed = [0] * len(self._names)

    def check(self) -> None:
        """Raise UsageChanged unless the same parameters have a gradient as in the measurement."""
        for name, written in zip(self._names, self._written, strict=True):
            if not written:
                cause = f"the parameter {name} got no gradient, unlike in the measurement"
                raise UsageChanged(cause, hint=BY_TURNS_HINT)
        for name, parameter in self._watched.items():
            if parameter.grad is not None:
                cause = f"the parameter {name} got its first gradient after the measurement"
                raise UsageChanged(cause, hint=BY_TURNS_HINT)
        if self._is_last and self._offer is None:
            self.once = all(passed == 1 for passed in self._passed)

    def _hook(self, position: int) -> Callable[[Tensor], None]:
        def accumulated(parameter: Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None, "the hook runs when there is one"
            if self._written[position]:
                self._views[position].add_(gradient.to(self._views[position].device))
            else:
                self._views[position].copy_(gradient)
                self._written[position] = True
            parameter.grad = None
            if self._is_last:
                self._pass(position)

        return accumulated

    def _pass(self, position: int) -> None:
        """Report a gradient of the last backward."""
        self._passed[position] += 1
        if self._offer is None:
            self.moments[position] = time.perf_counter()
        elif self._passed[position] > 1:
            # A part of it may be on its way already.
            name = self._names[position]
            cause = f"the parameter {name} got its gradient in several parts, unlike in the slices before"
            raise UsageChanged(cause, hint=BY_TURNS_HINT)
        else:
            begin = self.begins[position]
            self._offer(begin, begin + self._shapes[position].numel())
