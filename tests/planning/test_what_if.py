"""Fleets that do not exist: another device, another link, a host less, or all of it from a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hetero_tui.cli import application
from hetero_tui.errors import PlanError
from hetero_tui.planning import catalogue
from hetero_tui.planning.what_if import changed, check
from remote_agent.planning.blocks import BlockCost, DeviceBlocks
from remote_agent.planning.survey import Device, Host, Survey, Work

FLEET = """
parameters: 17000000
batch: 512
gflop: 6.0
hosts:
  gpu: {count: 3, device: rtx4070, link: 10gbit}
  nas: {speed: 3.5, link: 100mbit, memory_gb: 8}
"""


def measured() -> Survey:
    def host(name: str, speed: float, product: str) -> Host:
        return Host(name=name, devices=(Device(name=f"{name}/0", speed=speed, product=product),), up=1e8, down=1e8)

    hosts = (host("mercer", 67.0, "NVIDIA GeForce GTX TITAN X"), host("nas", 5.0, "CPU 4 cores"))
    return Survey(job="text", work=Work(parameters=1_000_000, batch=64), hosts=hosts)


def test_an_added_device_is_as_fast_as_published_beside_one_that_was_measured_and_marked_an_estimate() -> None:
    added = changed(measured(), ["add=rtx4070@100mbit"]).hosts[-1]
    assert added.name == "rtx4070"
    assert added.devices[0].speed == pytest.approx(67.0 * 29.1 / 6.7)
    assert "https://" in added.devices[0].estimate
    assert added.up == pytest.approx(0.94 * 100e6 / 8)
    twice = changed(measured(), ["add=rtx4070@1gbit", "add=rtx4070@1gbit"])
    assert twice.names == ("mercer", "nas", "rtx4070", "rtx4070-2")


def test_an_added_device_takes_layers_in_its_own_time_and_with_its_own_memory() -> None:
    block = BlockCost(forward_s=1.0, backward_s=2.0, weights=4, trained=4, held=4, boundary=4)
    blocks = DeviceBlocks(blocks=(block,), room=1e9, host="mercer", update_s=0.5)
    first, second = measured().hosts
    device = dataclasses.replace(first.devices[0], blocks=blocks)
    survey = dataclasses.replace(measured(), hosts=(dataclasses.replace(first, devices=(device,)), second))
    (added,) = changed(survey, ["add=rtx4070"]).hosts[-1].devices
    assert added.blocks is not None
    assert added.memory is not None
    assert added.blocks.blocks[0].seconds == pytest.approx(3.0 * 6.7 / 29.1)
    assert (added.blocks.host, added.blocks.room) == ("rtx4070", pytest.approx(0.9 * added.memory))
    (without,) = changed(measured(), ["add=rtx4070"]).hosts[-1].devices
    assert without.blocks is None


def test_links_and_hosts_change_one_after_the_other() -> None:
    after = changed(measured(), ["without=nas", "add=m1", "link=wifi", "link=m1:1gbit"])
    assert after.names == ("mercer", "m1")
    assert [host.medium for host in after.hosts] == ["wifi", ""]
    assert after.media == {"wifi": catalogue.WIFI_BYTES}


def test_a_change_of_one_link_leaves_the_others_and_the_last_host_stays() -> None:
    before = measured()
    own = changed(before, ["link=nas:100mbit"])
    assert own.hosts[0] == before.hosts[0]
    wire = pytest.approx(0.94 * 100e6 / 8)
    nas = own.hosts[1]
    assert (nas.up, nas.down, nas.both, nas.medium) == (wire, wire, 0.0, "")
    air = changed(before, ["link=nas:wifi"]).hosts[1]
    assert (air.up, air.down, air.both, air.medium) == (*(catalogue.WIFI_BYTES,) * 3, "wifi")
    assert changed(before, ["add=m1"]).hosts[-1].up == pytest.approx(0.94 * 1e9 / 8), "if no link is named"
    assert changed(before, ["add=m1@wifi"]).hosts[-1].medium == "wifi"
    with pytest.raises(PlanError, match="no host would be left"):
        changed(before, ["without=nas", "without=mercer"])


def test_an_added_device_is_compared_with_the_fastest_that_was_measured_itself() -> None:
    before = measured()
    faster = changed(before, ["add=h100", "add=rtx4070"])
    assert faster.hosts[-1].devices == changed(before, ["add=rtx4070"]).hosts[-1].devices, "not with what was added"
    _, second = before.hosts
    estimated = dataclasses.replace(second.devices[0], estimate="a table")
    none = dataclasses.replace(before, hosts=(dataclasses.replace(second, devices=(estimated,)),))
    with pytest.raises(PlanError, match="no device was measured that it could be compared with"):
        changed(none, ["add=rtx4070"])


def test_every_change_that_can_not_be_made_is_named_at_once() -> None:
    with pytest.raises(PlanError) as error:
        changed(measured(), ["add=rtx470@1gbit", "without=nass", "link=2bit", "ad=m1", "link=mercy:wifi"])
    told = str(error.value)
    assert "no host 'mercy'; did you mean 'mercer'?" in told
    assert "did you mean 'rtx4070'?" in told
    assert "did you mean 'nas'?" in told
    assert "no link '2bit'" in told
    assert "did you mean 'add'?" in told


def test_a_change_that_can_not_be_made_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("hosts:\n  mercer: {address: 192.0.2.1}\n")  # an address at which nothing is
    changes = ["--what-if", "add=rtx470", "--what-if", "without=mercy", "--what-if", "link=3"]
    done = CliRunner().invoke(application, ["--inventory", str(inventory), "plan", "text", *changes])
    assert done.exit_code == 2
    for part in ("did you mean 'rtx4070'?", "did you mean 'mercer'?", "no link '3'"):
        assert part in done.output
    assert "192.0.2.1" not in done.output
    check(["mercer"], ["add=rtx4070", "link=mercer:wifi"])


def test_a_fleet_file_says_nothing_of_a_models_blocks(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(FLEET)
    done = CliRunner().invoke(application, ["plan", "text", "--fleet", str(path), "--set", "strategy=pipeline"])
    assert done.exit_code == 2
    assert "--set strategy=pipeline: no prediction for it" in done.output
    assert "a model's blocks are measured, which --fleet does not" in done.output


def plan_of(path: Path, *more: str) -> dict[str, Any]:
    """What ``plan --fleet --json`` prints: one document, and nothing beside it."""
    done = CliRunner().invoke(application, ["plan", "text", "--fleet", str(path), "--json", *more])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_settings_count_for_a_fleet_of_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(FLEET)
    usual = plan_of(path)
    assert usual["batch"] == 512
    assert plan_of(path, "--set", "batch_size=96")["batch"] == 96
    slow = plan_of(path, "--set", "strategy=sync", "--set", "clip_norm=1")["chosen"]["step_s"]
    assert slow > plan_of(path, "--set", "strategy=sync")["chosen"]["step_s"], "weights wait for all gradients"
