"""Random numbers for a part of some samples that are those of its rows in the whole: then random losses compare.

A loss that draws (dropout, a VAE's noise, masks, actions) is another one for a batch and for its parts, even from one
seed. Within :class:`RowNoise` each of torch's random operations begins from a seed by its number in the pass. One whose
shape follows the number of samples is carried out for all of them, and gives the rows of the part.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from remote_agent.training.worker.device import device as devices

BY_VALUE = frozenset(f"aten::{name}" for name in ("poisson", "binomial", "_standard_gamma", "_sample_dirichlet"))
"""Operations that draw as often as the values need (rejection), so that other rows change what a row gets."""

MOST_RESULTS = 2
"""Operations with more draw in their own way: attention and recurrent layers of cuDNN's."""


class RowNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's is not typed
    """Entered for the whole first, and then for parts of it; see :meth:`of`.

    Args:
        samples: of the whole.

    Attributes:
        exact: all random numbers so far were those of the rows of the whole, as far as can be told.
        drew: some were drawn.
    """

    def __init__(self, samples: int, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.exact, self.drew = True, False
        self._samples, self._device = samples, device
        self._shapes: list[tuple[int, ...]] = []
        self._given: list[tuple[int, ...]] = []
        self._part, self._count = (0, samples), 0
        self._drawn: tuple[Any, ...] = ()

    @contextlib.contextmanager
    def of(self, begin: int, end: int) -> Iterator[None]:
        """Within this the samples ``begin`` to ``end`` are computed."""
        self._part, self._count, before = (begin, end), 0, _others()
        with self:
            yield
        others = _others()
        self.drew = self.drew or self._count > 0 or others != before
        if self._part == (0, self._samples):
            self._drawn = others
        self.exact = self.exact and others == self._drawn and self._count == len(self._shapes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        self.drew = True
        if func._schema.name == "aten::randperm":  # noqa: SLF001 - it is said nowhere else
            return func(*args, **kwargs).sort().values  # pairs each sample with itself, in the whole and in a part
        number, shape = self._count, _shape(args)
        self._count += 1
        self._seed(number)
        if self._part == (0, self._samples) and number == len(self._shapes):
            self._shapes.append(shape)
            self._given.append(())
        whole = self._shapes[number] if number < len(self._shapes) else ()
        is_together = self._part != (0, self._samples) and shape == whole and math.prod(shape) > 1
        if is_together:  # numbers for all samples together: each part draws its own, as slices do
            self._seed(number, 1 + self._part[0])
            return func(*args, **kwargs)
        along = self._along(shape, whole)
        schema = func._schema  # noqa: SLF001 - it is said nowhere else
        by_place = schema.name not in BY_VALUE and len(schema.returns) <= MOST_RESULTS
        if not shape or along is None or not by_place:
            self.exact = self.exact and by_place and shape == whole
            return self._as_many(number, func(*args, **kwargs))
        given = _for_all(func, args, kwargs, shape, whole, along, self._rows(whole[along], shape[along]))
        return self._as_many(number, given) if shape == whole else given

    def _seed(self, number: int, part: int = 0) -> None:
        seed = number + (part << 20)
        devices.seed(self._device, seed)
        torch.default_generator.manual_seed(seed)

    def _as_many(self, number: int, given: Any) -> Any:
        """``given``; its rows are not known if only its length follows the number of samples (a permutation)."""
        shape = tuple(given.shape) if isinstance(given, Tensor) else ()
        if self._part == (0, self._samples) and number < len(self._given):
            self._given[number] = shape
        self.exact = self.exact and number < len(self._given) and shape == self._given[number]
        return given

    def _along(self, shape: tuple[int, ...], whole: tuple[int, ...]) -> int | None:
        """The one dimension that follows the number of samples, or any where all are alike; None: there is none."""
        if shape == whole:
            return 0
        if len(shape) != len(whole):
            return None
        differ = [number for number, (own, all_) in enumerate(zip(shape, whole, strict=True)) if own != all_]
        begin, end = self._part
        fits = len(differ) == 1 and shape[differ[0]] * self._samples == whole[differ[0]] * (end - begin)
        return differ[0] if fits and whole[differ[0]] % self._samples == 0 else None

    def _rows(self, length: int, own: int) -> slice:
        if own == length:
            return slice(0, length)
        each = length // self._samples
        return slice(self._part[0] * each, self._part[1] * each)


def _for_all(
    func: Any, args: Any, kwargs: Any, shape: tuple[int, ...], whole: tuple[int, ...], along: int, rows: slice
) -> Any:
    """What an operation gives for the whole, of that the rows of the part.

    It draws in the order of memory, which is made the usual one.
    """
    where = (slice(None),) * along + (rows,)

    def widened(value: Any) -> Any:
        if isinstance(value, Tensor) and tuple(value.shape) == shape:
            full = value.narrow(along, 0, 1).expand(whole).contiguous().clone()
            full[where] = value
            return full
        return list(whole) if isinstance(value, list | tuple) and tuple(value) == shape else value

    def narrowed(value: Any) -> Any:
        is_whole = isinstance(value, Tensor) and value.dim() > along and value.shape[along] == whole[along]
        return value[where] if is_whole else value

    given = func(*(widened(value) for value in args), **kwargs)
    if func._schema.is_mutable:  # noqa: SLF001
        return args[0].copy_(narrowed(given))
    return tuple(map(narrowed, given)) if isinstance(given, tuple) else narrowed(given)


def _shape(args: Sequence[Any]) -> tuple[int, ...]:
    """The shape that an operation's random numbers have: of its first tensor, or as it is given; empty: none."""
    for value in args:
        if isinstance(value, Tensor):
            return tuple(value.shape)
        if isinstance(value, list | tuple) and value:
            return tuple(value)
    return ()


def _others() -> tuple[Any, ...]:
    """Where numpy's and Python's generators are: what is drawn from them is not known by rows."""
    numpys = np.random.get_state(legacy=False)
    return random.getstate(), repr(numpys)
