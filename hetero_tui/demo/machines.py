"""Embedded machines: real SSH servers inside this process, on loopback, each with a home folder of its own.

From the first packet on they are hosts like any other: the same transport, probe and agent run against them. What is
not real is their speed, and they say so: ``HETERO_TUI_SIMULATED_SPEED`` is set for all that runs on them.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncssh

from hetero_tui.demo.session import CommandSession, Machine
from remote_agent.protocol import SIMULATED_SPEED

SPEEDS = (1.0, 0.5, 0.25)
"""Fractions of this computer's speed that the demo's machines simulate."""

_NAMES = {1.0: "fast", 0.5: "half", 0.25: "quarter"}


@dataclass(frozen=True, kw_only=True)
class EmbeddedMachine:
    """One machine: an SSH server at ``address``:``port`` whose users start in ``home``."""

    name: str
    address: str
    port: int
    home: Path
    speed: float
    host_key: asyncssh.SSHKey


def make_folder() -> Path:
    """A new private folder with a short path: Ray's sockets below it must fit in 107 characters."""
    return Path(tempfile.mkdtemp(prefix="ht-demo-", dir="/tmp"))


class EmbeddedMachines:
    """As many machines as there are ``speeds``, alive while the context is open.

    Args:
        folder: Where homes and keys lie; it must be private to this user, and its path short.
        speeds: Each machine's simulated speed, as a fraction of this computer's.
        search_path: PATH on the machines; this process's if not given.
    """

    def __init__(
        self,
        folder: Path,
        speeds: Sequence[float] = SPEEDS,
        search_path: str | None = None,
    ) -> None:
        self.folder = folder
        self.cluster = f"demo-{secrets.token_hex(3)}"
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.machines: tuple[EmbeddedMachine, ...] = ()
        self._search_path = search_path or os.environ.get("PATH") or os.defpath
        self._speeds = tuple(speeds)
        self._client_key = asyncssh.generate_private_key("ssh-ed25519")
        self._servers: dict[str, asyncssh.SSHAcceptor] = {}
        self._hosts: dict[str, Machine] = {}

    @property
    def identity_file(self) -> Path:
        """The one private key that the machines accept."""
        return self.folder / "client_key"

    @property
    def known_hosts(self) -> Path:
        """Holds the host key of every machine."""
        return self.folder / "known_hosts"

    async def __aenter__(self) -> Self:
        _write_private(self.identity_file, self._client_key.export_private_key())
        for index, speed in enumerate(self._speeds):
            name = _name(index, self._speeds)
            home = self.folder / name
            home.mkdir(mode=0o700)
            address = f"127.0.0.{index + 2}" if sys.platform == "linux" else "127.0.0.1"
            self.machines += (
                EmbeddedMachine(
                    name=name,
                    address=address,
                    port=0,
                    home=home,
                    speed=speed,
                    host_key=asyncssh.generate_private_key("ssh-ed25519"),
                ),
            )
        try:
            self.machines = tuple([await self._listen(machine) for machine in self.machines])
        except BaseException:
            await self._stop()
            raise
        entries = [
            f"[{machine.address}]:{machine.port} {machine.host_key.export_public_key().decode().strip()}\n"
            for machine in self.machines
        ]
        _write_private(self.known_hosts, "".join(entries).encode())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def machine(self, name: str) -> EmbeddedMachine:
        """The machine of that name. Raises KeyError."""
        return {machine.name: machine for machine in self.machines}[name]

    async def unplug(self, name: str) -> None:
        """The machine's SSH connections break and no new ones are accepted; what it runs in own sessions goes on."""
        await self._close(self.machine(name).name)

    async def plug_in(self, name: str) -> None:
        """The machine is reachable again, at the same address and port."""
        await self._listen(self.machine(name))

    def write_inventory(self) -> Path:
        """Write an inventory of the machines, ``inventory.yaml`` in the folder."""
        path = self.folder / "inventory.yaml"
        lines = [
            "# The demo's machines: SSH servers on this computer, at simulated speeds.",
            f"cluster: {{name: {self.cluster}, head: {self.machines[0].name}}}",
            "defaults:",
            f"  user: {_quoted(self.user)}",
            f"  identity_file: {_quoted(str(self.identity_file))}",
            f"  known_hosts: {_quoted(str(self.known_hosts))}",
            f"  python: {_quoted(sys.executable)}",
            "  cpus: 1",
            "hosts:",
            *(f"  {machine.name}: {{address: {machine.address}, port: {machine.port}}}" for machine in self.machines),
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    async def _listen(self, machine: EmbeddedMachine) -> EmbeddedMachine:
        host = Machine(home=machine.home, environment=self._environment(machine))
        self._hosts[machine.name] = host
        server = await asyncssh.listen(
            machine.address,
            machine.port,
            server_factory=lambda: _Server(self.user, self._client_key, host),
            server_host_keys=[machine.host_key],
            encoding=None,
            config=None,
            line_editor=False,
            allow_scp=False,
            agent_forwarding=False,
            x11_forwarding=False,
            gss_host=None,
            reuse_address=True,
        )
        self._servers[machine.name] = server
        return EmbeddedMachine(**{**vars(machine), "port": server.get_port()})

    def _environment(self, machine: EmbeddedMachine) -> dict[str, str]:
        return {
            "HOME": str(machine.home),
            "USER": self.user,
            "LOGNAME": self.user,
            "SHELL": "/bin/sh",
            "PATH": self._search_path,
            "LANG": "C.UTF-8" if sys.platform == "linux" else "en_US.UTF-8",
            SIMULATED_SPEED: f"{machine.speed:g}",
        }

    async def _close(self, name: str) -> None:
        server = self._servers.pop(name, None)
        if server is not None:
            server.close()
        host = self._hosts.pop(name, None)
        if host is not None:
            await host.close()
        if server is not None:
            await server.wait_closed()

    async def _stop(self) -> None:
        await asyncio.gather(*(self._close(machine.name) for machine in self.machines))


class _Server(asyncssh.SSHServer):
    """Lets one user in with one key, and forwards to this computer's loopback only."""

    def __init__(self, user: str, key: asyncssh.SSHKey, machine: Machine) -> None:
        self._user = user
        self._key = key.convert_to_public()
        self._machine = machine
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._machine.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._machine.connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == self._user and key == self._key

    def session_requested(self) -> Callable[..., None]:
        return partial(CommandSession.begin, self._machine)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host == "localhost" or dest_host.startswith("127.")


def _name(index: int, speeds: Sequence[float]) -> str:
    speed = speeds[index]
    if speed in _NAMES and list(speeds).count(speed) == 1:
        return _NAMES[speed]
    return f"machine-{index + 1}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _write_private(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
