"""What a run is told of the cluster that it is to run on."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hetero_tui.errors import ClusterError, RunError
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.fleet.probing import Probed
from hetero_tui.fleet.survey import Surveyed
from hetero_tui.inventory import Host, Inventory
from hetero_tui.runs.launch import specification
from remote_agent import protocol
from remote_agent.states import RayState
from tests.specs import node_spec


@pytest.fixture
def fleet_of(tmp_path: Path, make_facts: Any) -> Any:
    """Makes a fleet that was probed and surveyed."""

    def made(inventory: Inventory, members: Mapping[str, Surveyed]) -> LiveFleet:
        fleet = LiveFleet(inventory, lambda _: None, ledger_folder=tmp_path)
        fleet.probed = tuple(Probed(host.name, facts=make_facts()) for host in inventory.hosts)
        fleet.surveyed = dict(members)
        return fleet

    return made


@pytest.mark.parametrize(("address", "expected"), [("10.0.0.2", "10.0.0.2:6389"), ("fd00::2", "[fd00::2]:6389")])
def test_the_cluster_is_found_at_its_address_of_either_kind(fleet_of: Any, address: str, expected: str) -> None:
    inventory = Inventory(cluster="lab", hosts=(Host(name="mercer", address=address),))
    spec = replace(node_spec("mercer", "head"), node_address=address, head_address=address)
    members = {"mercer": Surveyed("mercer", node=protocol.NodeReport(host="mercer", state=RayState.RUNNING, spec=spec))}
    made = specification(fleet_of(inventory, members), "r", "digits", {})
    assert (made.ray_address, made.node_address) == (expected, address)


def test_what_can_not_be_encrypted_is_refused_under_tls_unless_one_host_trains(fleet_of: Any) -> None:
    hosts = tuple(Host(name=name, address=name) for name in ("mercer", "nas"))
    specs = [replace(node_spec(host.name, "head" if host is hosts[0] else "worker"), encrypted=True) for host in hosts]
    reports = [protocol.NodeReport(host=spec.host, state=RayState.RUNNING, spec=spec) for spec in specs]
    members = {report.host: Surveyed(report.host, node=report) for report in reports}
    inventory = Inventory(cluster="lab", hosts=hosts, security="tls")
    with pytest.raises(RunError, match="strategy=allreduce would send gradients in clear"):
        specification(fleet_of(inventory, members), "r", "digits", {"strategy": "allreduce"})
    assert specification(fleet_of(inventory, members), "r", "digits", {"strategy": "sync"})
    alone = {"mercer": members["mercer"]}
    assert specification(fleet_of(inventory, alone), "r", "digits", {"strategy": "allreduce"})
    with pytest.raises(ClusterError, match="the cluster runs with `security: tls`"):
        specification(fleet_of(inventory.model_copy(update={"security": "token"}), members), "r", "digits", {})
