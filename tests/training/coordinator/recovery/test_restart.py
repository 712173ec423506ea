"""A start that fails is made again with whoever is left."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from remote_agent.protocol import DeviceSpec
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import engine
from remote_agent.training.coordinator.recovery.restart import (
    cut,
    from_newest,
    missed,
    moving,
    unstreamed,
    with_fewer_shards,
    without_lost,
    without_unfit,
)
from remote_agent.training.coordinator.request import Request
from remote_agent.training.errors import DeviceMissing, StateChanged, TooLarge
from remote_agent.training.job import Job


def request(hosts: str, server: str = "b") -> Request:
    devices = tuple(DeviceSpec(host=host, device="cpu", name="test") for host in hosts)
    made = Job(name="test", factory=object(), create_data=list)
    return Request(
        run="r", job=made, config=TrainingConfig(), devices=devices, server_host=server, host="a", folder=Path()
    )


def hosts(made: Request | None) -> str:
    assert made is not None
    return "".join(spec.host for spec in made.devices)


def test_hosts_that_join_a_new_head_are_waited_for_and_the_lost_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [frozenset("a"), frozenset("ab"), frozenset("a")]
    monkeypatch.setattr(engine, "_living", lambda: looks.pop(0))
    assert engine._joined(request("abc"), "c") == frozenset("ab")
    assert engine._joined(request("abc"), "") == frozenset("a"), "no head was lost: nobody joins now"


def test_a_host_that_lives_is_tried_once_more() -> None:
    onward = without_lost(request("abc"), ["b"], "abc")
    assert hosts(onward) == "abc"
    assert onward is not None
    assert onward.server_host == "b"
    assert [spec.host for spec in missed(request("abc"), onward, "b")] == ["b"]


def test_only_what_this_run_saved_is_known_to_be_of_the_same_job(tmp_path: Path) -> None:
    given = dataclasses.replace(request("a"), folder=tmp_path, resume=Path("another run"))
    assert not from_newest(given).same_job
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000003.json").touch()
    onward = from_newest(given)
    assert onward.same_job
    assert onward.resume == tmp_path


def test_a_host_that_is_gone_or_lost_twice_is_left_out_and_its_server_goes_to_the_coordinator() -> None:
    for lost, living in ((["b"], "ac"), (["b", "b"], "abc")):
        onward = without_lost(request("abc"), lost, living)
        assert hosts(onward) == "ac"
        assert onward is not None
        assert onward.server_host == "a"
        assert [spec.host for spec in missed(request("abc"), onward, "")] == ["b"]


def test_a_lost_server_goes_to_the_coordinator_also_where_another_device_comes_first() -> None:
    onward = without_lost(request("cba"), ["b"], "ac")
    assert hosts(onward) == "ca"
    assert onward is not None
    assert onward.server_host == "a"


def test_a_host_without_a_node_is_kept_in_mind_and_so_is_one_that_fails_again_and_again() -> None:
    onward = without_lost(request("abc"), ["b"], "ac")
    assert onward is not None
    assert [spec.host for spec in onward.away] == ["b"]
    back = without_lost(onward, ["b", "c"], "abc")
    assert hosts(back) == "acb"
    assert back is not None
    assert back.away == ()
    for living in ("ac", "abc"):
        failing = without_lost(request("abc"), ["b", "b"], living)
        assert hosts(failing) == "ac"
        assert failing is not None
        assert [spec.host for spec in failing.away] == ["b"]


def test_a_run_that_goes_on_has_no_more_shards_than_hosts_and_a_new_one_gets_what_it_asks_for() -> None:
    asked = request("abc")
    asked = dataclasses.replace(asked, config=dataclasses.replace(asked.config, shards=3))
    fewer = dataclasses.replace(asked, devices=asked.devices[:2])
    assert with_fewer_shards(asked) is asked
    assert with_fewer_shards(fewer) is fewer, "it is refused"
    without_a_host = dataclasses.replace(fewer, away=asked.devices[2:])
    for going_on in (without_a_host, dataclasses.replace(fewer, resume=fewer.folder)):
        found = with_fewer_shards(going_on)
        assert found.config.shards == 2
        assert found.notes == ("shards=3, but the run has only b, a now: it goes on with 2",)


def test_there_is_no_start_without_a_device_and_no_fourth_one() -> None:
    assert without_lost(request("b"), ["b", "b"], "ab") is None
    assert without_lost(request("abc"), ["a", "b", "c"], "abc") is None
    assert without_lost(request("bc"), [], "a") is None


def test_a_model_that_can_not_be_streamed_goes_on_from_its_newest_checkpoint_without_a_server(tmp_path: Path) -> None:
    begun = dataclasses.replace(request("ab"), folder=tmp_path, config=TrainingConfig(codec="int8", shards=2))
    onward = unstreamed(begun)
    assert onward is not None
    assert (onward.config.strategy, onward.resume) == ("allreduce", None)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000007.json").touch()
    onward = unstreamed(begun)
    assert onward is not None
    assert onward.resume == tmp_path


def test_a_strategy_that_needs_streams_does_not_start_over_without_them() -> None:
    for strategy in ("local_sgd", "allreduce"):
        assert unstreamed(dataclasses.replace(request("ab"), config=TrainingConfig(strategy=strategy))) is None


def too_large(made: Request, hosts: str) -> TooLarge:
    error = TooLarge("the model does not fit", hint="")
    error.specs = tuple(spec for spec in made.devices if spec.host in hosts)
    return error


def test_a_device_without_room_is_left_out_and_kept_in_mind() -> None:
    onward = without_unfit(request("abc"), too_large(request("abc"), "b"))
    assert hosts(onward) == "ac"
    assert onward is not None
    assert [(spec.host, why) for spec, why in onward.small] == [("b", "the model does not fit")]
    assert without_unfit(onward, too_large(onward, "ac")) is None
    assert without_unfit(request("abc"), too_large(request("abc"), "")) is None, (
        "it is the coordinator that has no room"
    )


def test_a_device_that_is_not_there_is_left_out_with_its_reason_and_for_good() -> None:
    error = DeviceMissing("there is no device 'cuda:0' here", hint="install a driver", host="b")
    assert without_unfit(request("abc"), error) is None
    error.specs = request("abc").devices[1:2]
    onward = without_unfit(request("abc"), error)
    assert hosts(onward) == "ac"
    assert onward is not None
    assert onward.notes == ("b (cpu): left out: there is no device 'cuda:0' here; install a driver",)
    assert (onward.small, onward.away) == ((), ())
    error.specs = request("abc").devices
    assert without_unfit(request("abc"), error) is None
    with pytest.raises(DeviceMissing, match="cuda:0"):
        cut(dataclasses.replace(request("abc"), config=TrainingConfig(strategy="auto")), error)


def test_a_model_without_a_device_that_has_room_is_cut_over_all_of_them_where_the_way_was_left_open() -> None:
    opened = dataclasses.replace(request("abc"), config=TrainingConfig(strategy="auto"))
    left = without_unfit(opened, too_large(opened, "b"))
    assert left is not None
    onward = cut(left, too_large(left, "ac"))
    assert sorted(hosts(onward)) == ["a", "b", "c"]
    assert onward.config.strategy == "pipeline"
    assert onward.small == ()
    assert "the model does not fit" in onward.notes[0]


@pytest.mark.parametrize(
    ("among", "config", "says"),
    [
        ("abc", TrainingConfig(strategy="sync"), "the model does not fit"),
        ("a", TrainingConfig(strategy="auto"), "the model does not fit"),
        ("abc", TrainingConfig(strategy="auto", precision="fp16"), "precision=fp16: strategy=pipeline needs"),
    ],
)
def test_a_model_is_not_cut_where_the_user_said_otherwise_or_there_is_one_device(
    among: str, config: TrainingConfig, says: str
) -> None:
    made = dataclasses.replace(request(among), config=config)
    with pytest.raises(TooLarge, match=says):
        cut(made, too_large(made, among))


def test_with_state_that_begins_to_change_only_a_run_in_common_steps_starts_over_and_once(tmp_path: Path) -> None:
    error = StateChanged("begins to change teacher")
    begun = dataclasses.replace(request("ab"), folder=tmp_path)
    onward = moving(begun, error)
    assert (onward.moving, onward.resume) == (True, None)
    local = dataclasses.replace(begun, config=TrainingConfig(strategy="local_sgd"))
    for again in (onward, local):
        with pytest.raises(StateChanged):
            moving(again, error)
