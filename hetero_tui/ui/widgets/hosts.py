"""The hosts as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hetero_tui.state import HostView, RunView
from hetero_tui.ui import cells, columns
from hetero_tui.ui.columns import Columns
from hetero_tui.ui.view import View
from hetero_tui.ui.widgets.table import CURSOR, Entry, Table

_ORDERS: dict[str, Callable[[HostView, RunView | None], Any]] = {
    "name": lambda host, run: host.name,
    "state": lambda host, run: host.state.words,
    "use": lambda host, run: -(cells.use_of(host).fraction or 0.0),
    "share": lambda host, run: -(cells.share_of(host, run) or 0.0),
}


class Hosts(Table):
    """The panel of hosts. A line is made anew when its host, its share or the second has changed, and kept else."""

    orders: ClassVar[tuple[str, ...]] = ("", *_ORDERS)

    def __init__(self, *, id: str) -> None:  # noqa: A002 (Textual's own name for it)
        super().__init__(id=id)
        self._kept: dict[str, tuple[HostView, tuple[object, ...], Entry]] = {}

    def draw(self, view: View, width: int) -> None:
        """Draw the hosts into ``width`` cells between the borders."""
        state = view.state
        chosen = columns.choose(width - CURSOR, tuple(host.name for host in state.hosts), run=state.run is not None)
        hosts = list(state.hosts)
        if self.sorted_by:
            order = _ORDERS[self.sorted_by]
            hosts.sort(key=lambda host: order(host, state.run))
        seen = self.rows.in_sight if not self.filter else range(len(hosts))
        entries = [self._entry(host, view, chosen, is_seen=index in seen) for index, host in enumerate(hosts)]
        title = "Hosts" if self.filter or self.sorted_by else _title(state.hosts, width)  # there is no room for both
        self.fill(title, cells.header_line(chosen, view.palette), entries, view.palette)

    def _entry(self, host: HostView, view: View, chosen: Columns, *, is_seen: bool) -> Entry:
        """The host's line; of many hosts those out of sight keep the one that they had, until they are seen."""
        seen = (cells.share_of(host, view.state.run), int(view.now), view.palette, chosen)
        known = self._kept.get(host.name)
        if known is not None and (not is_seen or (known[0] is host and known[1] == seen)):
            return known[2]
        line = cells.host_line(host, view.state.run, chosen, view.now, view.palette, view.key_of)
        entry = Entry(key=host.name, line=line, words=words_of(host, view.now))
        self._kept[host.name] = host, seen, entry
        return entry


def _title(hosts: tuple[HostView, ...], width: int) -> str:
    simulated = sum(host.facts is not None and host.facts.simulated_speed is not None for host in hosts)
    if not simulated:
        return "Hosts"
    title = f"Hosts, {simulated} simulated on this computer"
    whole = f"{title}: memory and processors are shared"
    return whole if len(whole) <= width - 2 else title


def words_of(host: HostView, now: float) -> str:
    """What the filter looks at: a host's name, address, state and devices."""
    return " ".join((host.name, host.address, cells.state_words(host, now), *cells.device_words(host)))
