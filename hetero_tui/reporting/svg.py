"""Plots as SVG, for a page without scripts: colours come from the page's style sheet, by class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 44
_MARGIN = 0.03
_NUMBER_WIDTH = 26

MAX_POINTS = 700
"""Of a line: more than there are pixels would only make the page large."""

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line through ``points``, or dots; ``style`` is its class in the style sheet."""

    name: str
    points: Sequence[Point]
    style: str
    dots: bool = False


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A numbered tick below the axis; ``text`` is shown where the pointer rests on it."""

    x: float
    number: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of parts: (class, length, what it is)."""

    label: str
    parts: Sequence[tuple[str, float, str]]


def line_plot(
    series: Sequence[Series],
    marks: Sequence[Mark] = (),
    *,
    x_label: str,
    y_label: str,
    log: bool = False,
    from_zero: bool = False,
) -> str:
    """Lines over a common axis; ``log``: the vertical one is logarithmic, for positive values; or it begins at 0."""
    shown = [each for each in series if each.points]
    if not shown:
        return ""
    xs = [x for each in shown for x, _ in each.points]
    ys = [y for each in shown for _, y in each.points]
    across = _Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    margin = 0.0 if log else _MARGIN * (max(ys) - min(ys))
    down = _Scale(0.0 if from_zero else min(ys) - margin, max(ys) + margin, HEIGHT - BOTTOM, TOP, log=log)
    parts = [*_horizontal(down), *_vertical(across)]
    for each in shown:
        placed = [(across.place(x), down.place(y)) for x, y in thinned(each.points)]
        if each.dots or len(placed) == 1:
            parts += [f'<circle class="{each.style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in placed]
        else:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            parts.append(f'<polyline class="{each.style}" points="{line}"/>')
    parts += _ticks([mark for mark in marks if across.low <= mark.x <= across.high], across)
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="label" x="{middle:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    return _drawing(f"{y_label} over {x_label}", HEIGHT, parts)


def bars(rows: Sequence[Bar], *, unit: str, title: str) -> str:
    """A bar a row, all on one scale."""
    longest = max((sum(length for _, length, _ in row.parts) for row in rows), default=0.0)
    if not longest:
        return ""
    left = 150
    height = 26 * len(rows) + 30
    across = _Scale(0.0, longest, left, WIDTH - RIGHT)
    parts: list[str] = []
    for index, row in enumerate(rows):
        top = 26 * index + 4
        label = row.label if len(row.label) <= 22 else row.label[:21] + "…"
        parts.append(f'<text class="label" x="{left - 8}" y="{top + 13}" text-anchor="end">{escape(label)}</text>')
        begin = 0.0
        for style, length, what in row.parts:
            x, end = across.place(begin), across.place(begin + length)
            said = f"<title>{escape(f'{row.label}: {what} {length:.3g} {unit}')}</title>"
            width = max(0.0, end - x)
            parts.append(f'<rect class="{style}" x="{x:.1f}" y="{top}" width="{width:.1f}" height="18">{said}</rect>')
            begin += length
    bottom = 26 * len(rows) + 8
    for value in _steps(0.0, longest):
        x = across.place(value)
        parts.append(f'<text class="label" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{value:g} {unit}</text>')
    return _drawing(title, height, parts)


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most about :data:`MAX_POINTS`: of each part of the line its lowest and highest point, so that peaks stay."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil(len(points) / (MAX_POINTS / 2))
    kept: list[Point] = []
    for start in range(0, len(points), size):
        part = range(start, min(start + size, len(points)))
        low = min(part, key=lambda index: points[index][1])
        high = max(part, key=lambda index: points[index][1])
        kept += [points[index] for index in sorted({low, high})]
    return kept


def smoothed(points: Sequence[Point], over: int) -> list[Point]:
    """An exponential moving average over about so many points, without a bias at the beginning."""
    keep = 1 - 1 / max(1, over)
    total = weight = 0.0
    line: list[Point] = []
    for x, y in points:
        total, weight = keep * total + y, keep * weight + 1
        line.append((x, total / weight))
    return line


class _Scale:
    """From values to pixels; ``low`` and ``high`` are the values at its ends."""

    def __init__(self, low: float, high: float, begin: float, end: float, *, log: bool = False) -> None:
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
        self.low, self.high, self._begin, self._end, self.log = low, high, begin, end, log

    def place(self, value: float) -> float:
        if self.log:
            part = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            part = (value - self.low) / (self.high - self.low)
        return self._begin + part * (self._end - self._begin)

    def steps(self) -> list[float]:
        if not self.log:
            return _steps(self.low, self.high)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        inside = [value for value in values if self.low <= value <= self.high]
        return inside if len(inside) <= 8 else [value for value in inside if f"{value:e}".startswith("1")]


def _steps(low: float, high: float) -> list[float]:
    """About five round values within the two."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _horizontal(down: _Scale) -> list[str]:
    parts = []
    for value in down.steps():
        y = down.place(value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text class="label" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.6g}</text>')
    return parts


def _vertical(across: _Scale) -> list[str]:
    bottom = HEIGHT - BOTTOM
    parts = [f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}"/>']
    for value in across.steps():
        if value != round(value) and across.high - across.low >= 5:
            continue
        x = across.place(value)
        parts.append(f'<text class="label" x="{x:.1f}" y="{bottom + 26}" text-anchor="middle">{value:,.6g}</text>')
    return parts


def _ticks(marks: Sequence[Mark], across: _Scale) -> list[str]:
    """A line for each place; marks that are too near to each other for their numbers share one."""
    groups: list[list[Mark]] = []
    for mark in sorted(marks, key=lambda mark: mark.x):
        if groups and across.place(mark.x) - across.place(groups[-1][0].x) < _NUMBER_WIDTH:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return [_tick(group, across.place(group[0].x)) for group in groups]


def _tick(group: Sequence[Mark], x: float) -> str:
    bottom = HEIGHT - BOTTOM
    first, last = group[0].number, group[-1].number
    number = str(first) if len(group) == 1 else f"{first}-{last}"
    said = "; ".join(f"{mark.number}: {mark.text}" for mark in group)
    return (
        f'<g class="mark"><title>{escape(said)}</title>'
        f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom + 4}"/>'
        f'<text x="{min(x, WIDTH - 16):.1f}" y="{bottom + 14}" text-anchor="middle">{number}</text></g>'
    )


def _drawing(title: str, height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
