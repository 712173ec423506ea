"""Bars of one line: how much of something is used, how a time is made up, and a series as blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

from hetero_tui.ui.palette import Palette

_BLOCKS = "▁▂▃▄▅▆▇█"

PARTS = (("compute", "█", "accent"), ("push", "▓", "push"), ("pull", "▒", "pull"), ("wait", "·", "muted"))
"""The parts of a step: word, glyph, and colour by its name in :class:`Palette`."""

OF_STAGES = {"push": "send", "pull": "receive"}
"""Other words for them, where the stages of a pipeline exchange activations and gradients."""


def use_bar(fraction: float | None, width: int, palette: Palette) -> Text:
    """``width`` cells of which ``fraction`` (0..1) is filled, to half a cell; blank when unknown."""
    if fraction is None or width <= 0:
        return Text(" " * max(0, width))
    halves = round(min(1.0, max(0.0, fraction)) * width * 2)
    full, half = divmod(halves, 2)
    filled = "━" * full + "╸" * half
    bar = Text(filled, style=palette.accent)
    return bar.append("─" * (width - full - half), style=palette.faint)


def cells_of(parts: Sequence[float], width: int) -> list[int]:
    """``width`` cells divided in proportion to ``parts`` by largest remainder, so that they add up to ``width``."""
    total = sum(parts)
    if total <= 0 or width <= 0:
        return [0 for _ in parts]
    exact = [part / total * width for part in parts]
    cells = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda index: exact[index] - cells[index], reverse=True)
    for index in by_remainder[: width - sum(cells)]:
        cells[index] += 1
    return cells


def stacked_bar(parts: Sequence[float], longest: float, width: int, palette: Palette) -> Text:
    """The parts of a step (see :data:`PARTS`, seconds each) as one bar; ``longest`` seconds fill ``width`` cells."""
    total = sum(parts)
    length = 0 if longest <= 0 else min(width, round(total / longest * width))
    bar = Text()
    for count, (_, glyph, role) in zip(cells_of(parts, length), PARTS, strict=True):
        bar.append(glyph * count, style=getattr(palette, role))
    return bar.append(" " * (width - length))


def blocks(values: Sequence[float], width: int) -> str:
    """A series as blocks of eight heights, averaged down to ``width`` cells (fewer where there are fewer values)."""
    if not values or width <= 0:
        return ""
    averaged = averages(values, min(width, len(values)))
    low, high = min(averaged), max(averaged)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in averaged)


def averages(values: Sequence[float], count: int) -> list[float]:
    """``values`` cut into ``count`` neighbouring groups of (almost) the same size, and the mean of each.

    ``count`` is at most ``len(values)``, so that no group is empty.
    """
    bounds = [index * len(values) // count for index in range(count + 1)]
    return [math.fsum(values[start:end]) / (end - start) for start, end in pairwise(bounds)]
