"""Hosts of the ledgers that the inventory no longer has, or not at the address and for the user of then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from hetero_tui.errors import HostError
from hetero_tui.fleet.ledger import PURGE, Entry, Ledger, place_of
from hetero_tui.inventory import Host, Inventory
from hetero_tui.inventory.adding import target_of
from hetero_tui.transport import Transport, open_transport


def former(inventory: Inventory, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries, one a host, of former hosts."""
    own = {place_of(host) for host in inventory.hosts}
    found = {place_of(entry.host): entry for entry in entries}
    return tuple(entry for place, entry in found.items() if place not in own)


async def follow_moved(inventory: Inventory, transports: Mapping[str, Transport], ledger: Ledger) -> None:
    """Have the ledger know hosts at their present address that only got another one, as from DHCP.

    A host is the same if it has the same name and user, and shows the SSH key by which its former address is known.
    What a `down --purge` is to remove stays as it is: that entry's time counts.
    """
    known = {place_of(entry.host) for entry in ledger.entries()}
    for entry in former(inventory, ledger.entries()):
        host = inventory.host(entry.host.name)
        if (
            host is None
            or entry.host.address is None
            or entry.kind == PURGE
            or not _differ_by_address(host, entry.host)
        ):
            continue
        with suppress(HostError):
            if await transports[host.name].shows_key_of(entry.host.address, entry.host.port):
                if place_of(host) not in known:
                    ledger.intend(host, entry.kind)
                ledger.cleaned(entry.host)


def _differ_by_address(host: Host, before: Host) -> bool:
    return place_of(host) == place_of(before.model_copy(update={"address": host.address, "port": host.port}))


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
