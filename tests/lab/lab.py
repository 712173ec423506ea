"""Several hosts on one Linux computer: each with its own network, processes, files, name and real OpenSSH server.

::

    laptop ──┐
    mercer ──┤ switch     every cable can be cut, and has a speed
    crosby ──┘

    with Lab([HostSpec(name="mercer"), HostSpec(name="crosby", rate_mbit=100)]) as lab:
        lab.laptop.run(["hetero-tui", "--inventory", str(lab.inventory()), "probe", "--json"])
        lab.hosts[1].cut()

It needs root, and leaves nothing behind: name spaces, processes and folders carry the lab's own id, and leaving the
context removes and checks them, after an exception and after SIGTERM too.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from tests.lab import disks, network
from tests.lab.machines import Host, HostSpec, Laptop, Machine
from tests.lab.network import LabError

BOOT_DEADLINE = 120.0
"""Seconds from starting a host to the first word of its SSH server."""

NETWORK, NETWORK_V6 = "10.99.0.", "fd00:99::"
NOBODY = f"{NETWORK}250"
"""An address in the lab's network that no machine has."""

_FIRST_HOST = 11
_PREFIX = "htlab-"
_FOLDERS = Path("/var/tmp")  # not /tmp, which every machine has for itself
_TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
}

_AWAIT_SSH = """
import socket, sys, time
end = time.monotonic() + float(sys.argv[1])
for address in sys.argv[2:]:
    while True:
        try:
            with socket.create_connection((address, 22), 1) as connection:
                if connection.recv(4) == b"SSH-":
                    break
        except OSError:
            pass
        if time.monotonic() > end:
            sys.exit("no SSH server answers at " + address)
        time.sleep(0.02)
"""


def obstacle() -> str | None:
    """Why a lab can't be built on this computer, in one sentence; None when it can."""
    if not sys.platform.startswith("linux"):
        return "the lab needs Linux"
    if os.getuid() != 0:
        return "the lab needs root, for network name spaces"
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool, path=search) is None})
    if missing:
        return f"the lab needs the packages {', '.join(missing)}"
    try:
        network.command(["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"])
    except LabError as error:
        return f"the lab needs name spaces, which this computer does not allow: {error}"
    return None


class Lab:
    """A network of hosts and a laptop; a context manager.

    Attributes:
        hosts: The hosts in the order of their specifications.
        laptop: Where the product is started.
        folder: All that the lab keeps on this computer's disk.
    """

    def __init__(
        self,
        specs: Sequence[HostSpec],
        *,
        rate_mbit: float | None = None,
        medium_mbit: float | None = None,
        ipv6: bool = False,
    ) -> None:
        """Plan the lab; nothing is made before the context is entered.

        Args:
            specs: The hosts.
            rate_mbit: Speed in Mbit/s of every link that names no other; None for as fast as the computer is.
            medium_mbit: Speed in Mbit/s of one medium that all hosts send over, as on a Wi-Fi; None: there is none.
            ipv6: The machines have no other addresses than those of IPv6.
        """
        self.id = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(2)}"
        self._specs = tuple(specs)
        self._rate_mbit, self._medium_mbit = rate_mbit, medium_mbit
        self._network = NETWORK_V6 if ipv6 else NETWORK
        self._switch = f"{self.id}-{network.BRIDGE}"
        self._earlier_handler: Any = None
        self._inventories = 0
        self.hosts: tuple[Host, ...] = ()
        self.laptop: Laptop
        self.folder: Path

    def __enter__(self) -> Self:
        reason = obstacle()
        if reason is not None:
            raise LabError(reason)
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.id}-", dir=_FOLDERS))
        self.folder.chmod(0o711)  # a host's server reads the laptop's public key as the user who logs in
        self._earlier_handler = signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.close()
        os.kill(os.getpid(), signal.SIGTERM)

    def _build(self) -> None:
        network.add_switch(self._switch, medium_mbit=self._medium_mbit)
        keys = self.folder / "keys"
        keys.mkdir()
        self.laptop = Laptop(
            run=self.id,
            number=0,
            address=f"{self._network}1",
            folder=self.folder / "laptop",
            rate_mbit=self._rate_mbit,
        )
        self.hosts = tuple(
            Host(
                spec,
                run=self.id,
                number=number,
                address=f"{self._network}{_FIRST_HOST + number - 1}",
                folder=self.folder / spec.name,
                rate_mbit=self._rate_mbit,
                shared=self._medium_mbit is not None,
            )
            for number, spec in enumerate(self._specs, start=1)
        )
        self._name_machines()
        identity = self.laptop.home / ".ssh/id_ed25519"
        _make_key(identity, "laptop")
        authorized = Path(shutil.copy(identity.with_suffix(".pub"), keys / "laptop.pub"))
        for host in self.hosts:
            _make_key(keys / host.name, host.name)
            host.write_server_config(host_key=keys / host.name, authorized_keys=authorized)
        self.known_hosts()
        self.laptop.plug_in()
        for host in self.hosts:
            host.boot()
        self.await_hosts()

    def _name_machines(self) -> None:
        """Each machine's own name means its address, not its loopback: what Ray advertises is what the others reach."""
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        lines += [f"{machine.address} {machine.name}" for machine in (self.laptop, *self.hosts)]
        for machine in (self.laptop, *self.hosts):
            (machine.folder / "hosts").write_text("\n".join(lines) + "\n")

    def move(self, machine: Machine, address: str) -> None:
        """Give a machine another address, and tell all machines what its name means now."""
        machine.move(address)
        self._name_machines()

    def host(self, name: str) -> Host:
        """The host of that name."""
        return next(host for host in self.hosts if host.name == name)

    def await_hosts(self, *hosts: Host) -> None:
        """Wait until the SSH servers of these hosts (all, if none is named) answer the laptop.

        Raises:
            LabError: one did not within :data:`BOOT_DEADLINE`; the message holds the end of its log.
        """
        waited = hosts or self.hosts
        if not waited:
            return
        script = [sys.executable, "-S", "-E", "-c", _AWAIT_SSH, str(BOOT_DEADLINE)]
        done = self.laptop.run([*script, *(host.address for host in waited)], deadline=2 * BOOT_DEADLINE)
        if done.returncode != 0:
            logs = "\n".join(f"{host.name}: {host.log[-500:]}" for host in waited)
            raise LabError(f"{done.stderr.strip()}\n{logs}")

    def known_hosts(self) -> None:
        """Write the laptop's known_hosts file, with all hosts."""
        keys = {host: (self.folder / "keys" / f"{host.name}.pub").read_text().split()[:2] for host in self.hosts}
        lines = [f"{host.name},{host.address} {' '.join(key)}\n" for host, key in keys.items()]
        (self.laptop.home / ".ssh/known_hosts").write_text("".join(lines))

    def inventory(
        self,
        overrides: Mapping[str, Mapping[str, object]] | None = None,
        *,
        hosts: Sequence[str] | None = None,
        cluster: str = "lab",
        security: str = "token",
        network: str = "direct",
    ) -> Path:
        """Write an inventory for the laptop; a new file each time.

        Args:
            overrides: For a host's name, keys of its entry to set or (None) to leave out:
                ``{"mercer": {"user": "nobody-here"}, "crosby": {"address": NOBODY}, "nas": {"python": None}}``.
            hosts: Names of the hosts in it, in this order; all, if not given.
            cluster: The cluster's name.
            security: Whether what the hosts send each other is encrypted: ``tls``.
            network: ``wireguard`` for a network of the cluster's own.
        """
        self._inventories += 1
        folder = self.laptop.home / f"inventory-{self._inventories}"
        folder.mkdir()
        lines = ["cluster:", f"  name: {cluster}", f"  security: {security}", f"  network: {network}", "hosts:"]
        for host in self.hosts if hosts is None else [self.host(name) for name in hosts]:
            entry: dict[str, object | None] = {"address": host.address, "cpus": host.spec.cpus}
            if host.spec.has_python:
                entry["python"] = sys.executable
            entry |= (overrides or {}).get(host.name, {})
            lines.append(f"  {host.name}:")
            # What JSON calls a value, YAML reads as the same value.
            lines += [f"    {key}: {json.dumps(value)}" for key, value in entry.items() if value is not None]
        path = folder / "inventory.yaml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def close(self) -> None:
        """Take the lab down, and check that nothing of it is left; idempotent.

        Raises:
            LabError: something is left.
        """
        for machine in (getattr(self, "laptop", None), *self.hosts):
            if machine is not None:
                machine.shut_down()
        network.delete_namespace(self._switch)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._earlier_handler is not None:
            signal.signal(signal.SIGTERM, self._earlier_handler)
            self._earlier_handler = None
        left = [*network.namespaces(self.id), *([str(self.folder)] if self.folder.exists() else [])]
        if left:
            raise LabError(f"the lab left something behind: {', '.join(left)}")


def _sweep() -> None:
    """Remove what labs left whose process was killed with SIGKILL; their hosts died with it."""
    namespaces = {name: name.split("-")[1] for name in network.namespaces(_PREFIX)}
    folders = {path: path.name.split("-")[1] for path in _FOLDERS.glob(f"{_PREFIX}*")}
    dead = {owner for owner in (*namespaces.values(), *folders.values()) if not Path(f"/proc/{owner}").exists()}
    for name, owner in namespaces.items():
        if owner in dead:
            network.delete_namespace(name)
    for path, owner in folders.items():
        if owner in dead:
            for home in path.glob("*/home"):
                disks.remove(home)
            shutil.rmtree(path)


def _make_key(path: Path, comment: str) -> None:
    try:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
        subprocess.run(command, check=True, capture_output=True, timeout=network.COMMAND_DEADLINE)
    except subprocess.SubprocessError as error:
        raise LabError(f"no key could be made: {error}") from error
