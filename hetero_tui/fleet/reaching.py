"""Finds the hosts that reach each other, and their addresses: their own, or those of the WireGuard network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hetero_tui import events
from hetero_tui.errors import HostError, RequirementMissing
from hetero_tui.events import Emit, HostState
from hetero_tui.fleet import mesh
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.probing import state_after
from hetero_tui.fleet.reach import measure
from hetero_tui.fleet.survey import FleetView
from hetero_tui.planning.cluster import Candidate
from hetero_tui.planning.reach import addresses_to_try, best_addresses, closed


async def reaching(
    fleet: FleetView,
    candidates: Mapping[str, Candidate],
    ledger: Ledger,
    emit: Emit,
    *,
    is_running: bool,
    head: str | None,
) -> tuple[dict[str, Candidate], dict[str, HostError]]:
    """The candidates that reach each other, with these addresses, and the errors of the others.

    Members of a running cluster stay in it, at their addresses. If the inventory has a WireGuard network, it is brought
    up first.
    """
    surveyed = fleet.surveyed if is_running else {}
    specs = {name: found.node.spec for name, found in surveyed.items() if found.runs_ray and found.node is not None}
    members = {name: spec.node_address for name, spec in specs.items() if spec is not None}
    failed: dict[str, HostError] = {}
    addresses: dict[str, tuple[str, ...]]
    if fleet.inventory.meshed:
        joined = await mesh.join(fleet, candidates, ledger, head)
        addresses = {name: (address,) for name, address in joined.addresses.items()}
        failed |= joined.failed
    else:
        addresses = addresses_to_try(candidates)
    addresses |= {name: (members[name],) for name in addresses.keys() & members.keys()}
    best = {name: own[0] for name, own in addresses.items()} if fleet.inventory.meshed else {}
    if len(addresses) > 1 and addresses.keys() - members.keys():
        measured = await measure(fleet.inventory, fleet.transports, addresses)
        best |= best_addresses(measured, addresses)
        for host in closed(measured, best, {*members, head or fleet.inventory.head or ""}):
            hint = mesh.CLOSED_HINT if fleet.inventory.meshed else host.hint
            failed[host.host] = RequirementMissing(host.host, host.cause, step="reach", hint=hint)
    for error in failed.values():
        state = HostState.UNFIT if isinstance(error, RequirementMissing) else state_after(error)
        emit(events.HostChanged(host=error.host, state=state, detail=error.cause, hint=error.hint))
    best |= members
    able = {
        name: replace(candidate, measured=best.get(name))
        for name, candidate in candidates.items()
        if name not in failed
    }
    return able, failed
