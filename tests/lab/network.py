"""The lab's wires: network name spaces, one bridge as the switch, and a shaped link to each machine.

All of it is made with ``ip`` and ``tc`` (iproute2). Both ends of every pair of interfaces live in name spaces of the
lab, so nothing of it is seen from the computer's own network, and an address can't collide with a real one.
"""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Sequence
from pathlib import Path

COMMAND_DEADLINE = 120.0
"""Seconds that one ``ip`` or ``tc`` command may take; they answer in milliseconds."""

BRIDGE = "switch0"
INTERFACE = "eth0"
"""A machine's one interface, as the machine itself calls it."""

_MEDIUM = "medium0"

_BURST_S = 0.002
"""What a shaped link may be ahead of its speed: with less, one of 1 Gbit/s is slower than that where the computer is
busy; with more, a gradient of some hundred kilobytes passes in a part of the time that it takes over a real link."""

_LEAST_BURST = 16_000
"""Bytes: some packets."""

_NAMESPACES = Path("/run/netns")


class LabError(RuntimeError):
    """The lab itself could not do what a test asked of it."""


def command(argv: Sequence[str], *, deadline: float = COMMAND_DEADLINE, stdin: str = "") -> str:
    """Run one command of this computer to its end and give its standard output.

    Raises:
        LabError: it failed, or took longer than ``deadline`` seconds.
    """
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=deadline, input=stdin)
    except subprocess.TimeoutExpired:
        raise LabError(f"no answer within {deadline:g} s: {' '.join(argv)}") from None
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def add_namespace(name: str) -> None:
    """Make a network name space with its loopback up."""
    command(["ip", "netns", "add", name])
    command(["ip", "-n", name, "link", "set", "lo", "up"])


def delete_namespace(name: str) -> None:
    """Remove a network name space with all interfaces in it; nothing happens when there is none."""
    if (_NAMESPACES / name).exists():
        command(["ip", "netns", "delete", name])


def namespaces(prefix: str) -> tuple[str, ...]:
    """Names of this computer's network name spaces that start with ``prefix``."""
    return tuple(sorted(path.name for path in _NAMESPACES.glob(f"{prefix}*")))


def processes_in(namespace: str) -> tuple[int, ...]:
    """PIDs (as this computer counts them) of all processes in a network name space."""
    return tuple(int(pid) for pid in command(["ip", "netns", "pids", namespace]).split())


def add_switch(namespace: str, *, medium_mbit: float | None = None) -> None:
    """Make the name space that holds the bridge; every cable of the lab ends there.

    Args:
        namespace: of the switch.
        medium_mbit: speed in Mbit/s of what cables share that are connected so; None: there is no such thing.
    """
    add_namespace(namespace)
    command(["ip", "-n", namespace, "link", "add", "name", BRIDGE, "type", "bridge"])
    command(["ip", "-n", namespace, "link", "set", BRIDGE, "up"])
    if medium_mbit is not None:
        command(["ip", "-n", namespace, "link", "add", "name", _MEDIUM, "type", "ifb"])
        command(["ip", "-n", namespace, "link", "set", _MEDIUM, "up"])
        command(["tc", "-n", namespace, "qdisc", "replace", "dev", _MEDIUM, "root", *_shape(medium_mbit)])


def connect(
    switch: str, namespace: str, *, port: str, address: str, rate_mbit: float | None, shared: bool = False
) -> None:
    """Lay a cable from the switch's ``port`` to a machine's name space.

    Args:
        switch: The switch's name space.
        namespace: The machine's name space; it gets :data:`INTERFACE`.
        port: Name of the switch's end.
        address: The machine's address with its prefix length, of IPv4 or IPv6.
        rate_mbit: Speed of the link in Mbit/s, in each direction; None for as fast as the computer is.
        shared: What the machine sends passes the switch's medium, one packet after the other with all others'.
    """
    command(["ip", "-n", switch, "link", "add", "name", port, "type", "veth", "peer", INTERFACE, "netns", namespace])
    command(["ip", "-n", switch, "link", "set", port, "master", BRIDGE, "up"])
    # A machine that comes back has the hardware address that the others remember.
    parsed = ipaddress.ip_interface(address)
    hardware = "02:00:" + parsed.packed[-4:].hex(":")
    command(["ip", "-n", namespace, "link", "set", INTERFACE, "address", hardware])
    at_once = ["nodad"] if parsed.version == 6 else []
    command(["ip", "-n", namespace, "address", "add", address, "dev", INTERFACE, *at_once])
    command(["ip", "-n", namespace, "link", "set", INTERFACE, "up"])
    if rate_mbit is not None:
        # A queue shapes what leaves an interface, so each direction has its own, at its own end.
        for place, interface in ((switch, port), (namespace, INTERFACE)):
            command(["tc", "-n", place, "qdisc", "replace", "dev", interface, "root", *_shape(rate_mbit)])
    if shared:
        command(["tc", "-n", switch, "qdisc", "add", "dev", port, "ingress"])
        every = ["protocol", "all", "u32", "match", "u32", "0", "0"]
        onto = ["action", "mirred", "egress", "redirect", "dev", _MEDIUM]
        command(["tc", "-n", switch, "filter", "add", "dev", port, "parent", "ffff:", *every, *onto])


def _shape(rate_mbit: float) -> list[str]:
    """A queue that lets through so much, and after a pause little more than that at once, as a link does."""
    burst = max(_LEAST_BURST, int(rate_mbit * 1e6 / 8 * _BURST_S))
    return ["tbf", "rate", f"{rate_mbit:g}mbit", "burst", f"{burst}b", "latency", "50ms"]


def set_port(switch: str, port: str, *, up: bool) -> None:
    """Plug a cable in, or pull it out, at the switch."""
    command(["ip", "-n", switch, "link", "set", port, "up" if up else "down"])


def disconnect(switch: str, port: str) -> None:
    """Remove a cable with both its ends, at once; the name space that it led to would take its time."""
    command(["ip", "-n", switch, "link", "delete", port])


def shape(switch: str, namespace: str, port: str, rate_mbit: float) -> None:
    """Give a cable another speed, in each direction."""
    for place, interface in ((switch, port), (namespace, INTERFACE)):
        command(["tc", "-n", place, "qdisc", "replace", "dev", interface, "root", *_shape(rate_mbit)])


def drop(namespace: str, interface: str, rule: str) -> None:
    """Drop what comes in at an interface and matches an expression of nft's; "": all comes through again."""
    table = f"netdev {interface}"
    lines = [f"add table {table}", f"delete table {table}"]  # the first for where there is none
    if rule:
        chain = f'type filter hook ingress device "{interface}" priority 0;'
        lines.append(f"table {table} {{\n chain lost {{\n {chain}\n {rule} drop\n }}\n}}")
    enter = ["ip", "netns", "exec", namespace, "nft", "-f", "-"]
    command(enter, stdin="\n".join(lines) + "\n")


def readdress(namespace: str, address: str) -> None:
    """Give a machine's interface another address, with its prefix length, instead of those that it has."""
    command(["ip", "-n", namespace, "address", "flush", "dev", INTERFACE])
    command(["ip", "-n", namespace, "address", "add", address, "dev", INTERFACE])
