"""Figures that are made of parts: pairs (sum, weight) by name. Pure.

The whole's figure is the sum of all sums over the sum of all weights; a plain number of a part stands for the mean over
the part's samples. So what is a mean over samples, tokens or pixels is exact whatever the parts are. A perplexity is
the exponential of a mean: figures whose names end so are summed as their logarithms.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping

from torch import Tensor

from remote_agent.training.errors import JobError

Figures = dict[str, tuple[float, float]]
"""(sum, weight) by name."""

PERPLEXITY = "perplexity"

TERM = "\x1f"
"""After a figure's name, before a number: one of several terms that are added up once each is a mean of the whole."""

_HINT = "return a dict of names to numbers: means over the batch's samples, or pairs (sum, weight)"


def figures_of(measured: object, samples: int, source: str = "metrics") -> Figures:
    """What the user's ``metrics`` (or another ``source``) returned for a batch of so many samples.

    A weight of None is that number.

    Raises:
        JobError: it is not of that form.
    """
    if not isinstance(measured, Mapping):
        raise JobError(f"{source} gave a {type(measured).__name__}", hint=_HINT)
    return {str(name): _pair(source, str(name), value, samples) for name, value in measured.items()}


def _pair(source: str, name: str, value: object, samples: int) -> tuple[float, float]:
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise JobError(f"{source} gave {len(value)} values for {name!r}", hint=_HINT)
        total, weight = value
        return _number(source, name, total), samples if weight is None else _number(source, name, weight)
    number = _number(source, name, value)
    if name.endswith(PERPLEXITY):
        number = math.log(number) if number > 0 else math.nan
    return number * samples, samples


def _number(source: str, name: str, value: object) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise JobError(f"{source} gave a tensor of shape {tuple(value.shape)} for {name!r}", hint=_HINT)
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise JobError(f"{source} gave a {type(value).__name__} for {name!r}", hint=_HINT) from None


def whole(batches: Iterable[Figures]) -> dict[str, float | None]:
    """The figures of the whole set, out of all of its batches'; None where one is not a finite number."""
    by_name: dict[str, list[tuple[float, float]]] = {}
    for figures in batches:
        for name, pair in figures.items():
            by_name.setdefault(name, []).append(pair)
    result: dict[str, float | None] = {}
    for name, pairs in by_name.items():
        mean = _exponential(_mean(pairs)) if name.endswith(PERPLEXITY) else _mean(pairs)
        figure = name.partition(TERM)[0]
        before = result.get(figure, 0.0)
        result[figure] = None if mean is None or before is None else before + mean
    return result


def _exponential(mean: float | None) -> float | None:
    return math.exp(mean) if mean is not None and mean < math.log(sys.float_info.max) else None


def _mean(pairs: list[tuple[float, float]]) -> float | None:
    if not all(math.isfinite(number) for pair in pairs for number in pair):
        return None
    weight = math.fsum(weight for _, weight in pairs)
    mean = math.fsum(total for total, _ in pairs) / weight if weight else math.nan
    return mean if math.isfinite(mean) else None


def merged(parts: Iterable[Figures]) -> Figures:
    """The figures of a batch that was computed in parts."""
    result: Figures = {}
    for figures in parts:
        for name, (total, weight) in figures.items():
            before = result.get(name, (0.0, 0.0))
            result[name] = before[0] + total, before[1] + weight
    return result
