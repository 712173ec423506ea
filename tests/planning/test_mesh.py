"""The WireGuard network's plan: addresses that collide with nothing, stay what they are, and go to all."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from hetero_tui.inventory import Host
from hetero_tui.planning.cluster import Candidate
from hetero_tui.planning.mesh import Mesh, NoNetworkError, best_endpoints, endpoints_to_try, is_whole, plan_mesh
from hetero_tui.planning.reach import Door, Measured
from remote_agent.protocol import MeshReport
from tests.conftest import MakeFacts

NAMES = ("mercer", "crosby", "nas")
ENDPOINTS = {"mercer": "10.0.0.1", "crosby": "10.0.0.2", "nas": "fd00::3"}
KEYS = {name: (f"private {name}", f"public {name}") for name in NAMES}
EMPTY = {name: MeshReport(port=51871) for name in NAMES}


def after(mesh: Mesh) -> dict[str, MeshReport]:
    return {name: MeshReport(port=spec.port, is_up=True, spec=spec) for name, spec in mesh.specs.items()}


def plan(reports: dict[str, MeshReport], order: tuple[str, ...] = NAMES, head: str | None = None) -> Mesh:
    return plan_mesh("lab", order, reports, ENDPOINTS, KEYS, head)


def test_each_host_has_an_address_of_its_own_and_knows_all_others() -> None:
    mesh = plan(EMPTY)
    assert mesh == plan(EMPTY)
    addresses = [ipaddress.ip_address(mesh.specs[name].address) for name in NAMES]
    assert addresses == [mesh.network[1], mesh.network[2], mesh.network[3]]
    assert mesh.network.is_private
    nas = mesh.specs["nas"]
    assert nas.private_key == "private nas"
    assert [(peer.host, peer.public_key, peer.endpoint) for peer in nas.peers] == [
        ("mercer", "public mercer", "10.0.0.1:51871"),
        ("crosby", "public crosby", "10.0.0.2:51871"),
    ]
    assert mesh.specs["mercer"].peers[1].endpoint == "[fd00::3]:51871"


def test_a_network_that_any_host_has_a_route_to_is_not_taken() -> None:
    first = plan(EMPTY).network
    reports = EMPTY | {"nas": MeshReport(port=1, networks=("0.0.0.0/0", str(first[7])))}
    assert not plan(reports).network.overlaps(first)
    reports = EMPTY | {"nas": MeshReport(port=1, networks=("10.0.0.0/8", "172.16.0.0/12"))}
    assert plan(reports).network.subnet_of(ipaddress.IPv4Network("192.168.0.0/16"))
    reports = EMPTY | {"nas": MeshReport(port=1, networks=("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))}
    with pytest.raises(NoNetworkError):
        plan(reports)


def test_nothing_is_to_do_until_a_host_is_new_or_its_interface_is_gone() -> None:
    mesh = plan({name: EMPTY[name] for name in NAMES[:2]})
    reports = after(mesh)
    assert is_whole(NAMES, reports, None)
    assert not is_whole(NAMES, reports | {"nas": EMPTY["nas"]}, None)
    assert not is_whole(NAMES, reports | {"crosby": MeshReport(port=51871, spec=mesh.specs["crosby"])}, None)
    assert not is_whole(NAMES, reports | {"crosby": MeshReport(port=2, is_up=True, spec=mesh.specs["crosby"])}, None)


def test_a_host_that_comes_later_leaves_the_others_addresses_and_keys_as_they_are() -> None:
    before = plan({name: EMPTY[name] for name in ("crosby", "nas")}, ("crosby", "nas"))
    mesh = plan(after(before) | {"mercer": EMPTY["mercer"]})
    assert mesh.network == before.network
    assert [mesh.specs[name].address for name in ("crosby", "nas")] == [
        before.specs[name].address for name in ("crosby", "nas")
    ]
    assert len({spec.address for spec in mesh.specs.values()}) == 3
    assert mesh.specs["crosby"].private_key == ""
    assert "mercer" in {peer.host for peer in mesh.specs["crosby"].peers}


def test_the_running_clusters_network_stays_and_a_host_of_a_former_one_gets_into_it() -> None:
    running = after(plan({name: EMPTY[name] for name in NAMES[1:]}))
    taken = MeshReport(port=1, networks=("10.0.0.0/8",))
    former = after(plan({"mercer": taken}))["mercer"]
    mesh = plan({"mercer": former, **running}, head="nas")
    assert mesh.specs["nas"].network == running["nas"].spec.network if running["nas"].spec else ""
    assert mesh.specs["mercer"].network == mesh.specs["nas"].network
    assert mesh.specs["mercer"].private_key == "private mercer"


def test_a_host_that_can_not_be_in_it_is_refused_alone() -> None:
    before = plan({name: EMPTY[name] for name in NAMES[:2]})
    collides = MeshReport(port=1, networks=(str(before.network),))
    mesh = plan(after(before) | {"nas": collides})
    assert list(mesh.refused) == ["nas"]
    assert str(before.network) in mesh.refused["nas"]
    member = after(mesh)["crosby"]
    odd = MeshReport(port=member.port, is_up=True, spec=member.spec, networks=(str(mesh.network),))
    without = plan(after(mesh) | {"crosby": odd})
    assert list(without.refused) == ["crosby"]
    assert without.specs["mercer"].peers == ()
    twins = plan_mesh("lab", NAMES, EMPTY, ENDPOINTS | {"nas": "10.0.0.2"}, KEYS)
    assert twins.refused == {"nas": "is the same machine as crosby, which can be in a WireGuard network once"}
    assert list(twins.specs) == ["mercer", "crosby"]


def behind(facts: Any, name: str, reached: str | None, connection: Any = "ssh") -> Candidate:
    address = None if connection == "local" else f"{name}.example"
    return Candidate(Host(name=name, address=address, connection=connection), facts, reached)


def test_a_nats_address_is_the_endpoint_where_no_host_reaches_another_one(make_facts: MakeFacts) -> None:
    facts = make_facts()  # it has 10.0.0.2
    hosts = {
        "cloud": behind(facts, "cloud", "203.0.113.7"),
        "home": behind(facts, "home", "10.0.0.2"),
        "inside": behind(facts, "inside", None),
        "laptop": behind(facts, "laptop", "127.0.0.1", "local"),
    }
    tried = endpoints_to_try({name: hosts[name] for name in ("cloud", "home")})
    assert tried == {"cloud": ("10.0.0.2", "203.0.113.7"), "home": ("10.0.0.2",)}
    assert best_endpoints(hosts, {}, None) == {
        "cloud": "203.0.113.7",
        "home": "10.0.0.2",
        "inside": "10.0.0.2",
        "laptop": "10.0.0.2",
    }

    def measured(*doors: tuple[str, str]) -> dict[str, str]:
        """With the connections from home to the cloud's addresses that were made."""
        tries = [Door("cloud", address, 6389) for address in tried["cloud"]]
        outcomes = {("home", door): "" if (door.host, door.address) in doors else "no answer" for door in tries}
        return best_endpoints({"cloud": hosts["cloud"]}, tried, Measured(outcomes, {}))

    assert measured(("cloud", "10.0.0.2")) == {"cloud": "10.0.0.2"}, "both are in one network"
    assert measured(("cloud", "203.0.113.7")) == {"cloud": "203.0.113.7"}
    assert measured() == {"cloud": "203.0.113.7"}, "it may let WireGuard's port through alone"
