"""What `check` finds on machines, why it says it matters, and what it says to do."""

import os
import subprocess

import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.fleet.check import _LOOK, _surroundings
from hetero_tui.fleet.findings import (
    Surroundings,
    of_facts,
    of_link,
    of_network,
    of_surroundings,
    of_trial,
)
from hetero_tui.fleet.install.verification import DeviceTrial, Verification
from hetero_tui.inventory import Host, Inventory
from hetero_tui.inventory.file import load
from hetero_tui.outcomes import BAD, WARNING
from hetero_tui.session import Session

HOST = Host(name="nas", address="nas.local")
GPU = {"kind": "cuda", "index": 0, "name": "TITAN", "driver": "580.65", "capability": "6.1"}


@pytest.mark.parametrize(
    ("changes", "level", "what"),
    [
        ({"accelerators": [GPU], "torch_build": "cpu"}, WARNING, "torch is built for the CPU, and there is TITAN"),
        ({"accelerators": [GPU], "torch_build": "cu130"}, BAD, "built for CUDA 13 (cu130), and CUDA 13 has no kernels"),
        ({"accelerators": [GPU | {"driver": "470.1"}], "torch_build": "cpu"}, WARNING, "update it to use TITAN"),
        ({"problems": ["nvidia-smi is there but failed: x"]}, WARNING, "nvidia-smi is there but failed"),
        ({"packages": {}, "disk": {"path": "/home", "free_bytes": 2 * 10**9}}, WARNING, "2.0 GB free on /home"),
        ({"packages": {}, "accelerators": [GPU], "disk": {"path": "/", "free_bytes": 9 * 10**9}}, WARNING, "9.0 GB"),
    ],
)
def test_a_finding_of_facts(make_facts, changes, level, what):
    (finding,) = of_facts(HOST, make_facts(**changes))
    assert finding.level == level
    assert what in finding.what
    assert finding.why
    assert finding.mend


def test_a_good_machine_has_no_finding(make_facts):
    facts = make_facts(accelerators=[GPU], torch_build="cu126")
    assert of_facts(HOST, facts) == ()
    assert of_surroundings("nas", facts, Surroundings(skew=-2.0, open_files=65536)) == ()
    assert of_trial(HOST, facts, _shown(DeviceTrial("cuda:0", 0.1, ""))) == ()


def test_findings_of_what_a_machine_is_set_to(make_facts):
    facts = make_facts(os={"system": "Darwin", "machine": "arm64"})
    around = Surroundings(skew=-90.0, open_files=256, sleeps_after=10, on_battery=True, ends_at_logout=True)
    clock, sleep, battery, logout, files = of_surroundings("studio", facts, around)
    assert "90 s behind" in clock.what
    assert sleep.mend == "sudo pmset -c sleep 0"
    assert "battery" in battery.what
    assert "when you log out" in logout.what
    assert "256 files" in files.what


@pytest.mark.parametrize(
    ("busctl", "uid", "ends"),
    [("echo b true", 1000, True), ("echo b false", 1000, False), ("echo b true", 0, False), ("exit 1", 1000, False)],
    ids=["it kills", "it does not", "root is spared", "no systemd runs"],
)
def test_a_systemd_that_kills_what_a_user_leaves_behind_is_seen(tmp_path, busctl, uid, ends):
    for name, does in {"busctl": busctl, "id": f"echo {uid}"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", _LOOK], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert ("ht:logout 1" in done.stdout.splitlines()) is ends


@pytest.mark.parametrize(("clock", "skew"), [(1000, 0.0), (1002, 0.0), (950, -49.5), (1100, 97.0)])
def test_a_clock_that_was_read_between_two_moments_is_off_by_no_more_than_it_surely_is(clock, skew):
    around = _surroundings({"clock": str(clock)}, before=1000.5, after=1003.0)
    assert around.skew == pytest.approx(skew)


def test_a_device_that_can_not_be_used(make_facts):
    said = "cuda:0: torch 2.13.0+cpu does not find it"
    trial = DeviceTrial("cuda:0", 0.0, said.removeprefix("cuda:0: "))
    (finding,) = of_trial(HOST, make_facts(accelerators=[GPU]), _shown(trial))
    assert finding.level == BAD
    assert said in finding.what


async def test_machines_are_looked_at_and_nothing_is_changed(machines: EmbeddedMachines):
    path = machines.write_inventory()
    lines = path.read_text().replace(
        f"port: {machines.machines[1].port}}}", f"port: {machines.machines[1].port}, python: /usr/bin/nothing}}"
    )
    path.write_text(lines)
    await machines.unplug("quarter")
    async with Session(load(path), path, ledger_folder=machines.folder / "laptop") as session:
        report = await session.check()
    assert report.bad == ("half", "quarter")
    assert {finding.host for finding in report.findings if finding.level == BAD} == {"half", "quarter"}
    assert all(finding.what and finding.why and finding.mend for finding in report.findings)
    (fast,) = [host for host in report.hosts if host.name == "fast"]
    assert fast.devices[0] == "cpu"
    assert fast.address
    assert all(list(machine.home.iterdir()) == [] for machine in machines.machines)


def _shown(*devices: DeviceTrial) -> Verification:
    return Verification(python="3.11.7", versions={"torch": "2.13.0+cu126"}, devices=devices)


@pytest.mark.parametrize(
    ("addresses", "says"),
    [
        (["127.0.0.1", "::1"], ""),
        ([], ""),
        (["10.0.0.2"], ""),
        (["127.0.0.1", "10.0.0.2"], "between the hosts in clear"),
    ],
)
def test_what_an_outsider_can_do_is_said_where_there_can_be_one(addresses, says):
    said = of_network(addresses, Inventory())
    assert says in said
    assert bool(said) == bool(says)
    assert of_network(addresses, Inventory(security="tls")) == ""
    assert of_network(addresses, Inventory(network="wireguard")) == ""


def test_a_new_environment_is_not_advised_where_the_users_libraries_are_in_the_way(make_facts):
    error = "torch: ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by ...)"
    (finding,) = of_trial(HOST, make_facts(), Verification(python="3.11.7", errors=(error,)))
    assert "LD_LIBRARY_PATH" in finding.mend
    assert "--fix" not in finding.mend


def test_a_slow_link_is_told_with_what_it_costs():
    assert of_link("nas", 100e6, 3e6) == ()
    (finding,) = of_link("nas", 1e6, 12e6)
    assert finding.what.startswith("it sends 8.0 Mbit/s")
    assert "80 s" in finding.why
