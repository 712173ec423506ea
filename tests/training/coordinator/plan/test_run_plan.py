"""What is decided from a profile, before anything of a run is opened."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.protocol import DeviceSpec
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan import run_plan
from remote_agent.training.coordinator.plan.measurements import Measurements
from remote_agent.training.coordinator.plan.run_plan import Profile
from remote_agent.training.coordinator.plan.siting import Computer, ShardHosts
from remote_agent.training.coordinator.plan.surveying import Fleet
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.errors import JobError, TrainingError
from remote_agent.training.shared.audit import NO_NOISE, Audit, Cause, Finding, Sketch
from remote_agent.training.shared.dataplane import OptimizerFacts, Usage
from remote_agent.training.shared.link_speed import LinkRates
from remote_agent.training.shared.messages import DeviceCosts

SPEEDS = (DeviceProfile(300.0), DeviceProfile(100.0))
BATCH = 40
AUDIT = Audit(np.arange(12), Sketch(12, 1.0, 12, 12, np.zeros((2, 64))), NO_NOISE)


def profile(usage: Usage | None = None, dtype: str = "float32", limit: int | None = None, **more: Any) -> Profile:
    devices = tuple(DeviceProfile(each.speed, each.overhead_s, limit) for each in SPEEDS)
    found = Measurements(devices, usage or Usage(), AUDIT, 1.0, None, notes=("a: a note",))
    sgd = OptimizerFacts(kind="SGD", elementwise=True, groups=(("w", "b"),))
    return Profile(
        measured=found, optimizer=sgd, dtypes={"w": dtype, "b": "float32"}, max_batches=(limit, limit), **more
    )


def planned(profile: Profile, **settings: Any) -> run_plan.RunPlan:
    config = TrainingConfig(batch_size=BATCH, seed=1, **settings)
    return run_plan.plan(config, profile, SampleOrder(1, 1000, BATCH))


def test_an_ordinary_model_is_streamed() -> None:
    plan = planned(profile())
    assert plan.config.strategy == "sync"
    assert plan.reasons == ("a: a note",)


def test_an_average_that_a_hook_keeps_beside_the_model_is_told_of_the_setting_for_it() -> None:
    hooked = dataclasses.replace(profile().optimizer, elementwise=False, hooked=True)
    plan = planned(dataclasses.replace(profile(), optimizer=hooked))
    assert plan.config.strategy == "allreduce"
    assert run_plan.HOOKED in plan.reasons


def test_an_optimizer_of_another_kind_is_named_where_each_stage_steps_its_own_weights() -> None:
    lamb = dataclasses.replace(profile().optimizer, kind="Lamb", elementwise=False)
    plan = planned(dataclasses.replace(profile(), optimizer=lamb), strategy="pipeline")
    assert any(reason.endswith(f"Lamb {run_plan.BY_WEIGHT}") for reason in plan.reasons)
    assert not any(run_plan.BY_WEIGHT in reason for reason in planned(profile(), strategy="pipeline").reasons)


def test_a_norm_over_more_than_the_optimizer_has_is_for_workers() -> None:
    wider = dataclasses.replace(profile(), dtypes=dict.fromkeys(("w", "b", "c"), "float32"))
    assert planned(wider).config.strategy == "sync"
    plan = planned(wider, clip_norm=1.0)
    assert plan.config.strategy == "allreduce"
    assert any("clip_norm counts c" in reason for reason in plan.reasons)
    with pytest.raises(JobError, match="clip_norm counts c"):
        planned(wider, strategy="local_sgd", clip_norm=1.0)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (profile(Usage(buffers=frozenset({"norm.running_mean"}))), "training changes norm.running_mean"),
        (profile(dtype="float64"), "parameters are float64"),
        (profile(Usage(sometimes=frozenset({"b"}))), "b had a gradient in some slices only"),
    ],
)
def test_what_a_server_cannot_hold_is_reduced_among_the_workers(found: Profile, why: str) -> None:
    plan = planned(found, codec="int8")
    assert plan.config.strategy == "allreduce"
    assert any(why in reason for reason in plan.reasons)
    assert "codec=int8 has no effect: it is for servers" in plan.reasons
    with pytest.raises(JobError, match=why):
        planned(found, strategy="local_sgd")


def test_the_same_bits_each_time_need_an_order() -> None:
    assert planned(profile(), deterministic=True).config.strategy == "allreduce"


@pytest.mark.parametrize("cause", Cause)
def test_what_an_audit_found_is_refused(cause: Cause) -> None:
    found = dataclasses.replace(AUDIT, finding=Finding(cause, name="w", places=("a", "b")))
    measured = dataclasses.replace(profile().measured, audit=found)
    with pytest.raises(JobError):
        planned(dataclasses.replace(profile(), measured=measured))


def test_a_loss_that_adds_its_samples_up_is_taken_so() -> None:
    measured = dataclasses.replace(profile().measured, audit=dataclasses.replace(AUDIT, summed=True))
    assert planned(dataclasses.replace(profile(), measured=measured)).config.loss_reduction == "sum"


def test_rounds_have_a_local_batch_of_their_own_and_as_many_as_the_epochs_have() -> None:
    config = TrainingConfig(batch_size=BATCH, seed=1, strategy="local_sgd", local_steps=3, epochs=2)
    plan = run_plan.plan(config, profile(), SampleOrder(1, 1000, BATCH, limit=2000))
    assert plan.config.local_batch == BATCH // 2
    # Three local steps of the fast device and one of the slow one.
    assert plan.config.num_iterations == -(-2000 // (4 * BATCH // 2))


def test_a_batch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TrainingError) as caught:
        planned(profile(limit=10))
    assert "max_batch" in caught.value.hint


# --- The planner's choice ---------------------------------------------------------------------------------------------


def with_links(rate: float, numel: int, **more: Any) -> Profile:
    rates = LinkRates(up=rate, down=rate, memory=1 << 40, reachable=True)
    computers = tuple(Computer(hosts=(name,), workers={name: 1}, rates=rates) for name in "ab")
    fleet = Fleet(
        job="text",
        names=("a/cpu", "b/cpu"),
        specs=tuple(DeviceSpec(host=name, device="cpu", name="CPU") for name in "ab"),
        simulated=(None, None),
        there=ShardHosts(first="b", together=False, computers=computers),
        numel=numel,
    )
    return dataclasses.replace(profile(**more), fleet=fleet)


def test_auto_takes_the_fastest_host_alone_where_the_link_eats_what_the_other_adds() -> None:
    plan = planned(with_links(1e5, 1_000_000), strategy="auto")
    assert (plan.config.strategy, plan.hosts) == ("sync", ("a",))
    assert plan.reasons[0].startswith("use a alone: 133 ms a step against ")
    assert plan.survey is not None
    assert plan.survey.names == ("a",)
    assert list(plan.left_out) == ["b"]


def test_auto_takes_all_that_help_and_changes_nothing_of_what_is_learned() -> None:
    plan = planned(with_links(1e9, 100_000), strategy="auto")
    assert (plan.config.strategy, plan.config.codec, plan.hosts) == ("sync", "fp32", ("a", "b"))
    free = planned(with_links(5e5, 1_000_000), strategy="auto", allow="inexact")
    assert free.hosts == ("a", "b")
    assert free.config.strategy == "local_sgd"
    assert "it is not exact: what is predicted is samples per second, not how soon a loss is reached" in free.reasons


def test_auto_reduces_among_the_workers_what_a_server_cannot_hold() -> None:
    plan = planned(with_links(1e9, 100_000, dtype="float64"), strategy="auto")
    assert plan.config.strategy == "allreduce"


def test_a_named_strategy_keeps_all_hosts_and_says_what_each_adds() -> None:
    plan = planned(with_links(1e5, 1_000_000))
    assert (plan.config.strategy, plan.hosts) == ("sync", None)
    assert plan.reasons[0].startswith("use a alone: ")
    assert plan.reasons[1].startswith("b would slow the step by ")
    assert plan.left_out == {}


@pytest.mark.parametrize("strategy", ["sync", "auto"])
def test_what_a_plan_is_made_of_says_the_size_of_the_groups_of_batch_normalisation(strategy: str) -> None:
    plan = planned(with_links(1e9, 100_000, batch_statistics=True), strategy=strategy, unit=20)
    assert plan.whole is not None
    (note,) = (note for note in plan.whole.notes if "groups of" in note)
    assert "sees groups of 20 samples" in note
    assert note in plan.reasons, "the run's plan says the same"


@pytest.mark.parametrize(("simulated", "ready"), [(None, (0.45, 0.9)), (0.5, (0.5, 1.0))])
def test_a_simulated_device_gives_its_last_gradient_when_its_time_is_over(
    simulated: float | None, ready: tuple[float, ...]
) -> None:
    found = with_links(1e9, 100_000)
    assert found.fleet is not None
    costs = (DeviceCosts(ready=(0.45, 0.9)),) * 2
    fleet = dataclasses.replace(found.fleet, simulated=(simulated, simulated))
    plan = planned(dataclasses.replace(found, measured=dataclasses.replace(found.measured, costs=costs), fleet=fleet))
    assert plan.whole is not None
    assert plan.whole.work.ready == pytest.approx(ready)


def test_links_that_were_not_measured_now_are_those_of_an_earlier_run() -> None:
    linked = with_links(1e5, 100_000)
    earlier = planned(linked).whole
    assert earlier is not None
    assert linked.fleet is not None
    computers = tuple(dataclasses.replace(each, rates=None) for each in linked.fleet.there.computers)
    fleet = dataclasses.replace(linked.fleet, there=dataclasses.replace(linked.fleet.there, computers=computers))
    before = dataclasses.replace(earlier, time=5.0)
    found = planned(dataclasses.replace(linked, fleet=fleet, before=before)).whole
    assert found is not None
    assert [host.up for host in found.hosts] == [1e5, 1e5]
    assert found.time == 5.0, "they are no newer than they were"
    anew = planned(dataclasses.replace(with_links(2e5, 100_000), before=before)).whole
    assert anew is not None
    assert [host.up for host in anew.hosts] == [2e5, 2e5]
    assert anew.time > 5.0


def test_what_a_slice_costs_is_expected_once_for_each_unit() -> None:
    slow = DeviceProfile(100.0, 0.02, 64)
    assert slow.in_units(0) == slow
    assert slow.in_units(32).seconds(128) == pytest.approx(4 * 0.02 + 128 / 100.0)
    assert slow.in_units(32).in_units(32) == slow.in_units(32)
    found = with_links(1e9, 1000)
    costly = dataclasses.replace(
        found.measured,
        profiles=(DeviceProfile(300.0, 0.1), DeviceProfile(100.0, 0.1)),
        reference=DeviceProfile(1.0, 1.0),
    )
    unit = 20
    plan = planned(dataclasses.replace(found, measured=costly), unit=unit)
    assert plan.survey is not None
    speeds = [device.speed for host in plan.survey.hosts for device in host.devices]
    assert speeds == pytest.approx([1 / (1 / speed + 0.1 / unit) for speed in (300.0, 100.0)])
    assert costly.in_units(unit).reference == DeviceProfile(1 / (1 + 1 / unit))
