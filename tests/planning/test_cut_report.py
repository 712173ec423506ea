"""The plan of a model that is cut by its layers, as it is shown."""

from __future__ import annotations

import json

import pytest

from hetero_tui.planning import cut_report
from hetero_tui.planning.what_if import changed
from remote_agent.planning.blocks import BlockCost, DeviceBlocks
from remote_agent.planning.pipeline import planned
from remote_agent.planning.survey import Device, Host, Survey, Work
from remote_agent.planning.verdicts import seconds
from remote_agent.planning.ways import COMPUTE, EXCHANGE, PIPELINE
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
BEST = cut_report.prediction(FLEET, PLAN)


def test_a_row_of_each_stage_says_its_blocks_time_and_memory_and_one_of_each_other_that_it_has_none() -> None:
    assert cut_report.rows(FLEET, PLAN) == [
        ["mercer", "mercer/cpu", "1-4 of 6", "40 ms", "1.62 GB", "118.0/59.0"],
        ["nas", "nas/cpu", "5-6 of 6", "40 ms", "0.80 GB", "118.0/59.0"],
        ["pi", "pi/cpu", "-", "-", "-", "118.0/59.0"],
    ]


def test_it_is_said_why_it_is_cut_what_a_step_takes_and_who_gets_no_blocks() -> None:
    why, use, pieces, idle, limit = cut_report.verdicts(FLEET, PLAN, BEST)
    assert why == WHY
    assert use.startswith("use pipeline on mercer and nas: ")
    assert "a step of 16 samples" in use
    assert pieces == f"8 micro-batches of 2 samples, {PLAN.cut.in_flight} in flight, sent as fp32"
    assert idle == "pi gets no blocks: a step is shorter without it"
    assert limit in ("computing on mercer/cpu is the limit", "computing on nas/cpu is the limit")
    assert BEST.seconds == pytest.approx(PLAN.cut.seconds)
    assert BEST.way.exact


def test_a_link_that_a_step_waits_for_longer_than_it_computes_is_the_limit() -> None:
    slow = changed(FLEET, ["link=1mbit", "without=pi"])
    plan = planned(slow, CONFIG)
    best = cut_report.prediction(slow, plan)
    assert best.term(EXCHANGE) > best.term(COMPUTE)
    *_, limit = cut_report.verdicts(slow, plan, best)
    assert limit == f"{best.bound} limit: {seconds(best.term(EXCHANGE))} of {seconds(best.seconds)}"
    assert [term.source for term in best.terms] == [cut_report.SOURCES[term.name] for term in best.terms]


def test_a_prediction_of_a_cut_has_what_others_have() -> None:
    best = cut_report.prediction(FLEET, PLAN)
    assert (best.samples, best.parts, best.shares) == (16, {}, {"mercer/cpu": 16, "nas/cpu": 16})
    assert (best.way.strategy, best.way.hosts, best.way.codec) == (PIPELINE, ("mercer", "nas"), PLAN.cut.codec)
    assert best.busy_s == pytest.approx({"mercer/cpu": 8 * 0.04, "nas/cpu": 8 * 0.04})
    only = cut_report.choice(best)
    assert (only.best, only.ways, only.gains, only.refused, only.considered) == (best, (best,), {}, (), 1)
    assert only.alone is only.everything is None


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


def test_a_device_that_is_thought_of_gets_blocks_as_fast_as_its_figures_say_and_one_less_leaves_too_little_room() -> (
    None
):
    added = changed(FLEET, ["add=rtx4070@1gbit"])
    assert cut_report.rows(added, planned(added, CONFIG))[0][:2] == ["rtx4070", "rtx4070"]
    fewer = changed(FLEET, ["without=pi"])
    assert len(planned(fewer, CONFIG).cut.stages) == 2
