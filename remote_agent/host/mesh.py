"""This machine's end of the cluster's WireGuard network: an interface that is brought up, kept up and taken away.

On the command line (one JSON line on stdout, exit code 0 or 1)::

    python -m remote_agent.host.mesh look --folder F    -> MeshReport; changes nothing
    python -m remote_agent.host.mesh up                 MeshSpec on stdin -> MeshReport

It is the one part of the agent that needs root, or sudo without a password: for ``ip``, ``wg`` and, where the kernel
has no WireGuard, ``wireguard-go``. The interface's name follows from the cluster's folder, so that ``node stop`` finds
it after any crash, and what lies on disk (``mesh.json``, mode 0600) is enough to bring it up again after a reboot.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import hashlib
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from remote_agent import deadlines, plain_file
from remote_agent.host import layout, processes
from remote_agent.protocol import (
    CLUSTER_MARK,
    MESH_INTERFACE,
    MESH_PORT,
    Leftover,
    MeshReport,
    MeshSpec,
    ProtocolError,
    decode,
    encode,
)

PORTS = range(MESH_PORT, MESH_PORT + 20)
KEEPALIVE_SECONDS = 25  # WireGuard's own advice, for hosts behind a router that translates addresses
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))
_SUDO_HINT = (
    "log in there as root, or give this user sudo without a password for ip, wg and wireguard-go: a line"
    " `{user} ALL=(root) NOPASSWD: ALL` in /etc/sudoers.d/hetero-tui (by visudo); or leave `network: wireguard` out"
)
_TTY_HINT = "its sudo wants a terminal (requiretty): a line `Defaults:{user} !requiretty` in /etc/sudoers.d/hetero-tui"


class MeshError(Exception):
    """The interface could not be made or removed: why."""


def interface(folder: Path) -> str:
    """The interface's name, of 15 letters at most as the kernel wants it."""
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()
    return f"{MESH_INTERFACE}{folder.name[:5]}-{digest[:4]}"


def is_up(folder: Path) -> bool:
    """Whether the interface is there."""
    try:
        socket.if_nametoindex(interface(folder))
    except OSError:
        return False
    return True


def read_spec(folder: Path) -> MeshSpec | None:
    """What :func:`up` was told last; None where this machine is in no such network."""
    try:
        return decode(MeshSpec, plain_file.read_text(layout.mesh_path(folder)))
    except (OSError, ProtocolError, UnicodeDecodeError):
        return None


def look(folder: Path) -> MeshReport:
    """Whether this machine can be in a WireGuard network, and how it stands in this cluster's."""
    cause, hint = _obstacle()
    if cause:
        return MeshReport(cause=cause, hint=hint)
    spec = read_spec(folder)
    return MeshReport(
        networks=_networks(folder),
        port=spec.port if spec is not None else _free_port(),
        is_up=is_up(folder),
        spec=replace(spec, private_key="") if spec is not None else None,
    )


def _obstacle() -> tuple[str, str]:
    if not sys.platform.startswith("linux"):
        return "`network: wireguard` needs Linux", "take this host out, or leave `network: wireguard` out"
    if _find("ip") is None or _find("wg") is None:
        return "has no `ip` or no `wg` program", "sudo apt install iproute2 wireguard-tools (or your system's packages)"
    if not _kernel_has_it() and (_find("wireguard-go") is None or not Path("/dev/net/tun").exists()):
        return "its kernel has no WireGuard, and there is no wireguard-go", "sudo apt install wireguard-go"
    try:
        _as_root("ip", "-V")
        _as_root("wg", "--version")
    except MeshError as error:
        if os.geteuid() == 0:
            return f"WireGuard can't be used: {error}", "see why that program does not run there"
        user = getpass.getuser()
        hint = _TTY_HINT if "tty" in str(error) else _SUDO_HINT
        return f"WireGuard needs root, or sudo without a password for {user}: {error}", hint.format(user=user)
    return "", ""


def _kernel_has_it() -> bool:
    if Path("/sys/module/wireguard").exists():
        return True
    modprobe = _find("modprobe")
    return modprobe is not None and _run([modprobe, "-n", "-q", "wireguard"]).returncode == 0


def _networks(folder: Path) -> tuple[str, ...]:
    """Where this machine's routes lead to, its own end of the mesh left out."""
    found: list[str] = []
    for line in _run([_find("ip") or "ip", "-4", "-o", "route", "show", "table", "all"]).stdout.splitlines():
        words = line.split()
        if interface(folder) in words:
            continue
        for word in words[:2]:  # `10.0.0.0/8 via ...`, `local 10.0.0.1 dev ...`
            with contextlib.suppress(ValueError):
                found.append(str(ipaddress.IPv4Network(word)))
    return tuple(dict.fromkeys(found))


def _free_port() -> int:
    for port in PORTS:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as candidate, contextlib.suppress(OSError):
            candidate.bind(("", port))
            return port
    return PORTS.start


def up(spec: MeshSpec) -> MeshReport:
    """Bring this machine's end up as ``spec`` says; what it has already is changed, and connections stay."""
    folder = processes.absolute_path(spec.folder)
    try:
        # A `down` after an `up` that was killed waits for what that had ordered, and takes it away.
        with processes.locked(folder, deadlines.LOCK_SECONDS):
            return _up(folder, spec)
    except TimeoutError as error:
        return MeshReport(cause=str(error), hint="another `up` or `down` works on this machine: wait until it is done")
    except OSError as error:
        return MeshReport(cause=str(error), hint="see that this user owns that place and that its disk has room")


def _up(folder: Path, spec: MeshSpec) -> MeshReport:
    former = read_spec(folder)
    if not spec.private_key and (former is None or former.public_key != spec.public_key):
        return MeshReport(cause="this machine's private key is gone", hint="run `down`, then `up`")
    if not spec.private_key and former is not None:
        spec = replace(spec, private_key=former.private_key)
    try:
        processes.write_private(layout.mesh_path(folder), encode(spec) + "\n")
        if former is not None and former.address != spec.address and is_up(folder):
            _as_root("ip", "address", "flush", "dev", interface(folder))
        _configure(folder, spec)
    except MeshError as error:
        return MeshReport(cause=str(error), hint="look at `ip link`, `wg` and `dmesg` there; then run `up` again")
    return look(folder)


def restore(folder: Path) -> str | None:
    """Bring the interface up again where it should be and is not: why that failed, or empty; None: nothing to do."""
    spec = read_spec(folder)
    if spec is None or is_up(folder):
        return None
    try:
        _configure(folder, spec)
    except MeshError as error:
        return str(error)
    return ""


def down(folder: Path) -> tuple[tuple[str, ...], tuple[Leftover, ...]]:
    """Remove the interface and what is known of it: the names of what was removed, and what is left."""
    name, path = interface(folder), layout.mesh_path(folder)
    was_up = is_up(folder)
    if was_up:
        try:
            _as_root("ip", "link", "delete", name)
            _await_end(folder)
        except MeshError as error:
            detail = f"the interface {name} could not be removed: {error} (`sudo ip link delete {name}` there does)"
            return (), (Leftover(kind="network", detail=detail),)
    removed = [f"interface {name}"] if was_up else []
    if path.exists():
        path.unlink()
        removed.append(str(path))
    return tuple(removed), ()


def _await_end(folder: Path) -> None:
    """Wait until the interface is gone, and wireguard-go's socket with it."""
    control = Path(f"/run/wireguard/{interface(folder)}.sock")
    ends = time.monotonic() + deadlines.MESH_END_SECONDS
    while is_up(folder) or control.exists():
        if time.monotonic() >= ends:
            raise MeshError(f"it is still there after {deadlines.MESH_END_SECONDS:.0f} s")
        time.sleep(deadlines.POLL_SECONDS)


def _configure(folder: Path, spec: MeshSpec) -> None:
    name = interface(folder)
    if not is_up(folder):
        try:
            _as_root("ip", "link", "add", name, "type", "wireguard")
        except MeshError:
            if _find("wireguard-go") is None:
                raise
            _as_root("wireguard-go", name)
    _as_root("wg", "syncconf", name, "/dev/stdin", stdin=_settings(spec))
    prefix = ipaddress.ip_network(spec.network).prefixlen
    _as_root("ip", "address", "replace", f"{spec.address}/{prefix}", "dev", name)
    _as_root("ip", "link", "set", name, "up")


def _settings(spec: MeshSpec) -> str:
    lines = ["[Interface]", f"PrivateKey = {spec.private_key}", f"ListenPort = {spec.port}"]
    for peer in spec.peers:
        lines += ["[Peer]", f"PublicKey = {peer.public_key}", f"AllowedIPs = {peer.address}/32"]
        lines += [f"Endpoint = {peer.endpoint}", f"PersistentKeepalive = {KEEPALIVE_SECONDS}"]
    return "\n".join(lines) + "\n"


def _find(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


def _as_root(program: str, *arguments: str, stdin: str = "") -> None:
    found = _find(program)
    if found is None:
        raise MeshError(f"there is no program `{program}`")
    sudo = _find("sudo")
    if os.geteuid() != 0 and sudo is None:
        raise MeshError("there is no sudo")
    done = _run([*([] if os.geteuid() == 0 else [sudo or "", "-n"]), found, *arguments], stdin)
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise MeshError(f"{program} {arguments[0]}: {said.splitlines()[-1]}")


def _run(argv: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    # wireguard-go stays: it is ended with its interface, not with the cluster's marked processes or with a terminal.
    environment = {name: value for name, value in os.environ.items() if name != CLUSTER_MARK}
    try:
        return subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadlines.MESH_COMMAND_SECONDS,
            env=environment,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"no answer within {deadlines.MESH_COMMAND_SECONDS:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m remote_agent.host.mesh", description="This host's WireGuard.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("look").add_argument("--folder", required=True, type=processes.absolute_path)
    commands.add_parser("up")
    options = parser.parse_args(arguments)
    if options.command == "look":
        report = look(options.folder)
    else:
        try:
            report = up(decode(MeshSpec, sys.stdin.readline()))
        except ProtocolError as error:
            report = MeshReport(cause=f"not a specification of a mesh: {error}", hint="run `up` again")
    print(encode(report), flush=True)
    return 1 if report.cause else 0


if __name__ == "__main__":
    sys.exit(main())
