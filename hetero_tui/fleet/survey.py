"""What of ours is on each host now? The hosts' own records are the truth: any laptop can ask, no probe is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from hetero_tui.errors import CommandFailed, HostError
from hetero_tui.events import HostState
from hetero_tui.fleet import agent
from hetero_tui.transport import Transport
from remote_agent import protocol

STEP = "status"

_NODE_STATES = {"running": HostState.UP, "restarting": HostState.RESTARTING}
"""With any other word, a node that was started there has ended."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The outcome for one host: its node's report (None: it has no agent of this cluster), or the error."""

    host: str
    node: protocol.NodeReport | None = None
    error: HostError | None = None

    @property
    def runs_ray(self) -> bool:
        """Whether a node of this cluster runs there."""
        return self.node is not None and self.node.state == "running"

    @property
    def restarts_ray(self) -> bool:
        """Whether a node of this cluster ended there, and the host itself is bringing it back."""
        return self.node is not None and self.node.state == "restarting"

    @property
    def node_state(self) -> HostState | None:
        """How the host stands by its node; None where none was started, or it was taken down, or nothing is known."""
        if self.node is None or self.node.spec is None:
            return None
        return _NODE_STATES.get(self.node.state, HostState.FAILED)


async def survey(cluster: str, transports: Mapping[str, Transport]) -> dict[str, Surveyed]:
    """Ask every host at once; never raises for what a host does."""
    answers = await asyncio.gather(*(_survey(cluster, transport) for transport in transports.values()))
    return {answer.host: answer for answer in answers}


def running_head(found: Mapping[str, Surveyed]) -> protocol.NodeSpec | None:
    """The head's specification if a cluster runs: the head's own word, else what a worker was told of it."""
    members = [entry.node for entry in found.values() if entry.node and (entry.runs_ray or entry.restarts_ray)]
    specs = [node.spec for node in members if node.spec]
    return next((spec for spec in specs if spec.role == "head"), specs[0] if specs else None)


def head_name(found: Mapping[str, Surveyed]) -> str | None:
    """The host that is the running cluster's head; None when it is not among those that answered."""
    for name, entry in found.items():
        if entry.runs_ray and entry.node and entry.node.spec and entry.node.spec.role == "head":
            return name
    return None


async def _survey(cluster: str, transport: Transport) -> Surveyed:
    try:
        await transport.connect()
        done = await agent.call(transport, cluster, "node", "status", "--folder", agent.home_folder(cluster), step=STEP)
        if done is None:
            return Surveyed(transport.host)
        line = agent.answer(transport.host, done, step=STEP)
        return Surveyed(transport.host, node=protocol.decode(protocol.NodeReport, line))
    except protocol.ProtocolError as error:
        failed = CommandFailed(transport.host, str(error), step=STEP, hint="run `hetero-tui up` to renew the agent")
        return Surveyed(transport.host, error=failed)
    except HostError as error:
        return Surveyed(transport.host, error=error)
