"""Chooses the columns of the hosts table, and their widths, for the available width. Pure.

As it gets narrower there go, in this order: RAY and SEEN, LINK, MEMORY's total, DEVICE's kind, SHARE, USE's bar,
MEMORY, DEVICE, USE. A column never changes its width while the terminal keeps its own, so nothing jumps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

HOST, STATE, DEVICE, USE, MEMORY, LINK, SHARE, RAY, SEEN = (
    "HOST",
    "STATE",
    "DEVICE",
    "USE",
    "MEMORY",
    "LINK",
    "SHARE",
    "RAY",
    "SEEN",
)

RIGHT_ALIGNED = frozenset({MEMORY, LINK, SHARE})

PERCENT_WIDTH = 5
"""``' 84%'`` and a space between it and its bar."""

_LONGEST_NAME = 16


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column; ``full`` is whether it has its optional half (MEMORY's total, DEVICE's kind, USE's bar)."""

    title: str
    width: int
    full: bool = True

    @property
    def right(self) -> bool:
        """Whether its cells are aligned to the right."""
        return self.title in RIGHT_ALIGNED


@dataclass(frozen=True, kw_only=True)
class _Option:
    """A choice of columns: their least widths, and the space between them. HOST's width comes from the names."""

    widths: tuple[tuple[str, int], ...]
    gap: int = 2
    reduced: frozenset[str] = frozenset()


_STATE = (STATE, 19)
_FULL = ((DEVICE, 16), (USE, 15), (MEMORY, 14), (LINK, 17), (SHARE, 5))
_OPTIONS = (
    _Option(widths=(_STATE, *_FULL, (RAY, 14), (SEEN, 12))),
    _Option(widths=(_STATE, *_FULL)),
    _Option(widths=(_STATE, (DEVICE, 16), (USE, 13), (MEMORY, 14), (SHARE, 5)), gap=1),
    _Option(widths=(_STATE, (DEVICE, 16), (USE, 13), (MEMORY, 8), (SHARE, 5)), gap=1, reduced=frozenset({MEMORY})),
    _Option(
        widths=(_STATE, (DEVICE, 11), (USE, 13), (MEMORY, 8), (SHARE, 5)), gap=1, reduced=frozenset({MEMORY, DEVICE})
    ),
    _Option(widths=(_STATE, (DEVICE, 11), (USE, 13), (MEMORY, 8)), gap=1, reduced=frozenset({MEMORY, DEVICE})),
    _Option(widths=(_STATE, (DEVICE, 11), (USE, 4), (MEMORY, 8)), gap=1, reduced=frozenset({MEMORY, DEVICE, USE})),
    _Option(widths=(_STATE, (DEVICE, 11), (USE, 4)), gap=1, reduced=frozenset({DEVICE, USE})),
    _Option(widths=(_STATE, (USE, 4)), gap=1, reduced=frozenset({USE})),
    _Option(widths=(_STATE,), gap=1),
)

_GROWTH = ((STATE, 22), (USE, 17), (STATE, 36), (DEVICE, 24), (USE, 30), (STATE, 48))
"""Where spare width goes, in this order, each up to so much."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a table, with ``gap`` cells between them."""

    columns: tuple[Column, ...]
    gap: int


def choose(width: int, names: tuple[str, ...], *, run: bool = True) -> Columns:
    """The columns for a table of ``width`` cells whose hosts have these names; without a run there are no shares."""
    host_width = min(_LONGEST_NAME, max([len(HOST), *map(len, names)]))
    for option in _OPTIONS if run else map(_without_share, _OPTIONS):
        spare = width - host_width - sum(least + option.gap for _, least in option.widths)
        if spare >= 0:
            return _grown(option, host_width, spare)
    # Narrower than any option: a name and as much of the state as there is room for.
    host_width = min(host_width, max(1, width // 2))
    return Columns(
        columns=(Column(title=HOST, width=host_width), Column(title=STATE, width=max(1, width - host_width - 1))),
        gap=1,
    )


def _without_share(option: _Option) -> _Option:
    return replace(option, widths=tuple(entry for entry in option.widths if entry[0] != SHARE))


def _grown(option: _Option, host_width: int, spare: int) -> Columns:
    widths = dict(option.widths)
    for title, most in _GROWTH:
        if title not in widths or title in option.reduced:
            continue
        more = max(0, min(spare, most - widths[title]))
        widths[title] += more
        spare -= more
    columns = [Column(title=title, width=least, full=title not in option.reduced) for title, least in widths.items()]
    return Columns(columns=(Column(title=HOST, width=host_width), *columns), gap=option.gap)
