"""Hosts of the ledgers that the inventory no longer has, or not at the address and for the user of then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hetero_tui.fleet.ledger import Entry, Ledger, place_of
from hetero_tui.inventory import Host, Inventory
from hetero_tui.inventory.adding import target_of
from hetero_tui.transport import Transport, open_transport


def former(inventory: Inventory, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries, one a host, of former hosts."""
    own = {place_of(host) for host in inventory.hosts}
    found = {place_of(entry.host): entry for entry in entries}
    return tuple(entry for place, entry in found.items() if place not in own)


def warnings(inventory: Inventory, ledger: Ledger, environments: Ledger) -> Iterator[str]:
    """Where something of ours may be left on former hosts, and what takes it away."""
    machines = {place_of(host)[1:] for host in inventory.hosts}
    for each, command in ((ledger, "hetero-tui down"), (environments, "hetero-tui down --purge")):
        for entry in former(inventory, each.entries()):
            if place_of(entry.host)[1:] not in machines:  # otherwise it has another name now
                what = f"something of ours may still be on {_label(entry.host)}, which the inventory no longer has"
                yield f"{what} -> `{command}` takes it away"


def open_former(inventory: Inventory, entry: Entry, *, accept_new_host_keys: bool) -> Transport:
    """The way to a former host; its name there tells it from a host of the inventory with the same one."""
    host = entry.host
    if inventory.host(host.name) is not None:
        host = host.model_copy(update={"name": _label(host)})
    with_jumps = inventory.model_copy(update={"hosts": (*inventory.hosts, *entry.jumps)})
    return open_transport(host, with_jumps, accept_new_host_keys=accept_new_host_keys)


def _label(host: Host) -> str:
    """A host with the way to it, for people."""
    target = "this computer" if host.connection == "local" else target_of(host.model_dump())
    return f"{host.name} ({target})"
