"""Puts each parameter's gradient where it is sent from the moment that backward has it, and says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate

from torch import Tensor, nn

from remote_agent.training.errors import UsageChanged

Offer = Callable[[int, int], None]
"""Told that numbers ``begin`` to ``end`` of the flat buffer are final."""

BY_TURNS_HINT = "a model that uses its parameters by turns trains with strategy=allreduce"


class Gradients:
    """Copies gradients into a flat buffer during backward, while they are in the cache.

    A slice may take several backward passes; the gradients of the last one are final, each as it comes: see
    :meth:`last`.

    Args:
        parameters: in the order of the buffer.
        watched: parameters that are not in the buffer, by name: they must not get a gradient.

    Attributes:
        once: in the newest last backward that was only watched each parameter got its gradient in one part, so that it
            can be offered as soon as it is there.
        moments: when that was, for each parameter (``time.perf_counter()``).
        begins: where each parameter lies in the buffer.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], watched: dict[str, nn.Parameter]) -> None:
        self.once = False
        self.moments = [0.0] * len(parameters)
        self._names = list(parameters)
        self._shapes = [parameter.shape for parameter in parameters.values()]
        ends = list(accumulate(shape.numel() for shape in self._shapes))
        self.begins = [end - shape.numel() for end, shape in zip(ends, self._shapes, strict=True)]
        self._watched = watched
        self._views: Sequence[Tensor] = ()
        self._written: list[bool] = []
        self._passed: list[int] = []
        self._is_last = False
        self._offer: Offer | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(position))  # type: ignore[no-untyped-call]
            for position, parameter in enumerate(parameters.values())
        ]

    def close(self) -> None:
        """Gradients of the parameters do not come here any more."""
        for hook in self._hooks:
            hook.remove()

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Views into ``buffer``, one for each parameter."""
        parts = buffer.split([shape.numel() for shape in self._shapes])  # type: ignore[no-untyped-call]
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def begin(self, views: Sequence[Tensor]) -> None:
        """The next gradients go to ``views``; further ones of the same parameter are added."""
        self._views = views
        self.again()

    def again(self) -> None:
        """What came since :meth:`begin` is void: it comes once more."""
        self._written = [False] * len(self._names)
        self._is_last, self._offer = False, None
        for parameter in self._watched.values():
            parameter.grad = None

    def last(self, offer: Offer | None) -> None:
        """The backward that comes now is the slice's last. Tell ``offer`` of each gradient; None: only watch it."""
        self._is_last, self._offer = True, offer
        self._passed = [0] * len(self._names)

    def check(self) -> None:
        """After backward: each parameter has a gradient exactly when it had one in the measurement.

        Raises:
            UsageChanged: it does not, and the buffer would be wrong.
        """
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
                self._views[position].add_(gradient)
            else:
                self._views[position].copy_(gradient)
                self._written[position] = True
            parameter.grad = None
            if self._is_last:
                self._pass(position)

        return accumulated

    def _pass(self, position: int) -> None:
        """A gradient of the last backward is in its place."""
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
