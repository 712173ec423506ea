"""Surveys what of ours is on each host now, from the hosts' own records, so that any laptop can ask without a probe."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hetero_tui.errors import ClusterError, HostError
from hetero_tui.events import HostState
from hetero_tui.fleet import agent
from hetero_tui.fleet.probing import Probed
from hetero_tui.inventory import Inventory
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent.states import RayState

STEP = "status"

_NODE_STATES = {
    RayState.STARTING: HostState.STARTING,
    RayState.RUNNING: HostState.UP,
    RayState.RESTARTING: HostState.RESTARTING,
}
"""Host states by the state of Ray; in any other state, a node that was started there has ended."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The outcome for one host: its node's report (None: it has no agent of this cluster), or the error.

    ``replaced``: its node is of a cluster that lost its head, while the other hosts have formed a newer one.
    """

    host: str
    node: protocol.NodeReport | None = None
    error: HostError | None = None
    replaced: bool = False

    @property
    def runs_ray(self) -> bool:
        """Whether a node of this cluster runs there, or is about to join."""
        runs = (RayState.STARTING, RayState.RUNNING)
        return self.node is not None and self.node.state in runs and not self.replaced

    @property
    def restarts_ray(self) -> bool:
        """Whether a node of this cluster ended there, and the host itself is restarting it."""
        return self.node is not None and self.node.state is RayState.RESTARTING and not self.replaced

    @property
    def has_node(self) -> bool:
        """Whether a node was started there and not taken down; it may have ended."""
        return self.node is not None and self.node.spec is not None

    @property
    def epoch(self) -> int:
        """The epoch of its node's cluster; 0: there is none."""
        return self.node.spec.epoch if self.node is not None and self.node.spec is not None else 0

    @property
    def node_state(self) -> HostState | None:
        """The host's state by its node; None: none was started, it was taken down, or its state is unknown."""
        if self.node is None or self.node.spec is None:
            return None
        return HostState.FAILED if self.replaced else _NODE_STATES.get(self.node.state, HostState.FAILED)

    @property
    def cause(self) -> str:
        """The reason, for people, why the node does not run as it should; empty if it does."""
        if self.replaced:
            return "left over from a cluster that was replaced: `up` takes it into the new one"
        return self.node.cause if self.node is not None else ""


async def survey(cluster: str, transports: Mapping[str, Transport]) -> dict[str, Surveyed]:
    """Survey every host in parallel; raises no error of a host."""
    answers = await asyncio.gather(*(_survey(cluster, transport) for transport in transports.values()))
    return mark_replaced(_without_twins({answer.host: answer for answer in answers}))


def _without_twins(found: Mapping[str, Surveyed]) -> dict[str, Surveyed]:
    """The same results, but if two hosts of the inventory are one machine, its node counts only for its own name."""

    def is_twin(name: str, node: protocol.NodeReport | None) -> bool:
        own = found.get(node.spec.host) if node is not None and node.spec is not None else None
        if node is None or own is None or own.host == name or own.node is None:
            return False
        return (own.node.pid, own.node.spec) == (node.pid, node.spec)

    return {name: Surveyed(name) if is_twin(name, entry.node) else entry for name, entry in found.items()}


def mark_replaced(found: Mapping[str, Surveyed]) -> dict[str, Surveyed]:
    """The same results, with a mark for each host whose node is of an older cluster than another's."""
    newest = newest_epoch(found)
    return {name: replace(entry, replaced=entry.has_node and entry.epoch < newest) for name, entry in found.items()}


def newest_epoch(found: Mapping[str, Surveyed]) -> int:
    """The epoch of the newest cluster that any of the hosts knows; 0: none."""
    return max((entry.epoch for entry in found.values()), default=0)


def running_head(found: Mapping[str, Surveyed]) -> protocol.NodeSpec | None:
    """The head's specification if a cluster runs: from the head itself, else from another node."""
    members = [entry.node for entry in found.values() if entry.node and (entry.runs_ray or entry.restarts_ray)]
    specs = [node.spec for node in members if node.spec]
    return next((spec for spec in specs if spec.role == "head"), specs[0] if specs else None)


def head_name(found: Mapping[str, Surveyed]) -> str | None:
    """The host that is the running cluster's head; None: it is not among those that answered."""
    for name, entry in found.items():
        if entry.runs_ray and entry.node and entry.node.spec and entry.node.spec.role == "head":
            return name
    return None


def refuse_unlike(running: protocol.NodeSpec, inventory: Inventory) -> None:
    """Refuse to continue with a cluster that was formed by another version, or with another ``security``, than now.

    Raises:
        ClusterError: it was.
    """
    differs, step = "", "security"
    if running.code != agent.code():
        differs, step = "another version of hetero-tui than this laptop has", "version"
    elif running.encrypted != inventory.encrypted:
        now = f"with `security: {'tls' if running.encrypted else 'token'}`"
        differs = f"{now}, and the inventory says `security: {inventory.security}`"
    elif running.meshed != inventory.meshed:
        now = "in a WireGuard network" if running.meshed else "without WireGuard"
        differs = f"{now}, and the inventory says `network: {inventory.network}`"
    if differs:
        raise ClusterError(f"the cluster runs {differs}", step=step, hint="run `hetero-tui down`, then `hetero-tui up`")


def refuse_renamed(found: Mapping[str, Surveyed]) -> None:
    """A cluster that runs knows its hosts, and a run its devices, by the names that they had when they joined.

    Raises:
        ClusterError: a member has another name in the inventory now.
    """
    for name, entry in found.items():
        spec = entry.node.spec if entry.node is not None else None
        if entry.runs_ray and spec is not None and spec.host != name:
            raise ClusterError(
                f"{name} of the inventory is in the cluster that runs as {spec.host}",
                step="up",
                hint=f"name it {spec.host} again; or run `hetero-tui down`, then `hetero-tui up`",
            )


def is_taken_down(found: Mapping[str, Surveyed]) -> bool:
    """Whether the cluster was taken down: none of the hosts that answered has a node, running or ended."""
    return not any(entry.has_node for entry in found.values())


async def _survey(cluster: str, transport: Transport) -> Surveyed:
    try:
        await transport.connect()
        done = await agent.call(
            transport, cluster, "host.node", "status", "--folder", agent.home_folder(cluster), step=STEP
        )
        if done is None:
            return Surveyed(transport.host)
        return Surveyed(transport.host, node=agent.answer(protocol.NodeReport, transport.host, done, step=STEP))
    except HostError as error:
        return Surveyed(transport.host, error=error)


@dataclass(frozen=True, slots=True)
class FleetView:
    """The state of a fleet at the last probe and survey.

    Attributes:
        transports: the connection to each host, by name.
        probed: the probe's result of each machine.
        surveyed: the survey's result of each host, by name.
    """

    inventory: Inventory
    transports: Mapping[str, Transport]
    probed: tuple[Probed, ...]
    surveyed: Mapping[str, Surveyed]
