"""Lines of tables: cells in columns that keep their width, numbers to the right. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from hetero_tui.ui.palette import Palette

GAP = 2


@dataclass(frozen=True, kw_only=True)
class Col:
    """A column.

    Attributes:
        title: at its top.
        width: in cells.
        rank: of those that do not fit, the one of the highest rank goes first.
        right: whether its cells stand at the right.
        grows: takes what is left over.
        wanted: cells that it needs; what it takes beyond them is what others that grow leave.
    """

    title: str
    width: int
    rank: int = 0
    right: bool = False
    grows: bool = False
    wanted: int = 1000


def fitting(columns: Sequence[Col], width: int) -> list[tuple[int, Col, int]]:
    """The columns that fit into ``width`` cells, as (place among all, column, its width now)."""
    kept = list(enumerate(columns))
    while len(kept) > 1 and sum(column.width + GAP for _, column in kept) - GAP > width:
        kept.remove(max(kept, key=lambda entry: entry[1].rank))
    spare = width - (sum(column.width + GAP for _, column in kept) - GAP)
    growing = sorted((place for place, column in kept if column.grows), key=lambda place: columns[place].wanted)
    more = dict.fromkeys((place for place, _ in kept), 0)
    for left, place in zip(range(len(growing), 0, -1), growing, strict=True):  # what one leaves is for the others
        part, lacks = max(0, spare) // left, max(0, columns[place].wanted - columns[place].width)
        more[place] = min(part, lacks) if left > 1 else part
        spare -= more[place]
    return [(place, column, column.width + more[place]) for place, column in kept]


def titles_line(columns: Sequence[Col], width: int, palette: Palette) -> Text:
    """The titles."""
    return table_line(columns, [Text(column.title, style=palette.muted) for column in columns], width)


def table_line(columns: Sequence[Col], cells: Sequence[Text], width: int) -> Text:
    """One line; ``cells`` are one for each column, those without room are left out."""
    line = Text()
    for index, (place, column, cell_width) in enumerate(fitting(columns, width)):
        if index:
            line.append(" " * GAP)
        cell = cells[place].copy()
        cell.truncate(cell_width, overflow="ellipsis")
        space = " " * (cell_width - cell.cell_len)
        line.append_text(Text(space).append_text(cell) if column.right else cell.append(space))
    line.truncate(max(0, width))
    return line
