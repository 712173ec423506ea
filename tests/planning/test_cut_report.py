"""The plan of a model that is cut by its layers, as it is shown."""

from __future__ import annotations

import json

import pytest

from hetero_tui.planning import cut_report
from remote_agent.planning.blocks import BlockCost, DeviceBlocks
from remote_agent.planning.pipeline import planned
from remote_agent.planning.survey import Device, Host, Survey, Work
from remote_agent.settings import TrainingConfig

CONFIG = TrainingConfig(strategy="pipeline", batch_size=16)
WHY = "the model is cut by its layers, as it fits on no device: 2.00 GB more are needed"


def _host(name: str, block_s: float) -> Host:
    block = BlockCost(
        forward_s=block_s / 3, backward_s=2 * block_s / 3, weights=10**8, trained=10**8, held=10**6, boundary=10**4
    )
    blocks = DeviceBlocks(blocks=(block,) * 6, room=1.9e9, host=name)
    return Host(name=name, devices=(Device(name=f"{name}/cpu", speed=1.0, blocks=blocks),), up=118e6, down=59e6)


FLEET = Survey(
    job="text",
    work=Work(parameters=150_000_000, batch=16, micro_batch=2),
    hosts=(_host("mercer", 0.01), _host("nas", 0.02), _host("pi", 5.0)),
    call_s=0.0,
    notes=(WHY,),
)
PLAN = planned(FLEET, CONFIG)


def test_scripts_get_the_stages_beside_what_every_plan_has() -> None:
    found = json.loads(json.dumps(cut_report.document(FLEET, PLAN, measured=True)))
    chosen = found["chosen"]
    assert (chosen["strategy"], chosen["hosts"], chosen["exact"]) == ("pipeline", ["mercer", "nas"], True)
    assert [(each["device"], each["first"], each["last"]) for each in chosen["stages"]] == [
        ("mercer/cpu", 0, 4),
        ("nas/cpu", 4, 6),
    ]
    assert (chosen["micro_batches"], chosen["in_flight"]) == (8, PLAN.cut.in_flight)
    assert chosen["step_s"] == pytest.approx(PLAN.cut.seconds)
    assert found["verdicts"][0] == WHY
    assert [each["memory"] for each in chosen["stages"]] == [PLAN.memory(stage) for stage in PLAN.cut.stages]
    assert [each["seconds"] for each in chosen["stages"]] == pytest.approx([0.04, 0.04])
    assert found["measured_now"] is True
