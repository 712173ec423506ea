"""The cluster plan: a sensible head, and addresses at which the nodes really reach each other."""

from typing import Any

import pytest

from hetero_tui.errors import ClusterError
from hetero_tui.inventory import Host, Inventory
from hetero_tui.planning.cluster import Candidate, node_address, plan_cluster, shared_addresses


def address(ip: str, prefix: int = 24, speed: int | None = 1000) -> dict[str, Any]:
    return {"interface": "eth0", "address": ip, "prefix": prefix, "speed_mbps": speed}


def candidate(facts: Any, name: str, reached: str | None, connection: Any = "ssh", role: Any = "any") -> Candidate:
    ip = None if connection == "local" else "x"
    return Candidate(Host(name=name, address=ip, connection=connection, role=role), facts, reached)


def inventory(*candidates: Candidate, head: str | None = None) -> tuple[Inventory, dict[str, Candidate]]:
    hosts = tuple(entry.host for entry in candidates)
    return Inventory(cluster="lab", head=head, hosts=hosts), {entry.host.name: entry for entry in candidates}


def test_the_head_is_the_best_connected_machine_that_stays(make_facts: Any) -> None:
    slow = candidate(make_facts(addresses=[address("10.0.0.2", speed=100)]), "slow", "10.0.0.2")
    fast = candidate(make_facts(addresses=[address("10.0.0.3")]), "fast", "10.0.0.3")
    laptop = candidate(make_facts(addresses=[address("10.0.0.4", speed=10_000)]), "laptop", "127.0.0.1", "local")
    plan = plan_cluster(*inventory(slow, laptop, fast))
    assert plan.head == "fast"
    assert plan.head_address == "10.0.0.3"
    assert [node.address for node in plan.nodes] == ["10.0.0.2", "10.0.0.4", "10.0.0.3"]
    assert plan.reasons == ("head fast: best link and most memory among those that stay",)


def test_the_laptop_alone_is_its_own_head(make_facts: Any) -> None:
    plan = plan_cluster(*inventory(candidate(make_facts(), "laptop", "127.0.0.1", "local")))
    assert (plan.head, plan.head_address) == ("laptop", "10.0.0.2")


def test_the_head_that_the_inventory_names_is_taken_or_the_plan_fails(make_facts: Any) -> None:
    a, b = candidate(make_facts(), "a", "10.0.0.2"), candidate(make_facts(), "b", "10.0.0.2")
    assert plan_cluster(*inventory(a, b, head="b")).head == "b"
    named, others = inventory(a, b, head="b")
    del others["b"]
    with pytest.raises(ClusterError, match="the head that the inventory names, b, can't join") as named_one:
        plan_cluster(named, others)
    assert "or name another as `head:`" in named_one.value.hint
    with pytest.raises(ClusterError, match="the head of the running cluster, b, can't join") as running:
        plan_cluster(named, others, head="b")
    assert "or run `hetero-tui down`" in running.value.hint


def test_a_running_head_stays_head(make_facts: Any) -> None:
    a, b = candidate(make_facts(), "a", "10.0.0.2"), candidate(make_facts(), "b", "10.0.0.2")
    assert plan_cluster(*inventory(a, b, head="a"), head="b").head == "b"


def test_behind_a_jump_host_the_address_is_the_one_in_the_heads_network(make_facts: Any) -> None:
    facts = make_facts(addresses=[address("172.17.0.1", 16), address("10.0.0.9")])
    assert node_address(candidate(facts, "inner", None), "10.0.0.2") == "10.0.0.9"


def test_behind_a_forwarded_port_the_address_of_the_router_is_not_taken(make_facts: Any) -> None:
    facts = make_facts(addresses=[address("10.0.0.9")])
    assert node_address(candidate(facts, "inner", "198.51.100.7"), "10.0.0.2") == "10.0.0.9"


def test_a_taken_port_is_passed_over_and_none_free_is_an_error(make_facts: Any) -> None:
    busy = candidate(make_facts(free_ports=[6391, 8366]), "a", "10.0.0.2")
    plan = plan_cluster(*inventory(busy))
    assert (plan.gcs_port, plan.dashboard_port) == (6391, 8366)
    with pytest.raises(ClusterError, match="none of the ports 6389-6398 free"):
        plan_cluster(*inventory(candidate(make_facts(free_ports=[]), "a", "10.0.0.2")))


def test_no_machine_no_plan() -> None:
    with pytest.raises(ClusterError, match="no host can join") as nothing:
        plan_cluster(Inventory(), {})
    assert "hetero-tui add" in nothing.value.hint


def test_a_run_goes_on_with_the_best_connected_host_that_holds_its_newest_checkpoint(make_facts: Any) -> None:
    slow = candidate(make_facts(addresses=[address("10.0.0.2", speed=100)]), "slow", "10.0.0.2")
    middle = candidate(make_facts(addresses=[address("10.0.0.3", speed=1000)]), "middle", "10.0.0.3")
    fast = candidate(make_facts(addresses=[address("10.0.0.4", speed=10_000)]), "fast", "10.0.0.4")
    named, candidates = inventory(slow, middle, fast, head="gone")
    plan = plan_cluster(named, candidates, holders=frozenset({"slow", "middle"}))
    assert plan.head == "middle"
    assert "newest checkpoint" in plan.reasons[0]
    with pytest.raises(ClusterError, match="newest checkpoint"):
        plan_cluster(named, candidates, holders=frozenset({"elsewhere"}))


def test_a_head_that_the_inventory_names_stays_head_if_it_holds_the_newest_checkpoint(make_facts: Any) -> None:
    a, b = candidate(make_facts(), "a", "10.0.0.2"), candidate(make_facts(), "b", "10.0.0.2")
    assert plan_cluster(*inventory(a, b, head="b"), holders=frozenset({"a", "b"})).head == "b"


def test_the_head_is_known_at_an_address_in_a_network_that_the_others_are_in(make_facts: Any) -> None:
    links = [address("192.168.9.1", speed=10_000), address("10.0.0.2", speed=100)]
    head = candidate(make_facts(addresses=links), "head", None)
    other = candidate(make_facts(addresses=[address("10.0.0.3")]), "other", None)
    assert plan_cluster(*inventory(head, other, head="head")).head_address == "10.0.0.2"


def test_machines_with_ipv6_alone_are_known_at_it(make_facts: Any) -> None:
    first = candidate(make_facts(addresses=[address("fd00::2", 64)]), "a", "fd00::2")
    zone = candidate(make_facts(addresses=[address("fe80::3%eth0", 64), address("fd00::3", 64)]), "b", "fe80::3%eth0")
    plan = plan_cluster(*inventory(first, zone, head="a"))
    assert [node.address for node in plan.nodes] == ["fd00::2", "fd00::3"]


def test_the_inventorys_cpus_count_else_those_that_this_user_may_use(make_facts: Any) -> None:
    facts = make_facts(cpu={"model": "CPU", "logical": 8, "quota": 3.0})
    own, all_ = candidate(facts, "a", "10.0.0.2"), candidate(make_facts(), "b", "10.0.0.3")
    few = Candidate(own.host.model_copy(update={"cpus": 2}), facts, "10.0.0.2")
    assert [node.cpus for node in plan_cluster(*inventory(own, all_)).nodes] == [3, 8]
    assert [node.cpus for node in plan_cluster(*inventory(few, all_)).nodes] == [2, 8]


def test_the_head_is_no_worker_by_role_where_another_stays_and_has_the_most_memory_of_equals(make_facts: Any) -> None:
    def one(name: str, gigabytes: int | None, speed: int | None = 1000, role: str = "any") -> Candidate:
        memory = {"total_bytes": gigabytes and gigabytes << 30}
        facts = make_facts(memory=memory, addresses=[address("10.0.0.2", speed=speed)])
        return candidate(facts, name, "10.0.0.2", role=role)

    def head(*all_: Candidate) -> str:
        return plan_cluster(*inventory(*all_)).head

    assert head(one("a", 8), one("b", 32), one("c", 16)) == "b"
    assert head(one("a", None), one("b", 8)) == "b"
    assert head(one("a", 32, role="worker"), one("b", 8)) == "b"
    assert head(one("a", 8, speed=100), one("b", 8, speed=None)) == "a"
    assert head(one("a", 8), one("b", 8)) == "a", "the inventory's order"


def test_the_fastest_of_a_heads_links_counts_and_no_bridge(make_facts: Any) -> None:
    def head_of(links: list[dict[str, Any]]) -> str:
        odd = candidate(make_facts(addresses=links), "odd", None)
        usual = candidate(make_facts(addresses=[address("10.0.0.9", speed=1000)]), "usual", "10.0.0.9")
        return plan_cluster(*inventory(usual, odd)).head

    assert head_of([address("10.0.0.2", speed=100), address("10.0.1.2", speed=10_000)]) == "odd"
    assert head_of([address("10.0.0.2", speed=100), address("10.0.1.2", speed=10_000) | {"interface": "docker0"}]) == (
        "usual"
    )


def test_of_a_hosts_addresses_ipv4_comes_first_then_the_fastest(make_facts: Any) -> None:
    def chosen(*links: dict[str, Any]) -> str:
        return node_address(candidate(make_facts(addresses=list(links)), "a", None), None)

    six, four = address("fd00::2", prefix=64, speed=10_000), address("10.0.0.2", speed=100)
    assert chosen(six, four) == "10.0.0.2"
    assert chosen(address("10.0.0.2", speed=None), address("10.0.1.2", speed=100)) == "10.0.1.2"
    assert chosen(address("10.0.0.2", speed=100), address("10.0.1.2", speed=None)) == "10.0.0.2"
    assert chosen(address("10.0.0.2", speed=100), address("10.0.1.2", speed=1000)) == "10.0.1.2"


def test_an_address_that_several_machines_have_is_none_of_theirs(make_facts: Any) -> None:
    docker = address("172.17.0.1", prefix=16, speed=100_000)
    a = candidate(make_facts(addresses=[docker, address("10.0.0.2")]), "a", None)
    b = candidate(make_facts(addresses=[docker, address("10.0.0.3")]), "b", None)
    assert shared_addresses({"a": a, "b": b}) == {"172.17.0.1"}
    assert shared_addresses({"a": a}) == frozenset()
    one = a.facts.model_copy(update={"machine": "x"})
    twins = {name: candidate(one, name, None) for name in ("a", "b")}
    assert shared_addresses(twins) == frozenset(), "one machine, which is named twice"
    assert node_address(a, None, frozenset({"172.17.0.1"})) == "10.0.0.2"
    assert node_address(a, None, frozenset({"172.17.0.1", "10.0.0.2"})) == "172.17.0.1", "it has no other"
