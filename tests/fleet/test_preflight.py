"""Preflight names everything that keeps a machine from joining, each with what to do."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from hetero_tui.fleet.preflight import (
    NEEDED_RAY,
    judge,
    judge_fleet,
    judge_together,
    training_devices,
)
from hetero_tui.inventory import Host, Inventory

ROCM = {"kind": "rocm", "index": 0, "name": "Radeon Pro W6800", "memory_bytes": 32 << 30}
CUDA = {"kind": "cuda", "index": 0, "name": "TITAN X", "memory_bytes": 12 << 30}
HOST = Host(name="mercer", address="10.0.0.2")


def test_a_healthy_machine_is_fit(make_facts: Any) -> None:
    assert judge(HOST, make_facts()) == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"packages": {"ray": None, "torch": None}}, "has no ray, torch, safetensors, psutil, numpy"),
        ({"python": {"version": "3.9.2", "executable": "/usr/bin/python3"}}, "Python 3.9.2 is too old"),
        ({"disk": {"path": "/", "total_bytes": 9 << 30, "free_bytes": 5 << 20}}, "only 5 MB free on /"),
        ({"python": {"version": "3.11.7", "executable": "/home/my name/python"}}, "in its path: /home/my name/python"),
        ({"python": {"version": "3.11.7", "executable": "/home/o'brien/python"}}, "in its path: /home/o'brien/python"),
        ({"memory": {"total_bytes": 1 << 30, "available_bytes": 90 << 20}}, "only 90 MB of memory free"),
        (
            {"limits": {"memory_bytes": 200 << 20}},
            "only 200 MB of memory for each process (ulimit -v); 4096 are needed",
        ),
        ({"limits": {"processes": 3}}, "only 3 processes and threads (ulimit -u); 500 are needed"),
        ({"limits": {"files": 12, "file_bytes": None}}, "only 12 open files (ulimit -n)"),
        ({"limits": {"file_bytes": 1024}}, "only 0 MB for each file (ulimit -f)"),
        ({"limits": {"tasks": 100}}, "only 100 processes and threads in its container or session"),
        ({"limits": {"seconds": 1}}, "only 1 s of processor time for each process (ulimit -t)"),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(make_facts: Any, changes: dict[str, Any], says: str) -> None:
    problems = judge(HOST, make_facts(**changes))
    assert len(problems) == 1
    assert says in problems[0].cause
    assert problems[0].hint


def test_a_device_of_the_inventory_that_is_not_there_is_said_before_anything_starts(make_facts: Any) -> None:
    host = HOST.model_copy(update={"devices": ("cuda:1", "cpu", "mps")})
    problems = judge(host, make_facts(accelerators=[CUDA]))
    assert [problem.cause for problem in problems] == ["no cuda:1, mps there (found: cuda:0, cpu)"]


def test_the_odd_one_out_is_the_one_with_another_ray_or_python(make_facts: Any) -> None:
    usual = make_facts()
    old_ray = make_facts(packages={**usual.packages, "ray": "2.9.0"})
    new_python = make_facts(python={"version": "3.12.1", "executable": "/p"})
    odd = judge_together({"a": usual, "b": usual, "c": old_ray, "d": new_python, "e": usual})
    assert set(odd) == {"c", "d"}
    assert "2.9.0" in odd["c"].cause
    assert "2.60.0" in odd["c"].cause
    assert "3.12" in odd["d"].cause
    assert odd["c"].hint == "`/usr/bin/python3 -m pip install 'ray==2.60.0'`: one cluster can't mix them"
    assert odd["d"].hint.startswith("name a Python 3.11 there as `python:`, or run `hetero-tui bootstrap` without any")


@pytest.mark.parametrize(
    ("role", "devices", "expected"),
    [
        ("any", None, ("cuda:0",)),
        ("any", ("cuda",), ("cuda:0",)),
        ("any", ("cuda:0", "cpu"), ("cuda:0", "cpu")),
        ("server", None, ()),
    ],
)
def test_which_devices_train(make_facts: Any, role: str, devices: Any, expected: tuple[str, ...]) -> None:
    host = HOST.model_copy(update={"role": role, "devices": devices})
    assert training_devices(host, make_facts(accelerators=[CUDA])) == expected


@pytest.mark.parametrize(
    ("build", "name", "unused"),
    [("cu126", "TITAN X", "Radeon"), ("rocm6.2", "Radeon Pro W6800", "TITAN X"), (None, "TITAN X", "Radeon")],
)
def test_of_two_vendors_in_one_machine_those_train_that_its_torch_is_built_for(
    make_facts: Any, build: str | None, name: str, unused: str
) -> None:
    facts = make_facts(accelerators=[CUDA, CUDA | {"index": 1}, ROCM, ROCM | {"index": 1}], torch_build=build)
    for devices in (None, ("cuda",)):
        assert training_devices(HOST.model_copy(update={"devices": devices}), facts) == ("cuda:0", "cuda:1")
    assert facts.device_name("cuda:1") == name
    (note,) = facts.notes
    assert note.startswith(unused)
    assert "not used" in note
    assert "`python:`" in note


@pytest.mark.parametrize("build", ["cpu", "cu126"])
def test_a_machine_whose_torch_is_built_for_other_devices_trains_on_its_cpu_and_says_so(
    make_facts: Any, build: str
) -> None:
    facts = make_facts(accelerators=[ROCM], torch_build=build)
    assert training_devices(HOST, facts) == ("cpu",)
    assert facts.device_name("cpu") == "CPU 8 cores"
    title = "the CPU" if build == "cpu" else "CUDA"
    assert facts.notes == (f"Radeon Pro W6800 not used: torch is built for {title}",)
    (problem,) = judge(HOST.model_copy(update={"devices": ("cuda:0",)}), facts)
    assert "no cuda:0 there (found: cpu)" in problem.cause
    assert f"torch is built for {title}" in problem.hint


def test_no_device_is_named_twice(make_facts: Any) -> None:
    apple = {"kind": "mps", "name": "Apple M2 Ultra"}
    facts = make_facts(accelerators=[apple | {"index": 0}, apple | {"index": 1}])
    assert facts.devices == ("mps",), "torch has one MPS device"


def test_without_an_accelerator_the_processor_trains(make_facts: Any) -> None:
    assert training_devices(HOST, make_facts()) == ("cpu",)


def fleet_of(**facts: Any) -> tuple[Inventory, dict[str, Any]]:
    return Inventory(cluster="lab", hosts=tuple(Host(name=name, address=name) for name in facts)), facts


def test_the_running_head_decides_which_version_is_right_and_both_are_named(make_facts: Any) -> None:
    new = make_facts(python={"version": "3.12.1", "executable": "/p"})
    old = make_facts()
    odd = judge_together({"nas": old, "crosby": old, "mercer": new}, "mercer")
    assert set(odd) == {"nas", "crosby"}
    assert odd["nas"].cause == "has Python 3.11, and the running head, mercer, has 3.12"
    without = judge_together({"nas": old, "crosby": old, "mercer": new})
    assert without["mercer"].cause == "has Python 3.12, and nas, crosby have 3.11"


def test_of_two_hosts_the_one_with_a_ray_that_is_not_ours_is_blamed(make_facts: Any) -> None:
    right = make_facts()
    wrong = make_facts(packages={**right.packages, "ray": "2.9.0"})
    judged = judge_fleet(*fleet_of(mercer=wrong, nas=right))
    assert judged["nas"] == ()
    assert judged["mercer"][0].cause == "has Ray 2.9.0, and this hetero-tui needs 2.60"


def test_the_ray_that_is_needed_is_the_one_that_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert f"ray>={NEEDED_RAY},<2.61" in project["project"]["optional-dependencies"]["node"]


def test_a_machine_with_two_names_is_used_once_and_that_is_said(make_facts: Any) -> None:
    twin, other = make_facts(machine="m1"), make_facts(machine="m2")
    inventory, facts = fleet_of(address=twin, name=twin, other=other, unknown=make_facts(), unknown2=make_facts())
    judged = judge_fleet(inventory, facts)
    assert [name for name, problems in judged.items() if problems] == ["name"]
    assert judged["name"][0].cause == "is the same machine as address, which is used"
    assert [name for name, problems in judge_fleet(inventory, facts, "name").items() if problems] == ["address"]


def test_who_repeats_what_another_machine_says_of_itself_does_not_put_it_out(make_facts: Any) -> None:
    facts = make_facts(machine="m1")  # it has 10.0.0.2
    hosts = (Host(name="mallory", address="10.0.0.66"), Host(name="plain", address="10.0.0.2"))
    judged = judge_fleet(Inventory(cluster="lab", hosts=hosts), {"mallory": facts, "plain": facts})
    assert judged["plain"] == ()
    assert judged["mallory"][0].cause == "is the same machine as plain, which is used"
    named = (Host(name="mallory", address="mallory.local"), Host(name="plain", address="plain.local"))
    reached = {
        name: facts.model_copy(update={"reached": address})
        for name, address in (("mallory", "10.0.0.66"), ("plain", "10.0.0.2"))
    }
    judged = judge_fleet(Inventory(cluster="lab", hosts=named), reached)
    assert [name for name, problems in judged.items() if problems] == ["mallory"]


def test_machines_that_share_a_home_are_told_and_one_is_used(make_facts: Any) -> None:
    disk = {"path": "/home/me", "total_bytes": 9 << 30, "free_bytes": 8 << 30}
    own, shared = make_facts(disk=disk), make_facts(disk=disk | {"shared": "server:/export/home/me"})
    inventory, facts = fleet_of(a=shared, b=own, c=shared, d=own)
    judged = judge_fleet(inventory, facts)
    assert [name for name, problems in judged.items() if problems] == ["c"]
    assert judged["c"][0].cause.startswith("has its home folder in common with a (server:/export/home/me)")
    assert [name for name, problems in judge_fleet(inventory, facts, "c").items() if problems] == ["a"]


def test_a_folder_of_one_server_is_known_by_whatever_name_and_on_the_server_itself(make_facts: Any) -> None:
    def facts(shared: str | None, identity: str | None) -> Any:
        disk = {"path": "/home/me", "free_bytes": 8 << 30, "shared": shared, "identity": identity}
        return make_facts(disk=disk)

    def odd(**fleet: Any) -> list[str]:
        inventory, known = fleet_of(**fleet)
        return [name for name, problems in judge_fleet(inventory, known).items() if problems]

    server, by_name, by_address = facts(None, "7 1"), facts("nas:/home/me", "7 1"), facts("10.0.0.9:/home/me", "7 1")
    assert odd(nas=server, a=by_name) == ["a"]
    assert odd(a=by_name, b=by_address, c=facts("nas:/home/you", "8 1")) == ["b"]
    assert odd(a=server, b=facts(None, "7 1")) == [], "two disks that were made from one image"
    assert odd(a=facts("x:/a", None), b=facts("x:/b", None), c=facts(None, None)) == []


def test_of_bare_machines_too_one_is_used_of_those_that_are_one_or_share_a_home(make_facts: Any) -> None:
    """Else bootstrap would make both their environments at once, in one folder."""
    disk = {"path": "/home/me", "free_bytes": 8 << 30, "shared": "server:/home/me"}
    bare, shared = make_facts(machine="m1", packages={}), make_facts(packages={}, disk=disk)
    inventory, facts = fleet_of(a=bare, b=bare, c=shared, d=shared, e=make_facts(machine="m1"))
    judged = judge_fleet(inventory, facts)
    instead = {name: problem.instead for name, problems in judged.items() for problem in problems}
    assert instead == {"a": "e", "b": "e", "c": "", "d": "c"}, "one that is fit is taken first"
    assert judged["e"] == ()


def test_intel_gpus_are_xpu_devices_and_beside_nvidias_the_build_decides(make_facts):
    intel = [{"kind": "xpu", "index": index, "name": "Arc B580"} for index in (0, 1)]
    assert make_facts(accelerators=intel, torch_build="xpu").devices == ("xpu:0", "xpu:1")
    both = [{"kind": "cuda", "index": 0, "name": "TITAN X"}, *intel]
    assert make_facts(accelerators=both, torch_build="xpu").devices == ("xpu:0", "xpu:1")
    nvidia = make_facts(accelerators=both, torch_build="cu130")
    assert nvidia.devices == ("cuda:0",)
    assert "to use Intel's instead" in nvidia.notes[0]
    assert training_devices(Host(name="a", address="b", devices=("xpu",)), make_facts(accelerators=intel)) == (
        "xpu:0",
        "xpu:1",
    )


@pytest.mark.parametrize(("device", "there"), [("cuda", True), ("cuda:1", True), ("cuda:2", False), ("xpu", False)])
def test_a_kind_in_the_inventory_means_all_of_it_and_one_at_least_must_be_there(
    make_facts: Any, device: str, there: bool
) -> None:
    host = HOST.model_copy(update={"devices": (device,)})
    facts = make_facts(accelerators=[CUDA, CUDA | {"index": 1}])
    assert (judge(host, facts) == ()) is there
    if there:
        assert training_devices(host, facts) == (("cuda:0", "cuda:1") if device == "cuda" else (device,))
