"""What a run is told of the cluster that it is to run on."""

from dataclasses import replace
from typing import Any

import pytest

from hetero_tui.fleet.survey import Surveyed
from hetero_tui.inventory import Host, Inventory
from hetero_tui.runs.launch import specification
from remote_agent import protocol
from remote_agent.states import RayState
from tests.specs import node_spec


@pytest.mark.parametrize(("address", "expected"), [("10.0.0.2", "10.0.0.2:6389"), ("fd00::2", "[fd00::2]:6389")])
def test_the_cluster_is_found_at_its_address_of_either_kind(make_facts: Any, address: str, expected: str) -> None:
    inventory = Inventory(cluster="lab", hosts=(Host(name="mercer", address=address),))
    spec = replace(node_spec("mercer", "head"), node_address=address, head_address=address)
    members = {"mercer": Surveyed("mercer", node=protocol.NodeReport(host="mercer", state=RayState.RUNNING, spec=spec))}
    made = specification(inventory, members, {"mercer": make_facts()}, "r", "digits", {})
    assert (made.ray_address, made.node_address) == (expected, address)
