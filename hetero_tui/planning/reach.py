"""From what hosts reach of each other to who can be in one cluster, at which address, and what keeps the others out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hetero_tui.planning.cluster import Candidate, node_address, own_addresses, shared_addresses

MOST_ADDRESSES = 4
"""Of one host that are tried."""

_SHOWN = 2  # of the hosts that a host does not reach, in its one line
_COMMANDS = {
    "ufw": "ufw allow from {source}",
    "firewall-cmd": "firewall-cmd --zone=trusted --add-source={source}",
    "nft": "nft insert rule inet filter input ip{version} saddr {source} accept",
    "iptables": "ip{version}tables -I INPUT -s {source} -j ACCEPT",
}


@dataclass(frozen=True, slots=True)
class Door:
    """A TCP port of ``host``, at one of its addresses."""

    host: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of each connection (from a host, to a door): empty where it was made, else why not.

    ``firewalls`` are the programs that the hosts' firewalls are set with, ``macos``, ``wsl``, or empty.
    ``rates`` are bytes per second that hosts sent and received, all at once, where that was measured.
    """

    outcomes: Mapping[tuple[str, Door], str]
    firewalls: Mapping[str, str]
    rates: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Closed:
    """A host that can't be in the cluster, because it and others don't reach each other."""

    host: str
    cause: str
    hint: str


def addresses_to_try(candidates: Mapping[str, Candidate]) -> dict[str, tuple[str, ...]]:
    """Each host's own addresses, the likeliest first. None, where they are on one computer's loopback."""
    shared = shared_addresses(candidates)
    found: dict[str, tuple[str, ...]] = {}
    for name, candidate in candidates.items():
        own = [link.address for link in own_addresses(candidate, shared)]
        likeliest = node_address(candidate, None, shared)
        if likeliest.startswith("127.") or likeliest == "::1":
            return {}
        found[name] = tuple(dict.fromkeys((likeliest, *own)))[:MOST_ADDRESSES]
    return found


def best_addresses(measured: Measured, addresses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """For each host that was tried, the address at which most others make most connections; of equals the first."""
    best: dict[str, str] = {}
    for host, own in addresses.items():
        failed = {address: [0, 0] for address in own}
        tried = False
        for (_, door), outcome in measured.outcomes.items():
            if door.host == host and door.address in failed:
                tried = True
                failed[door.address][0] += bool(outcome)
        for address in own:
            sources = {source for (source, door), why in measured.outcomes.items() if why and _is(door, host, address)}
            failed[address][1] = len(sources)
        if tried:
            best[host] = min(own, key=lambda address: (failed[address][1], failed[address][0]))
    return best


def closed(measured: Measured, addresses: Mapping[str, str], keep: Collection[str]) -> tuple[Closed, ...]:
    """The fewest hosts without which all others reach each other in both directions; those of ``keep`` are not among.

    Args:
        measured: the connections that were tried.
        addresses: where each host is known in the cluster.
        keep: the head, if it is given, and hosts that are in the cluster already.
    """
    broken: dict[tuple[str, str], dict[Door, str]] = {}
    for (source, door), why in measured.outcomes.items():
        if why and addresses.get(door.host) == door.address:
            broken.setdefault((source, door.host), {})[door] = why
    left = dict(broken)
    out: list[str] = []
    while left:
        pairs = {frozenset(pair) for pair in left}
        hosts = [host for host in addresses if host not in keep and any(host in pair for pair in pairs)]
        if not hosts:
            break
        worst = max(
            reversed(hosts),
            key=lambda host: (sum(host in pair for pair in pairs), sum(target == host for _, target in left)),
        )
        out.append(worst)
        left = {pair: doors for pair, doors in left.items() if worst not in pair}
    stay = [host for host in addresses if host not in out]
    return tuple(_explain(host, broken, measured, addresses, stay) for host in addresses if host in out)


def _explain(
    host: str,
    broken: Mapping[tuple[str, str], Mapping[Door, str]],
    measured: Measured,
    addresses: Mapping[str, str],
    stay: Sequence[str],
) -> Closed:
    """Why ``host`` stays out: the directions between it and those that stay, or else all others."""
    concerned = [pair for pair in broken if host in pair and any(other in stay for other in pair)]
    concerned = concerned or [pair for pair in broken if host in pair]
    alike: dict[tuple[str, str, str], list[str]] = {}
    for source, target in concerned:
        doors = broken[source, target]
        opened = [
            str(door.port)
            for (origin, door), why in measured.outcomes.items()
            if not why and origin == source and _is(door, target, addresses[target])
        ]
        what = f"TCP ports {', '.join(str(door.port) for door in doors)}: {', '.join(dict.fromkeys(doors.values()))}"
        what += f" (open: {', '.join(opened)})" if opened else ""
        alike.setdefault(("" if source != host else host, target, what), []).append(source)
    causes = [
        f"{'it' if own else _listed(sources)} can't connect to {'it' if target == host else target} at"
        f" {addresses[target]}, {what}"
        for (own, target, what), sources in alike.items()
    ]
    if len(causes) > _SHOWN:
        causes = [*causes[:_SHOWN], f"and {len(causes) - _SHOWN} more such"]
    return Closed(host, "; ".join(causes), _hint(host, concerned, measured, addresses))


def _hint(host: str, concerned: Sequence[tuple[str, str]], measured: Measured, addresses: Mapping[str, str]) -> str:
    versions = {name: _versions(name, measured) for pair in concerned for name in pair}
    if all(versions[source] and versions[source].isdisjoint(versions[target]) for source, target in concerned):
        other = next(name for name in concerned[0] if name != host)
        own, theirs = (f"IPv{' and IPv'.join(sorted(versions[name]))}" for name in (host, other))
        return f"{host} has an address of {own} only, and {other} of {theirs}: give both one of the same version"
    commands = [
        f"on {target} `sudo {command.format(source=addresses[source], version='6' * (':' in addresses[source]))}`"
        for source, target in concerned
        if (command := _COMMANDS.get(measured.firewalls.get(target, ""))) is not None
    ]
    if commands:
        return f"let the hosts of a cluster connect to each other on all TCP ports from 1024: {', '.join(commands[:4])}"
    if any(measured.firewalls.get(target) == "macos" for _, target in concerned):
        return "let Python accept connections there: System Settings, Network, Firewall, Options"
    if any(measured.firewalls.get(target) == "wsl" for _, target in concerned):
        return (
            "Windows keeps WSL2 in a network of its own: write the lines `[wsl2]` and `networkingMode=mirrored` into"
            " %USERPROFILE%\\.wslconfig there, and run `wsl --shutdown`; docs/troubleshooting.md has the command for"
            " its firewall"
        )
    return "open all TCP ports from 1024 between the hosts of a cluster, or connect them to one network"


def _versions(host: str, measured: Measured) -> set[str]:
    """The versions of IP that the host has addresses of, of those that were tried."""
    return {"6" if ":" in door.address else "4" for _, door in measured.outcomes if door.host == host}


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:3]) + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _is(door: Door, host: str, address: str) -> bool:
    return door.host == host and door.address == address
