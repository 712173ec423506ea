"""From inventory and facts to a cluster: who is head, at which address each node is known, on which ports."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hetero_tui.errors import ClusterError
from hetero_tui.facts import Address, HostFacts
from hetero_tui.inventory import Host, Inventory
from remote_agent.protocol import MESH_INTERFACE, HeadReport, RunSummary

GCS_PORTS = range(6389, 6399)
"""Where the head's control service may listen: not Ray's default (6379), which another cluster may have.

They lie outside 10002-19999, which Ray hands to its workers.
"""

DASHBOARD_PORTS = range(8365, 8369)
_BRIDGES = ("docker", "br-", "veth", "virbr", "cni", "podman", "lxc", "lxd", "vmnet", "bridge", "utun")
"""How interfaces are named that lead to containers, virtual machines and tunnels of this machine itself."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
STEP = "up"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A host that may join: ``address`` is the IP that the laptop reached it at, if it did so directly.

    ``measured`` is the address at which the other hosts reach it, where that was tried.
    """

    host: Host
    facts: HostFacts
    address: str | None
    measured: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One node of the cluster, known to the others at ``address``."""

    host: str
    address: str
    cpus: int | None


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The cluster as it is to be; ``reasons`` tell people why."""

    head: str
    head_address: str
    gcs_port: int
    dashboard_port: int
    nodes: tuple[PlannedNode, ...]
    reasons: tuple[str, ...]


def plan_cluster(
    inventory: Inventory,
    candidates: Mapping[str, Candidate],
    *,
    head: str | None = None,
    holders: frozenset[str] | None = None,
) -> ClusterPlan:
    """The cluster over ``candidates``.

    Args:
        inventory: says which head is wished for.
        head: set where a cluster runs already and its head has to stay.
        holders: set where a run is to go on: the hosts that hold its newest checkpoint; one of them has to be the head.

    Raises:
        ClusterError: there is no candidate, or the wanted head is not one of them, or none of its ports is free.
    """
    if not candidates:
        hint = "`hetero-tui probe` says what each one lacks" if inventory.hosts else "`hetero-tui add` adds hosts"
        raise ClusterError("no host can join a cluster", step=STEP, hint=hint)
    shared = shared_addresses(candidates)
    chosen, reason = _choose_head(inventory, candidates, head, holders, shared)
    others = {name: candidate for name, candidate in candidates.items() if name != chosen}
    networks = [link.network for entry in others.values() for link in own_addresses(entry, shared)]
    head_address = node_address(candidates[chosen], None, shared, networks)
    nodes = tuple(
        PlannedNode(
            host=name,
            address=head_address if name == chosen else node_address(candidate, head_address, shared),
            cpus=candidate.host.cpus or candidate.facts.cpu.usable,
        )
        for name, candidate in candidates.items()
    )
    free = candidates[chosen].facts.free_ports
    return ClusterPlan(
        head=chosen,
        head_address=head_address,
        gcs_port=_first_free(GCS_PORTS, free, chosen),
        dashboard_port=_first_free(DASHBOARD_PORTS, free, chosen),
        nodes=nodes,
        reasons=(reason, *_idle(candidates)),
    )


def _idle(candidates: Mapping[str, Candidate]) -> tuple[str, ...]:
    """What takes no part although it could, and why: GPUs, and servers after the first."""
    notes = [f"{name}: {note}" for name, entry in candidates.items() for note in entry.facts.notes]
    servers = [name for name, entry in candidates.items() if entry.host.role == "server"]
    notes += [f"{name} is idle: {servers[0]} is the server, and a run uses one" for name in servers[1:]]
    return tuple(notes)


def shared_addresses(candidates: Mapping[str, Candidate]) -> frozenset[str]:
    """Addresses that several hosts have (Docker's bridge has the same one everywhere): none of them leads to one host.

    A machine that is in the inventory twice has all of its addresses twice: it counts once.
    """
    machines = {entry.facts.machine or name: entry for name, entry in candidates.items()}
    counts = Counter(text for entry in machines.values() for text in {link.address for link in entry.facts.addresses})
    return frozenset(text for text, count in counts.items() if count > 1)


def node_address(
    candidate: Candidate,
    head_address: str | None,
    shared: frozenset[str] = frozenset(),
    networks: Sequence[Network] = (),
) -> str:
    """The address at which the other nodes reach this one.

    The one that was measured; else the address that the laptop reached it at, when the machine itself has it (it is
    then no NAT's or jump host's); else the one in the head's network; else one in a network that others are in, of a
    real link, and of its fastest.

    Args:
        head_address: where the head is; None: this is the head.
        shared: addresses that other hosts have too; none of them is taken.
        networks: those that the other hosts' addresses lie in.
    """
    if candidate.measured is not None:
        return candidate.measured
    own = own_addresses(candidate, shared)
    reached = candidate.address
    if reached is not None and candidate.host.connection == "ssh":
        loopback = ipaddress.ip_address(reached).is_loopback
        if loopback or any(address.address == reached for address in candidate.facts.addresses):
            return reached
    if head_address is not None:
        head = ipaddress.ip_address(head_address)
        if head.is_loopback:
            return head_address
        for address in own:
            if head in address.network:
                return address.address

    def fitness(link: Address) -> tuple[int, bool, bool, int]:
        address = ipaddress.ip_address(link.address)
        neighbours = sum(address in network for network in networks)
        return (-neighbours, link.interface.startswith(_BRIDGES), address.version != 4, -(link.speed_mbps or 0))

    return min(own, key=fitness).address if own else "127.0.0.1"


def translated_address(candidate: Candidate) -> str | None:
    """The address that the laptop reached it at, where that is a NAT's and not the machine's own; None: it is not."""
    reached = candidate.address
    if reached is None or candidate.host.connection != "ssh" or ipaddress.ip_address(reached).is_loopback:
        return None
    return None if any(link.address == reached for link in candidate.facts.addresses) else reached


def _choose_head(
    inventory: Inventory,
    candidates: Mapping[str, Candidate],
    running: str | None,
    holders: frozenset[str] | None,
    shared: frozenset[str],
) -> tuple[str, str]:
    wanted = running or inventory.head
    if holders is not None and wanted not in holders & candidates.keys():
        fit = {name: candidate for name, candidate in candidates.items() if name in holders}
        if not fit:
            raise ClusterError(
                f"no host that holds the run's newest checkpoint can join ({', '.join(sorted(holders))} hold it)",
                step=STEP,
                hint="see what `hetero-tui probe` says of them",
            )
        name = _fittest(fit, shared)
        return name, f"head {name}: the best connected host that holds the run's newest checkpoint"
    if wanted is not None:
        if wanted in candidates:
            why = "it is the running cluster's head" if running else "the inventory names it"
            return wanted, f"head {wanted}: {why}"
        whose = "of the running cluster" if running else "that the inventory names"
        other = "run `hetero-tui down`, and `up` chooses another" if running else "name another as `head:`"
        hint = f"see what `hetero-tui probe` says of {wanted}, or {other}"
        raise ClusterError(f"the head {whose}, {wanted}, can't join", step=STEP, hint=hint)

    name = _fittest(candidates, shared)
    why = "best link and most memory among those that stay"
    if len(candidates) == 1:
        why = f"it is the only machine{' that can join' if len(inventory.hosts) > 1 else ''}"
    return name, f"head {name}: {why}"


def _fittest(candidates: Mapping[str, Candidate], shared: frozenset[str]) -> str:
    def fitness(item: tuple[str, Candidate]) -> tuple[bool, bool, int, int]:
        _, candidate = item
        real = (link for link in own_addresses(candidate, shared) if not link.interface.startswith(_BRIDGES))
        speed = max((link.speed_mbps or 0 for link in real), default=0)
        not_laptop = candidate.host.connection != "local"
        return (not_laptop, candidate.host.role != "worker", speed, candidate.facts.memory.total_bytes or 0)

    name, _ = max(candidates.items(), key=fitness)  # the first of equals: the inventory's order
    return name


def own_addresses(candidate: Candidate, shared: frozenset[str]) -> list[Address]:
    """The addresses of a host that are its alone; all, where none is (two users' accounts on one machine)."""
    usable = [link for link in candidate.facts.addresses if _usable(link)]
    return [link for link in usable if link.address not in shared] or usable


def _usable(address: Address) -> bool:
    try:
        parsed = ipaddress.ip_address(address.address)
    except ValueError:
        return False
    if address.interface.startswith(MESH_INTERFACE):  # a cluster's own network, this one's or another's
        return False
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified)


def _first_free(ports: range, free: tuple[int, ...], host: str) -> int:
    for port in ports:
        if port in free:
            return port
    raise ClusterError(
        f"{host} has none of the ports {ports.start}-{ports.stop - 1} free",
        step=STEP,
        hint="another cluster may be left there: run `hetero-tui down` with its inventory",
    )


class Verdict(Enum):
    """What the other hosts' words mean for a head that does not answer the laptop."""

    LIVES = "lives"  # another host reaches it: wait for the laptop's own link
    LOST = "lost"  # no other host reaches it
    UNKNOWN = "unknown"  # no host can be asked: no other one answers, or none is in a cluster


def judge_head(witnesses: Mapping[str, HeadReport | None]) -> Verdict:
    """What the other hosts say of the head; None: the host did not answer."""
    words = [report for report in witnesses.values() if report is not None and report.epoch is not None]
    if not words:
        return Verdict.UNKNOWN
    return Verdict.LIVES if any(report.answers for report in words) else Verdict.LOST


def silence_in_words(witnesses: Mapping[str, HeadReport | None]) -> str:
    """Why the head is taken as lost: who can't reach it, and how that shows."""
    said = [f"{host}: {report.silence}" for host, report in witnesses.items() if report is not None and report.silence]
    return f"it answers neither the laptop nor the other hosts ({', '.join(said)})"


def holders(run: str, copies: Iterable[tuple[str, RunSummary]]) -> frozenset[str]:
    """The hosts whose folder of ``run`` holds its newest checkpoint; what a replaced cluster did does not count."""
    known = [
        (summary.epoch, summary.checkpoint, host)
        for host, summary in copies
        if summary.id == run and summary.checkpoint is not None
    ]
    newest = max((entry[:2] for entry in known), default=None)
    return frozenset(host for epoch, checkpoint, host in known if (epoch, checkpoint) == newest)
