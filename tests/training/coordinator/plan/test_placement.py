"""Where workers run, and with how many threads."""

from __future__ import annotations

import pytest

from remote_agent.protocol import DeviceSpec
from remote_agent.training.coordinator.plan.placement import Node, Placement, actor_options, seats, without_sharing
from remote_agent.training.errors import PlacementError


def seat(host: str, threads: int, device: str = "cpu") -> Placement:
    node = Node(host=host, selector=("host", host), cpus=threads, gpus=0)
    return Placement(
        worker=f"{host}/{device}", spec=DeviceSpec(host=host, device=device, name=""), node=node, threads=threads
    )


def threads(*placed: tuple[Placement, str, int]) -> list[int]:
    return [
        each.threads
        for each in without_sharing([seat for seat, _, _ in placed], [(machine, cores) for _, machine, cores in placed])
    ]


def test_a_host_without_a_node_is_named_with_those_that_there_are() -> None:
    nodes = [Node(host=host, selector=("host", host), cpus=2, gpus=0) for host in "ab"]
    specs = [DeviceSpec(host=host, device="cpu", name="") for host in "aq"]
    with pytest.raises(PlacementError, match="no node on 'q'; nodes: a, b") as refused:
        seats(specs, nodes)
    assert refused.value.host == "q"
    assert refused.value.hint
    assert [seat.spec.host for seat in seats(specs[:1], nodes)] == ["a"]


def test_workers_on_one_computer_have_its_cores_together() -> None:
    three = [(seat(host, 2), "one", 2) for host in "abc"]
    assert threads(*three) == [1, 1, 1]
    assert threads((seat("a", 8), "one", 8), (seat("b", 4), "one", 8), (seat("c", 4), "two", 4)) == [5, 2, 4]


def test_those_that_have_enough_cores_keep_their_threads() -> None:
    assert threads((seat("a", 4), "one", 8), (seat("b", 4), "one", 8)) == [4, 4]
    assert threads((seat("a", 4, "cuda:0"), "one", 8), (seat("a", 4), "one", 8)) == [4, 4]


def test_a_gpus_worker_has_a_core_of_its_own_beside_cpu_workers() -> None:
    gpus = [(seat(host, 1, f"cuda:{number}"), "one", 8) for host in "ab" for number in range(2)]
    assert threads(*gpus, (seat("a", 6), "one", 8), (seat("b", 6), "one", 8)) == [1, 1, 1, 1, 2, 2]
    assert threads((seat("a", 1, "cuda:0"), "one", 1), (seat("a", 1), "one", 1)) == [1, 1]
    nodes = [Node(host="a", selector=("host", "a"), cpus=8, gpus=2)]

    def seated(*devices: str) -> list[int]:
        return [each.threads for each in seats([DeviceSpec(host="a", device=name, name="") for name in devices], nodes)]

    assert seated("cuda:0", "cpu") == [1, 7]
    assert seated("cuda:0", "cuda:1", "cpu") == [1, 1, 6]
    assert seated("cuda:0", "cuda:1") == [4, 4]
    assert seated("cuda:0") == seated("cpu") == [8]


def test_words_have_the_same_hashes_in_all_actors_on_anyones_cluster() -> None:
    node = Node(host="a", selector=("host", "a"), cpus=2, gpus=0)
    assert actor_options(node)["runtime_env"]["env_vars"]["PYTHONHASHSEED"] == "0"
