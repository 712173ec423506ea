"""Forming a cluster anew: hosts are shown as they are, also where nothing came of it or another laptop was first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from hetero_tui.errors import NoCopy
from hetero_tui.events import Event, HostState
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fold import apply
from hetero_tui.inventory import Host, Inventory
from hetero_tui.runs.failover import Formed, form_anew
from hetero_tui.state import initial
from hetero_tui.text import HostText
from hetero_tui.transport import Completed, Transport
from remote_agent import protocol
from tests.specs import node_spec


class Machine:
    """A host as a transport shows it: it is fit, has no run, and its Ray is as ``report`` says."""

    address = "10.0.0.2"

    def __init__(self, facts: dict[str, Any], report: protocol.NodeReport) -> None:
        self.host = report.host
        self._answers = {
            "probe": json.dumps({"probe": 1, **facts}, separators=(",", ":")),
            "status": protocol.encode(report),
            "list runs": protocol.encode(protocol.RunList()),
        }

    async def connect(self) -> None:
        """It is there."""

    async def run(self, command: Sequence[str], *, step: str, deadline: float, stdin: bytes | None = None) -> Completed:
        return Completed(0, HostText(self._answers[step] + "\n"), HostText(""))


def report(host: str, role: str, state: str, cause: str = "") -> protocol.NodeReport:
    spec = node_spec(host, role)
    return protocol.NodeReport(host=host, state=state, spec=spec, cause=cause)


@pytest.mark.parametrize("role", ["head", "worker"])
async def test_no_host_is_left_as_connecting_once_it_has_answered(tmp_path: Path, make_facts: Any, role: str) -> None:
    reports = (report("mercer", role, "running"), report("nas", "worker", "restarting", "the head does not answer"))
    facts = make_facts().model_dump(mode="json")
    machines = cast("dict[str, Transport]", {entry.host: Machine(facts, entry) for entry in reports})
    inventory = Inventory(cluster="lab", hosts=tuple(Host(name=name, address=name) for name in machines))
    state = initial("lab", tuple((name, name) for name in machines))

    def emit(event: Event) -> None:
        nonlocal state
        state = apply(state, event)

    told: list[Formed] = []
    if role == "head":  # another laptop was first
        formed = await form_anew(inventory, machines, Ledger("lab", tmp_path), emit, "text-1", told.append)
        assert (formed.head, formed.report) == ("mercer", None)
    else:
        with pytest.raises(NoCopy):
            await form_anew(inventory, machines, Ledger("lab", tmp_path), emit, "text-1", told.append)
    assert not told, "no new cluster was begun"
    assert [(host.state, host.detail) for host in state.hosts] == [
        (HostState.UP, ""),
        (HostState.RESTARTING, "the head does not answer"),
    ]
