"""The cluster's WireGuard network: which addresses it has, and what each host is told of the others. Pure.

Addresses follow from the cluster's name and the inventory's order; those that hosts have already stay. The network is
one that no route of any host leads to.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hetero_tui.planning.cluster import Candidate, node_address, shared_addresses, translated_address
from hetero_tui.planning.reach import Measured, addresses_to_try, best_addresses
from remote_agent.protocol import MeshPeer, MeshReport, MeshSpec, join_address

Network = ipaddress.IPv4Network
Keys = tuple[str, str]
"""A private key and the public one that belongs to it, as WireGuard writes them."""

PREFIX = 20
"""Of the network: 4,094 hosts."""

_PRIVATE = tuple(map(Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))  # RFC 1918


class NoNetworkError(Exception):
    """Routes of the hosts lead to all private networks."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """What each host is to be told, and why some can't be in it."""

    network: Network
    specs: Mapping[str, MeshSpec]
    refused: Mapping[str, str]


def plan_mesh(
    cluster: str,
    order: Sequence[str],
    reports: Mapping[str, MeshReport],
    endpoints: Mapping[str, str],
    new_keys: Mapping[str, Keys],
    head: str | None = None,
    computers: Mapping[str, str] | None = None,
) -> Mesh:
    """The network over the hosts of ``reports``.

    Args:
        cluster: its name, which the choice of the network begins with.
        order: all hosts of the inventory.
        reports: how each host that is to be in it stands.
        endpoints: the address at which each of them is reached outside of the network.
        new_keys: for hosts that have none yet.
        head: of a cluster that runs, whose network stays.
        computers: what names the computer and its network stack of each host, as far as it is known. Machines in
            several networks may have one private address.

    Raises:
        NoNetworkError: no private network is free on all hosts.
    """
    kept = _kept_network(reports, head)
    known = _known(order, reports, kept)
    taken = {name: tuple(map(Network, report.networks)) for name, report in reports.items()}
    network = kept or _free_network(cluster, [each for ones in taken.values() for each in ones])
    refused = {
        name: f"its routes lead to {network}, which is the cluster's WireGuard network"
        for name, ones in taken.items()
        if any(_collide(network, each) for each in ones)
    }
    used: dict[str, str] = {}
    for name in (each for each in reports if each not in refused):
        loopback = ipaddress.ip_address(endpoints[name]).is_loopback
        computer = (computers or {}).get(name) or ("loopback" if loopback else endpoints[name])
        other = used.setdefault(computer, name)
        if other != name:
            refused[name] = f"is the same machine as {other}, which can be in a WireGuard network once"
    members = [name for name in order if name in reports and name not in refused]
    addresses = _addresses(network, order, {name: peer.address for name, peer in known.items()})
    peers = {name: peer for name, peer in known.items() if name not in reports}  # they are away
    for name in members:
        key = known[name].public_key if name in known else new_keys[name][1]
        endpoint = join_address(endpoints[name], reports[name].port)
        peers[name] = MeshPeer(host=name, public_key=key, address=addresses[name], endpoint=endpoint)
    return Mesh(
        network,
        {
            name: MeshSpec(
                folder=f"~/.hetero-tui/{cluster}",
                public_key=peers[name].public_key,
                private_key="" if name in known else new_keys[name][0],
                address=addresses[name],
                network=str(network),
                port=reports[name].port,
                peers=tuple(peers[other] for other in order if other in peers and other != name),
            )
            for name in members
        },
        refused,
    )


def endpoints_to_try(candidates: Mapping[str, Candidate]) -> dict[str, tuple[str, ...]]:
    """Each host's own addresses, and a NAT's that leads to it; none, where they are on one computer's loopback."""
    found = addresses_to_try(candidates)
    outside = {name: translated_address(candidates[name]) for name in found}
    return {name: (*own, *([text] if (text := outside[name]) else [])) for name, own in found.items()}


def best_endpoints(
    candidates: Mapping[str, Candidate], addresses: Mapping[str, Sequence[str]], measured: Measured | None
) -> dict[str, str]:
    """The address of each host at which the others reach it best, by what was ``measured`` of these ``addresses``.

    Where nobody reached it at its own: a NAT's, if there is one, which may let WireGuard's port through alone.
    """
    best = best_addresses(measured, addresses) if measured is not None else {}
    reached = {(door.host, door.address) for (_, door), why in measured.outcomes.items() if not why} if measured else ()
    shared = shared_addresses(candidates)
    found: dict[str, str] = {}
    for name, candidate in candidates.items():
        chosen, outside = best.get(name), translated_address(candidate)
        if outside is not None and (name, chosen) not in reached:
            chosen = outside
        found[name] = node_address(replace(candidate, measured=chosen), None, shared)
    return found


def is_whole(order: Sequence[str], reports: Mapping[str, MeshReport], head: str | None) -> bool:
    """Whether each of these hosts is in the network, and knows all others as they are: there is nothing to do."""
    known = _known(order, reports, _kept_network(reports, head))
    for name, report in reports.items():
        if report.spec is None or name not in known or not report.is_up:
            return False
        told = {(peer.host, peer.public_key, peer.address, _port(peer)) for peer in report.spec.peers}
        if told != {
            (other, peer.public_key, peer.address, reports[other].port if other in reports else _port(peer))
            for other, peer in known.items()
            if other != name
        }:
            return False
    return True


def _port(peer: MeshPeer) -> int:
    return int(peer.endpoint.rpartition(":")[2])


def _kept_network(reports: Mapping[str, MeshReport], head: str | None) -> Network | None:
    """The one that is there already: a running cluster's, else the first host's."""
    specs = {name: report.spec for name, report in reports.items() if report.spec is not None}
    first = specs.get(head or "") or next(iter(specs.values()), None)
    return Network(first.network) if first is not None else None


def _known(order: Sequence[str], reports: Mapping[str, MeshReport], network: Network | None) -> dict[str, MeshPeer]:
    """The hosts of the inventory that are in that network: by their own word, else (they are away) by others'."""
    known: dict[str, MeshPeer] = {}
    members = {
        name: report.spec
        for name, report in reports.items()
        if report.spec is not None and Network(report.spec.network) == network
    }
    for spec in members.values():
        for peer in spec.peers:
            if peer.host in order and peer.host not in reports:
                known.setdefault(peer.host, peer)
    used = {peer.address for peer in known.values()}
    for name, spec in members.items():
        if spec.address not in used:
            used.add(spec.address)
            known[name] = MeshPeer(host=name, public_key=spec.public_key, address=spec.address, endpoint="")
    return known


def _addresses(network: Network, order: Sequence[str], kept: Mapping[str, str]) -> dict[str, str]:
    used = set(kept.values())
    found = dict(kept)
    for number, name in enumerate(order):
        if name not in found:
            hosts = (str(network[1 + (number + more) % (network.num_addresses - 2)]) for more in range(len(used) + 1))
            found[name] = next(address for address in hosts if address not in used)
            used.add(found[name])
    return found


def _free_network(cluster: str, taken: Sequence[Network]) -> Network:
    start = int.from_bytes(hashlib.sha256(cluster.encode()).digest()[:4])
    for whole in _PRIVATE:
        count = 1 << (PREFIX - whole.prefixlen)
        for step in range(count):
            first = int(whole.network_address) + (((start + step) % count) << (32 - PREFIX))
            network = Network((first, PREFIX))
            if not any(_collide(network, each) for each in taken):
                return network
    raise NoNetworkError


def _collide(network: Network, other: Network) -> bool:
    return other.prefixlen > 0 and network.overlaps(other)  # all machines have a default route
