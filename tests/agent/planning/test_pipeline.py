"""The cut that a plan tells is the one that the run makes, and what limits it is named."""

from __future__ import annotations

import dataclasses

import pytest

from remote_agent import protocol
from remote_agent.planning import cuts
from remote_agent.planning.blocks import BlockCost, DeviceBlocks
from remote_agent.planning.cuts import Links
from remote_agent.planning.pipeline import LINKS, codecs_of, decided, is_cut, names_of, planned
from remote_agent.planning.sites import DoesNotFit
from remote_agent.planning.survey import Device, Host, Survey, Work
from remote_agent.planning.ways import COMPUTE, EXCHANGE
from remote_agent.settings import TrainingConfig
from tests.agent.planning.fleets import host, survey

BLOCKS = 6
CONFIG = TrainingConfig(strategy="pipeline", batch_size=16)


def _blocks(name: str, seconds: float, room: float = 1e9, boundary: int = 0) -> DeviceBlocks:
    block = BlockCost(
        forward_s=seconds / 3, backward_s=2 * seconds / 3, weights=100, trained=100, held=10, boundary=boundary
    )
    return DeviceBlocks(blocks=(block,) * BLOCKS, room=room, host=name)


def _cuttable(rate: float = 1e9, **more: int) -> Survey:
    """Two devices of which the second takes twice as long for a block."""
    hosts = tuple(
        Host(
            name=name,
            devices=(Device(name=f"{name}/cpu", speed=1 / seconds, blocks=_blocks(name, seconds, **more)),),
            up=rate,
            down=rate,
        )
        for name, seconds in (("mercer", 0.01), ("nas", 0.02))
    )
    return Survey(job="text", work=Work(parameters=600, batch=16, micro_batch=2), hosts=hosts, call_s=0.0)


def test_a_plan_has_the_cut_that_is_decided_from_the_same_blocks_and_links() -> None:
    fleet = _cuttable()
    devices = [device.blocks for host in fleet.hosts for device in host.devices if device.blocks is not None]
    found = planned(fleet, CONFIG)
    assert found == decided(devices, 8, Links.of(fleet), CONFIG)
    assert found.cut == cuts.cut(devices, 8, Links.of(fleet))
    assert names_of(fleet) == ("mercer/cpu", "nas/cpu")
    assert [stage.last - stage.first for stage in found.cut.stages] == [4, 2]
    assert found.terms[COMPUTE] + found.terms[EXCHANGE] == pytest.approx(found.cut.seconds)
    assert found.memory(found.cut.stages[0]) == 4 * 400 + 4 * 10 * found.cut.in_flight


def test_what_limits_a_cut_is_the_slowest_stage_or_the_links() -> None:
    assert planned(_cuttable(), CONFIG).bound(("mercer/cpu", "nas/cpu")) in (
        "computing on mercer/cpu",
        "computing on nas/cpu",
    )
    slow = _cuttable(rate=1e3, boundary=100, room=2000)
    assert planned(slow, CONFIG).bound(("mercer/cpu", "nas/cpu")) == LINKS


def test_a_fleet_whose_devices_lack_the_room_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="GB are missing"):
        planned(_cuttable(room=500), CONFIG)
    with pytest.raises(DoesNotFit, match="no device is left"):
        planned(survey([host("mercer", 1.0)]), CONFIG)


def test_what_was_measured_of_blocks_is_kept_as_it_is() -> None:
    fleet = dataclasses.replace(_cuttable(), notes=("the model is cut",))
    assert protocol.decode(Survey, protocol.encode(fleet)) == fleet
    assert is_cut(fleet)
    assert not is_cut(survey([host("mercer", 1.0)]))


def test_codecs_that_lose_something_are_taken_where_that_is_allowed() -> None:
    assert codecs_of(TrainingConfig(strategy="pipeline")) == ("fp32",)
    assert codecs_of(TrainingConfig(strategy="pipeline", codec="int8", allow="inexact")) == ("int8",)
    assert codecs_of(TrainingConfig(strategy="pipeline", allow="inexact")) == ("fp32", "bf16", "int8")
