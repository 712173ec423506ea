"""Brings up the cluster's WireGuard network (``network: wireguard``), before Ray is started in it.

It first checks that each host can be in the network, which needs root, or sudo without a password. Nothing is started
on a host that can't. Keys are made here; a private key is sent to its host and kept nowhere else.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hetero_tui import answers, deadlines
from hetero_tui.errors import ClusterError, CommandFailed, HostError, RequirementMissing
from hetero_tui.fleet import agent
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.reach import measure
from hetero_tui.fleet.survey import FleetView
from hetero_tui.inventory import Host, Inventory
from hetero_tui.planning.cluster import Candidate
from hetero_tui.planning.mesh import (
    Keys,
    Mesh,
    NoNetworkError,
    best_endpoints,
    endpoints_to_try,
    is_whole,
    plan_mesh,
)
from hetero_tui.text import HostText
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent.protocol import MeshReport

STEP = "wireguard"
CLOSED_HINT = f"let the hosts of the cluster reach each other's UDP port {protocol.MESH_PORT}, which is WireGuard's"
"""Hint for hosts that can't reach each other in the network."""

_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")
_ENDPOINT = re.compile(r"[0-9A-Fa-f.:\[\]]{1,60}:\d{1,5}")


@dataclass(frozen=True, slots=True)
class Joined:
    """``addresses`` of the hosts that are in the network now, and the errors of the others."""

    addresses: Mapping[str, str]
    failed: Mapping[str, HostError]


async def look(
    inventory: Inventory, transports: Mapping[str, Transport], hosts: Mapping[str, Host]
) -> tuple[dict[str, MeshReport], dict[str, HostError]]:
    """The report of each host, and the errors of hosts that can't be in such a network; changes nothing."""
    found = await asyncio.gather(*(_look(inventory.cluster, transports[name], host) for name, host in hosts.items()))
    reports = {name: each for name, each in zip(hosts, found, strict=True) if isinstance(each, MeshReport)}
    return reports, {each.host: each for each in found if isinstance(each, HostError)}


async def join(fleet: FleetView, candidates: Mapping[str, Candidate], ledger: Ledger, head: str | None) -> Joined:
    """Bring the candidates into the network, with the data that they need about each other.

    ``head`` is the head of a running cluster.

    Raises:
        ClusterError: no private network is free on all hosts.
    """
    inventory, transports = fleet.inventory, fleet.transports
    order = [host.name for host in inventory.hosts]
    hosts = {name: candidate.host for name, candidate in candidates.items()}
    reports, failed = await look(inventory, transports, hosts)
    if is_whole(order, reports, head):
        return Joined({name: report.spec.address for name, report in reports.items() if report.spec}, failed)
    fit = {name: candidates[name] for name in reports}
    endpoints = await _endpoints(fleet, fit)
    new_keys = {name: _new_keys() for name in reports}
    try:
        computers = {name: candidate.facts.computer or "" for name, candidate in fit.items()}
        mesh = plan_mesh(inventory.cluster, order, reports, endpoints, new_keys, head, computers)
    except NoNetworkError:
        cause = "routes of the hosts lead to all private networks, so none is left for WireGuard"
        raise ClusterError(cause, step=STEP, hint="leave `network: wireguard` out") from None
    hint = "`down`, then `up` chooses another network; or leave `network: wireguard` out"
    failed |= {name: RequirementMissing(name, why, step=STEP, hint=hint) for name, why in mesh.refused.items()}
    for name in mesh.specs:
        ledger.intend(hosts[name], STEP)
    errors = await asyncio.gather(*(_up(inventory.cluster, transports[name], fit[name], mesh) for name in mesh.specs))
    failed |= {error.host: error for error in errors if error is not None}
    return Joined({name: spec.address for name, spec in mesh.specs.items() if name not in failed}, failed)


async def _look(cluster: str, transport: Transport, host: Host) -> MeshReport | HostError:
    pythons = agent.python_candidates(cluster, host)
    arguments = ("host.mesh", "look", "--folder", agent.home_folder(cluster))
    try:
        async with (
            asyncio.timeout(deadlines.MESH),
            agent.follow_unsent(transport, pythons, *arguments, step=STEP) as lines,
        ):
            async for line in lines:
                if line.raw.startswith("{"):  # otherwise it is output of a login shell
                    return _trusted(transport.host, _parsed(transport.host, line))
    except TimeoutError:
        return CommandFailed(transport.host, "does not say whether it can do WireGuard", step=STEP)
    except HostError as error:
        return error
    return CommandFailed(transport.host, "does not say whether it can do WireGuard", step=STEP)


def _parsed(host: str, line: HostText) -> MeshReport:
    try:
        return answers.value(MeshReport, line)
    except protocol.ProtocolError as error:
        raise agent.refused(host, error, STEP) from None


def _trusted(host: str, report: MeshReport) -> MeshReport:
    """Validate a host's report, whose values go into other hosts' settings.

    Raises:
        RequirementMissing: the host can't be in such a network.
        HostError: the report is invalid.
    """
    if report.cause:
        raise RequirementMissing(host, report.cause, step=STEP, hint=report.hint)
    try:
        for network in report.networks:
            ipaddress.IPv4Network(network)
        if not 0 < report.port < 2**16:
            raise ValueError("a port is not from 1 to 65535")
        if report.spec is not None:
            _check_spec(report.spec)
    except ValueError as error:
        raise agent.refused(host, protocol.ProtocolError(str(error)), STEP) from None
    return report


def _check_spec(spec: protocol.MeshSpec) -> None:
    network = ipaddress.IPv4Network(spec.network)
    for address, key in ((spec.address, spec.public_key), *((peer.address, peer.public_key) for peer in spec.peers)):
        if ipaddress.IPv4Address(address) not in network or _KEY.fullmatch(key) is None:
            raise ValueError("an address or a key is none of such a network")
    if not all(_ENDPOINT.fullmatch(peer.endpoint) for peer in spec.peers):
        raise ValueError("an endpoint is none")


async def _endpoints(fleet: FleetView, candidates: Mapping[str, Candidate]) -> dict[str, str]:
    """The address of each host at which the others reach it best."""
    addresses = endpoints_to_try(candidates)
    measured = await measure(fleet.inventory, fleet.transports, addresses) if len(addresses) > 1 else None
    return best_endpoints(candidates, addresses, measured)


async def _up(cluster: str, transport: Transport, candidate: Candidate, mesh: Mesh) -> HostError | None:
    spec = mesh.specs[transport.host]
    try:
        await agent.ship(transport, cluster, candidate.facts.python.executable)
        done = await agent.call(
            transport,
            cluster,
            "host.mesh",
            "up",
            step=STEP,
            deadline=deadlines.MESH,
            stdin=protocol.encode(spec).encode() + b"\n",
        )
        if done is None:
            raise CommandFailed(transport.host, "the agent that was just sent is gone", step=STEP, hint="try again")
        report = agent.answer(MeshReport, transport.host, done, step=STEP)
        if report.cause:
            raise CommandFailed(transport.host, report.cause, step=STEP, hint=report.hint)
    except HostError as error:
        return error
    return None


def _new_keys() -> Keys:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # takes a moment to load

    key = X25519PrivateKey.generate()
    private, public = key.private_bytes_raw(), key.public_key().public_bytes_raw()
    return base64.b64encode(private).decode(), base64.b64encode(public).decode()
