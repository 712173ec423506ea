"""Who can be in one cluster is decided by what was measured, and the line says host, direction, ports and command."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_tui.inventory import Host
from hetero_tui.planning.cluster import Candidate, node_address
from hetero_tui.planning.reach import Door, Measured, addresses_to_try, best_addresses, closed
from tests.conftest import MakeFacts

HOSTS = {"mercer": "10.0.0.2", "crosby": "10.0.0.3", "nas": "10.0.0.4"}
PORTS = (6389, 10002, 40000)


def measured(
    blocked: Mapping[tuple[str, str], tuple[int, ...]],
    addresses: Mapping[str, tuple[str, ...]] | None = None,
    firewalls: Mapping[str, str] | None = None,
    why: str = "no answer",
) -> Measured:
    """``blocked``: for (source, address) the ports that did not open."""
    own = addresses or {name: (address,) for name, address in HOSTS.items()}
    outcomes = {
        (source, Door(host, address, port)): why if port in blocked.get((source, address), ()) else ""
        for source in own
        for host in own
        for address in own[host]
        for port in PORTS
        if source != host
    }
    return Measured(outcomes, firewalls or {})


def test_hosts_that_reach_each_other_are_all_in() -> None:
    assert closed(measured({}), HOSTS, ()) == ()


def test_a_host_that_closes_its_ports_is_out_with_direction_ports_and_the_command() -> None:
    blocked = {("mercer", HOSTS["nas"]): (10002, 40000), ("crosby", HOSTS["nas"]): (10002, 40000)}
    (out,) = closed(measured(blocked, firewalls={"nas": "ufw", "mercer": "nft"}), HOSTS, ())
    assert out.host == "nas"
    assert out.cause == (
        "mercer and crosby can't connect to it at 10.0.0.4, TCP ports 10002, 40000: no answer (open: 6389)"
    )
    assert "on nas `sudo ufw allow from 10.0.0.2`, on nas `sudo ufw allow from 10.0.0.3`" in out.hint


def test_a_host_whose_way_out_is_closed_is_out_too() -> None:
    blocked = {("nas", HOSTS["mercer"]): PORTS, ("nas", HOSTS["crosby"]): PORTS}
    (out,) = closed(measured(blocked, why="no route"), HOSTS, ())
    assert out.host == "nas"
    assert out.cause.startswith(
        "it can't connect to mercer at 10.0.0.2, TCP ports 6389, 10002, 40000: no route; it can't"
    )


def test_of_two_the_one_with_the_closed_ports_is_out_unless_it_is_the_head() -> None:
    two = {name: HOSTS[name] for name in ("mercer", "crosby")}
    blocked = {("crosby", HOSTS["mercer"]): (40000,)}
    (out,) = closed(measured(blocked), two, ())
    assert out.host == "mercer"
    (out,) = closed(measured(blocked), two, ("mercer",))
    assert out.host == "crosby"
    assert out.cause.startswith("it can't connect to mercer at 10.0.0.2, TCP ports 40000: no answer")
    assert closed(measured(blocked), two, ("mercer", "crosby")) == ()


def test_no_more_hosts_are_out_than_need_be() -> None:
    """One with which nobody gets through costs one host, not the two others."""
    blocked = {(source, HOSTS["mercer"]): PORTS for source in ("crosby", "nas")}
    assert [out.host for out in closed(measured(blocked), HOSTS, ())] == ["mercer"]


def test_the_address_that_most_others_reach_is_taken_whatever_was_guessed(make_facts: MakeFacts) -> None:
    def address(interface: str, text: str) -> dict[str, object]:
        return {"interface": interface, "address": text, "prefix": 24, "speed_mbps": 1000}

    inside, outside = address("eth0", "192.168.5.2"), address("eth1", "10.0.0.4")
    candidates = {
        "mercer": Candidate(Host(name="mercer", address="m"), make_facts(), "10.0.0.2"),
        "nas": Candidate(Host(name="nas", address="n"), make_facts(addresses=[inside, outside]), "192.168.5.2"),
    }
    tried = addresses_to_try(candidates)
    assert tried == {"mercer": ("10.0.0.2",), "nas": ("192.168.5.2", "10.0.0.4")}
    best = best_addresses(measured({("mercer", "192.168.5.2"): PORTS}, tried), tried)
    assert best == {"mercer": "10.0.0.2", "nas": "10.0.0.4"}
    assert best_addresses(measured({}, tried), tried) == {"mercer": "10.0.0.2", "nas": "192.168.5.2"}
    known = Candidate(candidates["nas"].host, candidates["nas"].facts, "192.168.5.2", measured=best["nas"])
    assert node_address(known, "10.0.0.2") == "10.0.0.4"


def test_machines_on_one_computers_loopback_need_not_be_tried(make_facts: MakeFacts) -> None:
    candidates = {"a": Candidate(Host(name="a", address="a"), make_facts(), "127.0.0.2")}
    assert addresses_to_try(candidates) == {}


def test_hosts_without_a_common_version_of_ip_are_told_so_and_no_firewall_is_blamed() -> None:
    hosts = {"mercer": "10.0.0.2", "nas": "fd00::4"}
    own = {name: (address,) for name, address in hosts.items()}
    blocked = {("mercer", "fd00::4"): PORTS, ("nas", "10.0.0.2"): PORTS}
    (out,) = closed(measured(blocked, own, {"nas": "nft", "mercer": "nft"}, "no route"), hosts, ("mercer",))
    assert out.hint == "nas has an address of IPv6 only, and mercer of IPv4: give both one of the same version"
    own["mercer"] = ("10.0.0.2", "fd00::2")
    blocked["nas", "fd00::2"] = PORTS
    (out,) = closed(measured(blocked, own, {"nas": "nft", "mercer": "nft"}, "no route"), hosts, ("mercer",))
    assert "on mercer `sudo nft insert rule" in out.hint
