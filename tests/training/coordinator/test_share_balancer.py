"""How the cut follows devices that are left out: thousands of steps of devices whose true speed is known here."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import deque
from pathlib import Path
from typing import Any, cast

import pytest

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.protocol import DeviceSpec
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.members import MembershipRecord, WorkerHandle
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.plan.benched import MIN_REST_S, TRIAL_COST
from remote_agent.training.coordinator.plan.placement import Placement
from remote_agent.training.coordinator.session import Session
from remote_agent.training.coordinator.share_balancer import ShareBalancer
from remote_agent.training.shared.messages import Reduced, Stamps

NOTHING = cast("Any", None)
BATCH = 64
PROFILES = {"desk": DeviceProfile(1000, 0.005), "hub": DeviceProfile(400, 0.01)}
STEP_S = PROFILES["desk"].seconds(BATCH)
"""Of a step that the first one makes alone."""

FIRST_REST = round(MIN_REST_S / STEP_S)
"""Steps without the other one before it is tried, where that costs next to nothing."""


def seat_on(host: str) -> Placement:
    return Placement(
        worker=f"{host}/cpu", spec=DeviceSpec(host=host, device="cpu", name="test"), node=NOTHING, threads=1
    )


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: Steps.clock_s)


class Steps:
    """Steps of some workers, each issued before the one before has ended."""

    clock_s = 0.0

    def __init__(self, folder: Path, **config: Any) -> None:
        self._events = folder / "events.jsonl"
        members = [WorkerHandle(seat_on(host), NOTHING, SpeedTrack(profile)) for host, profile in PROFILES.items()]
        session = Session(
            config=TrainingConfig(batch_size=BATCH, **config),
            membership=MembershipRecord(members),
            servers=(),
            order=NOTHING,
            source=NOTHING,
            joining=NOTHING,
            payload_bytes=0,
            buffer_names=(),
            journal=Journal(self._events),
            stopping=lambda: False,
        )
        self.balancer, self.members = ShareBalancer(session), members
        self.factors = dict.fromkeys(PROFILES, 1.0)
        self.made, self.seconds = 0, 0.0
        self._issued = deque[dict[WorkerHandle, int]]()

    def make(self, steps: int) -> None:
        """Make some, with each device taking ``factors`` times as long as it was measured to."""
        for _ in range(steps):
            while len(self._issued) < 2:
                self._issued.append({member: end - begin for member, begin, end in self.balancer.slices(BATCH)})
            samples = self._issued.popleft()
            assert sum(samples.values()) == BATCH
            took = {
                each: PROFILES[each.host].seconds(samples[each]) * self.factors[each.host]
                for each in samples
                if each in self.members
            }
            self.made, self.seconds = self.made + 1, self.seconds + max(took.values())
            Steps.clock_s += max(took.values())
            self.balancer.adapt(self.made, [(each, samples[each], took[each]) for each in took])

    def slow_down_for_a_while(self, steps: int) -> None:
        """The hub becomes too slow to take part; so many steps are made once it is as fast as before."""
        self.factors["hub"] = 20.0
        self.make(10)
        assert self.share == 0
        self.factors["hub"] = 1.0
        self.make(steps)

    @property
    def share(self) -> int:
        """Of the hub."""
        return dict(zip((each.host for each in self.members), self.balancer.cut, strict=True)).get("hub", 0)

    def told(self) -> list[str]:
        """What is written of shares and slow devices."""
        events = map(json.loads, self._events.read_text().splitlines())
        return [each.get("reason") or f"{each['host']} at {each['factor']:.2f}" for each in events]


def test_a_device_that_was_too_slow_to_take_part_gets_its_share_again_once_it_is_as_fast_as_before(
    tmp_path: Path,
) -> None:
    run = Steps(tmp_path)
    run.make(100)
    usual = run.share
    assert usual > 10
    run.slow_down_for_a_while(5000)
    assert run.share == usual
    assert run.told() == [
        "hub at 0.05",
        "the devices' speeds changed",
        "hub/cpu is tried again",
        "hub at 1.00",
        "the devices' speeds changed",
    ]


def test_a_device_that_is_slow_and_fast_again_many_times_a_minute_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 4 ms on a busy computer; what is told has lasted for seconds."""
    monkeypatch.setitem(PROFILES, "desk", DeviceProfile(20_000, 0.001))
    monkeypatch.delitem(PROFILES, "hub")
    run = Steps(tmp_path)

    def for_a_while(factor: float, seconds: float) -> None:
        run.factors["desk"] = factor
        ends = run.seconds + seconds
        while run.seconds < ends:
            run.make(1)

    for _ in range(20):
        for_a_while(1.0, 1.0)
        for_a_while(7.0, 0.6)
    assert run.told() == [], "no burst of another program is told"
    for_a_while(1.0, 5.0)
    for _ in range(20):
        for_a_while(7.0, 2.0)
        for_a_while(1.0, 0.6)
    assert run.told() == ["desk at 0.14"]
    for_a_while(1.0, 5.0)
    assert run.told() == ["desk at 0.14", "desk at 1.00"]


def test_a_weak_device_gets_its_share_again_though_it_adds_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "hub", DeviceProfile(60, 0.01))
    run = Steps(tmp_path)
    usual = run.share
    assert 0 < usual <= 0.06 * BATCH
    run.slow_down_for_a_while(2000)
    assert run.share == usual


def test_trials_of_a_device_that_stays_too_slow_cost_next_to_nothing_and_become_rare(tmp_path: Path) -> None:
    run = Steps(tmp_path)
    run.factors["hub"] = 20.0
    run.make(100)
    assert run.share == 0
    lost, trials = list[float](), list[int]()
    for _ in range(3):
        begin, before = run.seconds, len(run.told())
        run.make(20_000)
        lost.append((run.seconds - begin) / (20_000 * STEP_S) - 1)
        trials.append(run.told()[before:].count("hub/cpu is tried again"))
    assert max(lost) <= TRIAL_COST
    assert trials[0] > trials[1] >= trials[2]
    assert run.told().count("hub/cpu is still too slow to take part") == sum(trials)
    assert run.share == 0


def test_a_device_that_is_lost_in_its_trial_or_joins_leaves_a_whole_cut(tmp_path: Path) -> None:
    run = Steps(tmp_path)
    run.factors["hub"] = 20.0
    while "hub/cpu is tried again" not in run.told():
        run.make(1)
    assert run.share == 1
    hub = run.members[1]
    run.members.remove(hub)
    run.balancer.recut(run.made, "hub is lost")
    assert run.balancer.cut == (BATCH,)
    run.make(10)
    run.members.append(hub)
    run.balancer.recut(run.made, "hub is back")
    assert sum(run.balancer.cut) == BATCH
    run.make(10)
    while run.members:
        run.members.pop()
        run.balancer.recut(run.made, "all are lost")
    assert run.balancer.cut == ()


def test_where_shares_are_to_stay_nobody_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "hub", DeviceProfile(400, 1.1 * STEP_S))
    run = Steps(tmp_path, rebalance=False)
    run.make(2 * FIRST_REST)
    assert run.told() == []


def test_memory_that_was_full_is_written_down(tmp_path: Path) -> None:
    run = Steps(tmp_path)
    result = Reduced(samples=8, loss=0.0, computed=(), ready=0.0, stamps=Stamps())
    for at_most in (0, 4):
        run.balancer.take_notice(3, run.members[1], dataclasses.replace(result, at_most=at_most))
    (event,) = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert event["kind"] == "rebalanced"
    assert "hub/cpu's memory was full: it computes 4 samples at a time" in event["reason"]


def _events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_slices_follow_each_other_and_hold_the_whole_batch_whatever_its_size(tmp_path: Path) -> None:
    balancer = Steps(tmp_path).balancer
    for total in (1, 7, BATCH - 1, BATCH, BATCH + 1, 10 * BATCH):
        slices = balancer.slices(total)
        begins, ends = [begin for _, begin, _ in slices], [end for _, _, end in slices]
        assert begins == [0, *ends[:-1]]
        assert ends[-1] == total
        assert all(begin < end for begin, end in zip(begins, ends, strict=True))


def test_a_lost_slice_goes_to_the_worker_that_will_have_done_it_soonest(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    desk, hub = steps.members
    balancer = steps.balancer
    assert balancer.substitute(10, {}, 5) is desk
    assert balancer.substitute(10, {desk: 10.0}, 5) is hub
    assert balancer.substitute(10, {desk: 10.0, hub: 20.0}, 5) is desk
    assert balancer.substitute(10, {hub: 0.5}, 5) is desk, "what is busy is no sooner"


def test_a_lost_slice_goes_to_a_worker_that_has_room_for_it_if_there_is_one(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    desk, hub = steps.members
    desk.track = SpeedTrack(dataclasses.replace(PROFILES["desk"], max_batch=10))
    assert steps.balancer.substitute(10, {}, 5) is desk, "it fits to the last sample"
    assert steps.balancer.substitute(11, {}, 5) is hub
    hub.track = SpeedTrack(dataclasses.replace(PROFILES["hub"], max_batch=10))
    assert steps.balancer.substitute(11, {}, 5) is desk, "in parts, where it fits nowhere"


def test_a_lost_slice_goes_to_a_worker_that_has_the_weights_of_its_step(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    desk, hub = steps.members
    desk.entered = 6
    assert steps.balancer.substitute(10, {}, 5) is hub, "the other one gets them once that step is whole"
    assert steps.balancer.substitute(10, {}, 6) is desk
    hub.entered = 6
    assert steps.balancer.substitute(10, {}, 5) is desk, "where all came later, the soonest"


@pytest.mark.parametrize(("most", "whole"), [(BATCH, False), (BATCH - 1, True)])
def test_where_the_batch_does_not_fit_those_that_are_left_one_computes_its_slice_in_parts(
    tmp_path: Path, most: int, whole: bool
) -> None:
    steps = Steps(tmp_path)
    desk, hub = steps.members
    desk.track = SpeedTrack(dataclasses.replace(PROFILES["desk"], max_batch=most))
    steps.members.remove(hub)
    steps.balancer.recut(4, "hub/cpu was lost")
    assert steps.balancer.cut == (BATCH,)
    assert (desk.track.profile.max_batch is None) is whole
    event = _events(tmp_path)[-1]
    assert (event["kind"], event["step"], event["reason"]) == ("rebalanced", 4, "hub/cpu was lost")
    assert [share["samples"] for share in event["shares"]] == [BATCH]


def test_what_a_worker_that_has_left_still_delivers_hides_nothing_of_the_others(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    desk, hub = steps.members
    steps.members.remove(desk)
    steps.balancer.recut(1, "desk/cpu was lost")
    before = hub.track.steps
    steps.balancer.adapt(2, [(desk, 10, 1.0), (hub, 54, 1.0)])
    assert hub.track.steps == before + 1
