"""The machines of an inventory's file: looked at before they are written, changed, taken out; comments stay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hetero_tui.errors import HostError, HostKeyUnknown, InventoryError, PythonMissing, UsageError
from hetero_tui.facts import HostFacts
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.probing import probe_fleet
from hetero_tui.inventory import Host, Inventory
from hetero_tui.inventory.adding import free_name, parse_target, target_of
from hetero_tui.inventory.file import (
    HOST_KEYS,
    add_host,
    change_host,
    host_fields,
    load,
    remove_host,
    with_changed,
    with_host,
)
from hetero_tui.transport import open_transport

Trusts = Callable[[str, HostKeyUnknown], Awaitable[bool]]
"""Asks whether the key that a host offers is to be trusted."""

THIS_COMPUTER = "this computer"
"""What is typed for an address where a machine is not reached by SSH."""

FORM = ("identity_file", "proxy_jump", "known_hosts", "python", "devices", "max_batch", "cpus", "role")
"""The keys of a host that have a field of their own; the others are in its address."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A machine as it answered before it is written."""

    name: str
    facts: HostFacts | None = None
    error: HostError | None = None

    @property
    def can_be_used(self) -> bool:
        """Whether it answered: a machine without Python gets one."""
        return self.error is None or isinstance(self.error, PythonMissing)

    @property
    def words(self) -> str:
        """What it is, for people."""
        if self.facts is not None:
            devices = ", ".join(self.facts.device_name(device) for device in self.facts.devices)
            return f"{self.facts.os.name}, {devices}, Python {self.facts.python.version}"
        if isinstance(self.error, PythonMissing):
            return "no Python yet: `hetero-tui bootstrap` brings one"
        return "it does not answer now"


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken out of the inventory; ``commands`` take away what may be left of ours on the machine."""

    cluster: str
    commands: tuple[str, ...] = ()


class Machines:
    """The file at ``path``, which need not be there yet. What it refuses is an InventoryError with every mistake."""

    def __init__(self, path: Path, *, accept_new_host_keys: bool = False) -> None:
        self.path = path
        self._accept = accept_new_host_keys

    def hosts(self) -> tuple[Host, ...]:
        """The hosts that are in it."""
        return load(self.path).hosts if self.path.exists() else ()

    def free_name(self, address: str) -> str:
        """A name for a machine at that address that no other has."""
        return free_name(address, {host.name for host in self.hosts()})

    def form(self, name: str) -> dict[str, str]:
        """What a form shows of a host: ``target`` and the keys of :data:`FORM`, as they would be typed."""
        own = host_fields(self.path, name)
        host = next(host for host in self.hosts() if host.name == name)
        target = THIS_COMPUTER if host.connection == "local" else target_of({"address": host.address, **own})
        return {"target": target, **{key: _written(own[key]) for key in FORM if key in own}}

    def inherited(self, name: str) -> dict[str, str]:
        """What ``defaults`` give a host for the keys that it has not itself, as :meth:`form` writes it."""
        own = host_fields(self.path, name)
        host = next(host for host in self.hosts() if host.name == name)
        plain = Host(name=name, connection=host.connection, address=host.address)
        given = {key: getattr(host, key) for key in FORM if key not in own}
        return {key: _written(value) for key, value in given.items() if value != getattr(plain, key)}

    def mistakes_in(self, name: str, typed: Mapping[str, str], *, is_new: bool) -> tuple[str, ...]:
        """What is wrong with a host as it was typed, each with its key in front; nothing is written."""
        try:
            self._with(name, fields_of(typed), is_new=is_new)
        except InventoryError as error:
            there = (f"hosts.{name}.", f"hosts.{name}: ")
            return tuple(mistake.removeprefix(there[0]).removeprefix(there[1]) for mistake in error.mistakes)
        except UsageError as error:
            return (error.cause,)
        return ()

    async def look(self, name: str, fields: Mapping[str, object], trusts: Trusts, *, is_new: bool = True) -> Looked:
        """Look at a machine as it would be written; a key that was never seen is shown to ``trusts``.

        Raises:
            InventoryError: it can't be written so.
        """
        inventory = self._with(name, fields, is_new=is_new)
        host = inventory.host(name)
        assert host is not None, "it was put there"
        transport = open_transport(host, inventory, accept_new_host_keys=self._accept)
        try:
            (found,) = await probe_fleet(inventory, {name: transport}, lambda _: None)
            accepted: set[str] = set()  # a jump host has a key of its own; one that can't be kept is not asked again
            while isinstance(found.error, HostKeyUnknown) and found.error.fingerprint not in accepted:
                if not await trusts(name, found.error):
                    break
                transport.accept_offered_key()
                accepted.add(found.error.fingerprint)
                (found,) = await probe_fleet(inventory, {name: transport}, lambda _: None)
        finally:
            await transport.close()
        return Looked(name, found.facts, found.error)

    def write(self, name: str, fields: Mapping[str, object], *, is_new: bool = True) -> None:
        """Write a host into the file, or change the one of that name."""
        if is_new:
            add_host(self.path, name, fields)
        else:
            change_host(self.path, name, self._as_written(name, fields))

    def remove(self, name: str) -> Taken:
        """Take a host out of the file. Nothing is done on the machine: the answer says what does that."""
        cluster = remove_host(self.path, name).cluster
        kept = (name in {entry.host.name for entry in Ledger(cluster, name=each).entries()} for each in Ledger.NAMES)
        commands = ("hetero-tui down", "hetero-tui down --purge")
        return Taken(cluster, tuple(command for command, carries in zip(commands, kept, strict=True) if carries))

    def _with(self, name: str, fields: Mapping[str, object], *, is_new: bool) -> Inventory:
        """The inventory as :meth:`write` would make it."""
        if is_new:
            return with_host(self.path, name, fields)[0]
        return with_changed(self.path, name, self._as_written(name, fields))[0]

    def _as_written(self, name: str, fields: Mapping[str, object]) -> dict[str, object]:
        """A host's fields as they are to be in the file: how it is reached is said there, or by the ``defaults``."""
        own = host_fields(self.path, name)
        was_local = any(host.name == name and host.connection == "local" for host in self.hosts())
        is_local = fields.get("connection") == "local"
        way = (
            ({"connection": own["connection"]} if "connection" in own else {})
            if was_local == is_local
            else {"connection": "local" if is_local else "ssh"}
        )
        return {**{key: value for key, value in fields.items() if key != "connection"}, **way}


def fields_of(typed: Mapping[str, str]) -> dict[str, object]:
    """A host's fields as they were typed: what is empty is left out; a whole number where one is meant.

    Raises:
        UsageError: the target is no ``[user@]host[:port]``.
    """
    target = typed.get("target", "").strip()
    fields: dict[str, object] = {"connection": "local"} if target == THIS_COMPUTER else parse_target(target)
    for key in FORM:
        text = typed.get(key, "").strip()
        if not text:
            continue
        if key == "devices":
            fields[key] = tuple(word for word in text.replace(",", " ").split() if word)
        else:
            fields[key] = int(text) if key in ("max_batch", "cpus") and text.isdecimal() and len(text) < 10 else text
    return fields


def _written(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


assert {*FORM, "address", "user", "port", "connection"} == {*HOST_KEYS}, "each key of a host has its place in the form"
