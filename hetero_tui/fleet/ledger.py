"""Records what is done to hosts, before it is done, so that ``down`` can clean up after any crash.

The file has one JSON document a line, appended and synced to disk. An entry has a host with all data needed to reach it
again, so that a host that was removed from the inventory can still be cleaned. The host itself records what is there
(``node.json``, ``processes/``); the ledger only says *where to look*.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from platformdirs import user_state_path
from pydantic import ValidationError

from hetero_tui.errors import ClusterError
from hetero_tui.inventory import Host

_TOKEN, _AUTHORITY = "token", "authority.pem"
_CLEANED = "cleaned"

Place = tuple[str, str, str | None, int | None, str | None, str | None]


def place_of(host: Host) -> Place:
    """What tells entries apart: a host of the same name at another address, or of another user, may be another one."""
    return (host.name, host.connection, host.address, host.port, host.user, host.proxy_jump)


@dataclass(frozen=True, slots=True)
class Entry:
    """``host`` may have something of ours; ``kind`` is the last begun action, for the file ``inventory``."""

    host: Host
    kind: str
    inventory: str = ""


class Ledger:
    """The ledger of one cluster on this laptop; ``<state folder>/hetero-tui/<cluster>/ledger.jsonl``, 0600.

    Environments, which stay after ``down``, have a separate ledger beside it. The methods raise ClusterError if the
    folder can't be used.
    """

    NAMES: ClassVar = ("ledger.jsonl", "environments.jsonl")

    def __init__(
        self,
        cluster: str,
        folder: Path | None = None,
        name: str = NAMES[0],
        hosts: Sequence[Host] = (),
        inventory: Path | None = None,
    ) -> None:
        """Open the file of that name; ``folder`` replaces the user's state folder (demo, tests).

        ``inventory`` is the file in which the cluster has these ``hosts``.
        """
        self._hosts = tuple(hosts)
        self._inventory = str(inventory.resolve()) if inventory is not None else ""
        self.folder = (folder if folder is not None else user_state_path("hetero-tui")) / cluster
        self._path = self.folder / name

    def intend(self, host: Host, kind: str) -> None:
        """Record that something is about to be done to ``host``; the entry is on disk when this returns."""
        dumped = host.model_dump(mode="json", exclude_defaults=True)
        document: dict[str, object] = {"time": time.time(), "kind": kind, "host": dumped}
        with self._explained():
            if self._inventory:
                document["inventory"] = self._inventory
            self._append(document)

    def cleaned(self, host: Host) -> None:
        """Record that nothing of ours is left on ``host``; the file is removed with the last host."""
        self.intend(host, _CLEANED)
        with self._explained():
            if not self.entries():
                self._path.unlink(missing_ok=True)
                self._remove_empty_folder()

    def entries(self) -> tuple[Entry, ...]:
        """The hosts that may have something of ours, the newest first; an incomplete line is skipped."""
        found: dict[Place, Entry] = {}
        with self._explained():
            try:
                lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
            except FileNotFoundError:
                return ()
        for line in lines:
            try:
                document = json.loads(line)
                host = Host.model_validate(document["host"])
                entry = Entry(host, str(document["kind"]), str(document.get("inventory", "")))
            except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
                continue
            found.pop(place_of(entry.host), None)
            if entry.kind != _CLEANED:
                found[place_of(entry.host)] = entry
        return tuple(reversed(found.values()))

    def of_another(self) -> Entry | None:
        """A host of another inventory, whose file is still there and whose cluster has the same name, or None."""
        own = {place_of(host) for host in self._hosts}
        return next(
            (
                entry
                for entry in self.entries()
                if entry.inventory not in ("", self._inventory)
                and place_of(entry.host) not in own
                and os.path.exists(entry.inventory)  # noqa: PTH110 - Path raises where a folder can't be entered
            ),
            None,
        )

    def former(self) -> tuple[Entry, ...]:
        """The entries of hosts that the inventory no longer has, or not at that address and for that user."""
        own = {place_of(host) for host in self._hosts}
        return tuple(entry for entry in self.entries() if place_of(entry.host) not in own)

    def of_others(self, hosts: Iterable[Host]) -> dict[str, tuple[str, ...]]:
        """Clusters of other names that this laptop started on these machines and did not take down: its hosts there."""
        places = {(host.connection, host.address, host.port) for host in hosts}
        found: dict[str, tuple[str, ...]] = {}
        for path in sorted(self.folder.parent.glob(f"*/{self.NAMES[0]}")):
            name = path.parent.name
            there = [entry.host for entry in Ledger(name, self.folder.parent).entries()]
            names = tuple(host.name for host in there if (host.connection, host.address, host.port) in places)
            if names and name != self.folder.name:
                found[name] = names
        return found

    def token(self) -> str | None:
        """The cluster's secret that this laptop knows, or None."""
        return self._kept(_TOKEN)

    def keep_token(self, token: str) -> None:
        """Keep the cluster's secret, readable by this user only; the authority of another secret is deleted."""
        with self._explained():
            if token != self.token():
                (self.folder / _AUTHORITY).unlink(missing_ok=True)
        self._keep(_TOKEN, token)

    def authority(self) -> str | None:
        """The authority (:mod:`~hetero_tui.fleet.authority`) of the cluster with that token, or None."""
        return self._kept(_AUTHORITY)

    def keep_authority(self, authority: str) -> None:
        """Keep the authority, readable by this user only."""
        self._keep(_AUTHORITY, authority)

    def _kept(self, name: str) -> str | None:
        with self._explained():
            try:
                return (self.folder / name).read_text(encoding="ascii") or None
            except (FileNotFoundError, UnicodeDecodeError):  # incomplete after a crash
                return None

    def _keep(self, name: str, text: str) -> None:
        with self._explained():
            self._make_folder()
            path = self.folder / name
            temporary = path.with_suffix(".new")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(text)
            temporary.replace(path)

    def forget_token(self) -> None:
        """Remove the secret and the authority; the next cluster gets new ones."""
        for name in (_TOKEN, _AUTHORITY):
            (self.folder / name).unlink(missing_ok=True)
        self._remove_empty_folder()

    def _remove_empty_folder(self) -> None:
        with suppress(OSError):  # not empty, or never made
            self.folder.rmdir()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of the ledger's file into one for the user, since nothing may start without a ledger."""
        try:
            yield
        except OSError as error:
            where = error.filename if isinstance(error.filename, str) else self.folder
            raise ClusterError(
                f"this computer can't keep its record of the cluster: {where}: {error.strerror}",
                step="save",
                hint="make room or make it writable, or have XDG_STATE_HOME name another folder",
            ) from error

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _append(self, document: dict[str, object]) -> None:
        self._make_folder()
        line = (json.dumps(document, separators=(",", ":")) + "\n").encode()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # a crash left an incomplete line: keep it, and start a new one
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
