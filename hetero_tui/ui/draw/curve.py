"""Curves over steps in braille: two by four dots a character, the steps' mean in each column.

Faults are numbered ticks in a line of their own under the axis; the number is the fault's row in the faults' view.

Braille patterns are U+2800 plus one bit a dot (The Unicode Standard, block "Braille Patterns").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.text import Text

from hetero_tui.state import Fault
from hetero_tui.text import loss_figure
from hetero_tui.ui.draw.bars import blocks
from hetero_tui.ui.palette import Palette

_BLANK = 0x2800
# Bit of the dot in row 0..3 of the left and of the right column of a cell.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))

_MIN_WIDTH = 10
_MIN_WITH_TICKS = 6

Points = Sequence[tuple[int, float]]


def loss_blocks(points: Points, width: int, palette: Palette, none: str = "no step yet") -> Text:
    """The whole curve in one line: first and last loss with blocks between them."""
    if not points:
        return Text(none, style=palette.muted)
    first, last = loss_figure(points[0][1]), loss_figure(points[-1][1])
    room = width - len(first) - len(last) - 2
    line = Text(f"{first} ", style=palette.muted)
    drawn = blocks([value for _, value in points], room)
    line.append(drawn, style=palette.accent)
    return line.append(f" {last}", style=f"bold {palette.foreground}")


def curve(
    points: Points,
    faults: Sequence[Fault],
    width: int,
    height: int,
    palette: Palette,
    label: Callable[[float], str] = loss_figure,
    *,
    logarithmic: bool = False,
    none: str = "no step yet",
) -> list[Text]:
    """The curve as ``height`` lines of ``width`` cells: axis labels at the left, the steps below, then the faults.

    Args:
        points: Pairs of step and value, in order of the step.
        faults: What to mark; those before the first point are left out, and all where there is no line for them.
        width: Cells of a line, labels included; drawn for at least 10.
        height: Lines, the line of steps included; at least 3.
        label: How a value is written at the axis.
        logarithmic: The axis; values that are not positive are left out then.
        none: What is said where there are no points.
    """
    if logarithmic and points:
        none = "no positive loss to draw on a log scale"
        points = [(step, math.log10(value)) for step, value in points if value > 0]
        written = label
        label = lambda value: written(10**value)  # noqa: E731 (the axis is labelled with the values themselves)
    if not points:
        return _padded([Text(none, style=palette.muted)], height)
    first, last = points[0][0], points[-1][0]
    marked = [fault for fault in faults if first <= fault.step <= last]
    has_ticks = bool(marked) and height >= _MIN_WITH_TICKS
    width, rows = max(width, _MIN_WIDTH), height - 1 - has_ticks
    # What the labels say depends on the columns' means, and how many columns there are on the labels' width.
    labels_width, labels = 0, _axis(*_range([value for _, value in points]), rows, label)
    while labels_width < (needed := min(width // 2, max(map(len, labels)))):
        labels_width = needed
        columns = max(1, width - labels_width - 1)
        heights = _by_column(points, columns * 2)
        low, high = _range(heights)
        labels = _axis(low, high, rows, label)
    grid = _dots(heights, low, high, columns, rows)
    lines = []
    for row, said in enumerate(labels):
        drawn = "".join(chr(_BLANK + bits) if bits else " " for bits in grid[row])
        text = f"{said[:labels_width]:>{labels_width}} "
        lines.append(Text.assemble((text, palette.muted), (drawn, palette.accent)))
    lines.append(_steps_axis(first, last, labels_width + 1, columns, palette))
    if has_ticks:
        ticks = ticks_line([(_column_of(fault.step, first, last, columns), fault.number) for fault in marked], columns)
        lines.append(Text(" " * (labels_width + 1)).append(ticks, style=palette.warning))
    return lines


def ticks_line(ticks: Sequence[tuple[int, int]], columns: int) -> str:
    """Numbers in ``columns`` cells, from pairs of column and number.

    Numbers that would have no blank between them are written together, as ``3,4`` or ``3-6``, so that none is missing.
    """

    def start(column: int, numbers: Sequence[int]) -> int:
        return max(0, min(column, columns - len(_listed(numbers))))

    groups: list[tuple[int, list[int]]] = []
    for tick, number in sorted(ticks):
        column, numbers = tick, [number]
        while groups and start(column, numbers) <= start(*groups[-1]) + len(_listed(groups[-1][1])):
            column, before = groups.pop()
            numbers = sorted(before + numbers)
        groups.append((column, numbers))
    line = ""
    for group in groups:
        line = line.ljust(start(*group)) + _listed(group[1])
    return line[:columns].ljust(columns)


def _listed(numbers: Sequence[int]) -> str:
    """``3``, ``3,4``, ``3-6``, ``3-5,9``."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ",".join(f"{row[0]}-{row[-1]}" if len(row) > 2 else ",".join(map(str, row)) for row in rows)


def smoothed(points: Points, weight: float = 0.9) -> list[tuple[int, float]]:
    """The exponential moving average of a curve, without the bias towards its first value."""
    found, mean, total = [], 0.0, 0.0
    for step, value in points:
        if not math.isfinite(value):
            continue
        mean = weight * mean + (1 - weight) * value
        total = weight * total + (1 - weight)
        found.append((step, mean / total))
    return found


def scale_label(values: Sequence[float]) -> Callable[[float], str]:
    """How values of such a range are written at an axis: with as many digits as tell its labels apart."""
    span = max(values, default=0.0) - min(values, default=0.0)
    digits = 0 if span <= 0 else max(0, min(3, math.ceil(-math.log10(span / 2))))
    return lambda value: f"{value:,.{digits}f}"


def _padded(lines: list[Text], height: int) -> list[Text]:
    return lines + [Text("") for _ in range(height - len(lines))]


def _axis(low: float, high: float, rows: int, label: Callable[[float], str]) -> list[str]:
    """A label for each row, blank for most: the highest and the lowest value, and one between where there is room."""
    labelled = (0, rows // 2, rows - 1) if rows >= 5 else (0, rows - 1)
    return [label(high - (high - low) * row / max(1, rows - 1)) if row in labelled else "" for row in range(rows)]


def _column_of(step: int, first: int, last: int, columns: int) -> int:
    return 0 if last == first else min(columns - 1, (step - first) * columns // (last - first))


def _by_column(points: Points, columns: int) -> list[float | None]:
    """The mean loss of the steps that fall into each column of dots; None where none does."""
    first, last = points[0][0], points[-1][0]
    groups: list[list[float]] = [[] for _ in range(columns)]
    for step, value in points:
        groups[_column_of(step, first, last, columns)].append(value)
    return [math.fsum(group) / len(group) if group else None for group in groups]


def _range(heights: Sequence[float | None]) -> tuple[float, float]:
    known = [height for height in heights if height is not None]
    low, high = min(known), max(known)
    if high > low:
        return low, high
    margin = abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _dots(heights: Sequence[float | None], low: float, high: float, columns: int, rows: int) -> list[list[int]]:
    """The curve's dots as bits of each cell; neighbouring columns are joined, and gaps between steps bridged."""
    grid = [[0] * columns for _ in range(rows)]
    tallest = rows * 4 - 1
    before: tuple[int, int] | None = None
    for column, height in enumerate(heights):
        if height is None:
            continue
        here = (column, round((high - height) / (high - low) * tallest))
        for across, down in _segment(before or here, here):
            grid[down // 4][across // 2] |= _DOTS[down % 4][across % 2]
        before = here
    return grid


def _segment(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots from ``start`` to ``end``, both as (across, down)."""
    count = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    if count == 0:
        return [end]
    return [
        (
            start[0] + round((end[0] - start[0]) * index / count),
            start[1] + round((end[1] - start[1]) * index / count),
        )
        for index in range(count + 1)
    ]


def _steps_axis(first: int, last: int, left: int, columns: int, palette: Palette) -> Text:
    start, end = f"{first:,}", f"step {last:,}"
    if first == last or len(start) + len(end) >= columns:
        return Text(f"{end:>{left + columns}}", style=palette.muted)
    return Text(" " * left + start + f"{end:>{columns - len(start)}}", style=palette.muted)
