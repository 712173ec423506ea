"""Forms the cluster anew without its head, on a host that can go on with a run.

In order: who answers, which of them hold the run's newest checkpoint, a new head among those, and the new cluster (a
newer epoch, a new token; ``node start`` takes away what a host has of the old one). The run itself goes on by
:mod:`~hetero_tui.runs.resume`. It can be cut short anywhere: the next ``resume`` goes on from what there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hetero_tui import events
from hetero_tui.errors import ClusterError, NoCopy
from hetero_tui.events import Emit, HostState
from hetero_tui.fleet.bring_up import UpReport, bring_up
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.probing import Probed, probe_fleet, state_after
from hetero_tui.fleet.survey import FleetView, Surveyed, head_name, mark_replaced, survey
from hetero_tui.inventory import Inventory
from hetero_tui.planning.cluster import Verdict, holders, judge_head
from hetero_tui.runs.listing import list_copies
from hetero_tui.runs.watching import witnesses
from hetero_tui.transport import Transport

STEP = "fail over"


@dataclass(frozen=True, slots=True)
class Formed:
    """The cluster as it is now; ``report`` is None where another laptop had formed it, or hosts are joining still."""

    head: str
    probed: tuple[Probed, ...]
    surveyed: Mapping[str, Surveyed]
    report: UpReport | None


async def form_anew(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    ledger: Ledger,
    emit: Emit,
    run: str,
    on_head: Callable[[Formed], None],
) -> Formed:
    """A cluster over the hosts of ``transports`` whose head can go on with ``run``; one that is there already is kept.

    ``on_head`` is told of a new cluster as soon as its head is up: the run can go on there while the other hosts join.

    Raises:
        NoCopy: none of them holds a checkpoint of the run.
        ClusterError: none of those that do can be the head.
    """
    cluster = inventory.cluster
    probed, surveyed, copies = await asyncio.gather(
        probe_fleet(inventory, transports, emit), survey(cluster, transports), list_copies(cluster, transports)
    )
    for entry in probed:
        if entry.facts is not None:  # the probe left it as connecting; of the others it said what is wrong
            emit(_standing(surveyed[entry.host]))
    there = head_name(surveyed)
    if there is not None:
        return Formed(there, probed, surveyed, None)
    able = holders(run, copies)
    if not able:
        raise NoCopy(
            f"no host that answers holds a checkpoint of {run}",
            step=STEP,
            hint="it can go on once the host that has them is back",
        )

    async def found(hosts: Iterable[str], report: UpReport | None) -> Formed | None:
        now = mark_replaced({**surveyed, **await survey(cluster, {name: transports[name] for name in hosts})})
        head = head_name(now)
        return Formed(head, probed, now, report) if head is not None else None

    async def head_is_up() -> None:
        formed = await found([name for name, entry in surveyed.items() if entry.error is None], None)
        if formed is not None:
            on_head(formed)

    view = FleetView(inventory, transports, probed, surveyed)
    report = await bring_up(view, ledger, emit, holders=able, on_head=head_is_up)
    formed = await found(report.joined, report)
    if formed is None:
        raise ClusterError("the new head ended again", step=STEP, hint="run `hetero-tui resume` again")
    return formed


def _standing(found: Surveyed) -> events.HostChanged:
    """How a host stands by what runs there."""
    state = found.node_state or HostState.READY
    if found.error is not None:
        return events.HostChanged(host=found.host, state=state_after(found.error), detail=found.error.cause)
    detail = found.cause if found.has_node else ""
    return events.HostChanged(host=found.host, state=state, detail=detail)


async def refuse_if_head_lives(cluster: str, transports: Mapping[str, Transport]) -> None:
    """Forming a cluster anew while its head works would tear a run apart that goes on well.

    Raises:
        ClusterError: a host that answers reaches the head, which the laptop does not.
    """
    if judge_head(await witnesses(cluster, transports)) is Verdict.LIVES:
        raise ClusterError(
            "the cluster's head works: other hosts reach it, only this laptop does not",
            step=STEP,
            hint="see to the laptop's own way to it, or wait",
        )
