"""A run that ended too early is made ready to go on: its events without a gap, its files whole."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from remote_agent import protocol, reopening, runs
from remote_agent.protocol import CheckpointSaved, DeviceSpec, Event, RunFailed, RunFinished, RunSpec, encode
from remote_agent.states import ControlCommand
from tests.specs import run_spec, run_step

FAILED = RunFailed(seq=3, time=3.0, step=7, host="h", cause="the power went")


def saved(seq: int) -> CheckpointSaved:
    return CheckpointSaved(seq=seq, time=1.0, step=seq, path="p", host="h")


def finished(*, stopped: bool) -> RunFinished:
    return RunFinished(
        seq=3, time=3.0, steps=9, samples=90, final_loss=1.0, samples_per_second=1.0, checkpoint="p", stopped=stopped
    )


def specification(host: str = "h", run: str = "digits-1") -> RunSpec:
    device = DeviceSpec(host=host, device="cpu", name="n")
    config = {"num_iterations": "50"} if host == "h" else {}
    return run_spec(run, "digits", host, ray_address=f"{host}:1", devices=(device,), config=config)


def run_folder(folder: Path, *last: Event, checkpoint: bool = True) -> Path:
    place = folder / "runs" / "digits-1"
    (place / "checkpoints").mkdir(parents=True)
    (place / "run.json").write_text(encode(specification()))
    (place / "events.jsonl").write_text("".join(encode(event) + "\n" for event in (saved(1), saved(2), *last)))
    if checkpoint:
        (place / "checkpoints" / "step-00000002.json").write_text("{}")
    return place


def numbers(place: Path) -> list[int]:
    lines = (place / "events.jsonl").read_text().splitlines()
    return [event.seq for event in map(protocol.decode_event, lines) if event]


def test_the_last_event_is_taken_back_and_what_it_said_is_kept(tmp_path: Path) -> None:
    made = run_step(6, seq=3)
    place = run_folder(tmp_path, made, replace(FAILED, seq=4))
    runs.reopen(tmp_path, "digits-1", specification("new"))
    assert numbers(place) == [1, 2, 3]
    spec = protocol.decode(RunSpec, (place / "run.json").read_text())
    assert spec.ended == "failed after step 6: the power went"
    assert spec.resume == str(place)
    assert (spec.host, spec.ray_address, spec.devices[0].host) == ("new", "new:1", "new")
    assert spec.config == {"num_iterations": "50"}


def test_a_run_keeps_the_devices_of_hosts_that_are_away_but_not_of_those_that_left_or_are_of_no_use(
    tmp_path: Path,
) -> None:
    place = run_folder(tmp_path, FAILED)
    device = {host: DeviceSpec(host=host, device="cuda:0", name="n") for host in "abcde"}
    known = replace(specification("h"), devices=tuple(device[host] for host in "abcd"))
    (place / "run.json").write_text(encode(known))
    commands = (
        protocol.RunCommand(command=ControlCommand.DRAIN, host="b"),
        protocol.RunCommand(command=ControlCommand.ADD, devices=(device["a"], device["e"])),
    )
    control = [*map(encode, commands), "no command"]
    (place / protocol.CONTROL_FILE).write_text("\n".join(control) + "\n")
    runs.reopen(tmp_path, "digits-1", replace(specification("d"), awaited=("a", "b", "d", "e")))
    spec = protocol.decode(RunSpec, (place / "run.json").read_text())
    assert spec.commands == (place / protocol.CONTROL_FILE).stat().st_size, "they were for the run before"
    # b was drained, c is there and does not train any more, d has other devices now.
    assert [(entry.host, entry.device) for entry in spec.devices] == [("d", "cpu"), ("a", "cuda:0"), ("e", "cuda:0")]


@pytest.mark.parametrize("stopped", [True, False])
def test_a_run_goes_on_with_the_settings_that_change(tmp_path: Path, stopped: bool) -> None:
    place = run_folder(tmp_path, finished(stopped=stopped))
    before = protocol.decode(RunSpec, (place / "run.json").read_text()).config
    change = {"num_iterations": "900", "learning_rate": "0.5"}
    runs.reopen(tmp_path, "digits-1", replace(specification("new"), config=change))
    assert protocol.decode(RunSpec, (place / "run.json").read_text()).config == {**before, **change}
    assert numbers(place) == [1, 2]


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    place = run_folder(tmp_path, finished(stopped=False))
    before = (place / "events.jsonl").read_bytes(), (place / "run.json").read_bytes()
    with pytest.raises(runs.NotResumable, match="is finished"):
        runs.reopen(tmp_path, "digits-1", specification("new"))
    assert before == ((place / "events.jsonl").read_bytes(), (place / "run.json").read_bytes())


def test_a_run_without_a_whole_checkpoint_is_refused_by_the_command_in_one_line(tmp_path: Path) -> None:
    place = run_folder(tmp_path, FAILED, checkpoint=False)
    (place / "checkpoints" / "step-00000002.safetensors").touch()
    command = [sys.executable, "-m", "remote_agent.runs", "--folder", str(tmp_path), "--reopen", "digits-1"]
    done = subprocess.run(
        command, input=encode(specification("new")) + "\n", capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == protocol.RUN_NOT_RESUMABLE
    assert done.stderr.strip() == "digits-1 has no checkpoint"
    assert numbers(place) == [1, 2, 3]


def test_a_copy_of_a_lost_heads_run_says_first_that_the_head_was_lost(tmp_path: Path) -> None:
    place = run_folder(tmp_path)
    now = replace(specification("new"), ended="no answer", epoch=7)
    runs.reopen(tmp_path, "digits-1", now)
    last = protocol.decode_event((place / "events.jsonl").read_text().splitlines()[-1])
    assert isinstance(last, protocol.HeadLost)
    assert (last.seq, last.host, last.cause) == (3, "h", "no answer")
    assert reopening.examine(place / "events.jsonl").left == "h"
    spec = protocol.decode(RunSpec, (place / "run.json").read_text())
    assert (spec.host, spec.epoch) == ("new", 7)
    runs.reopen(tmp_path, "digits-1", now)
    assert numbers(place) == [1, 2, 3]


def test_events_that_only_the_laptop_has_are_added_before_the_head_is_said_to_be_lost(tmp_path: Path) -> None:
    place = run_folder(tmp_path)
    with (place / "events.jsonl").open("a") as file:
        file.write('{"seq":3,"ti')
    step = run_step(9, seq=5)
    lines = [*(encode(saved(seq)) for seq in (2, 3, 4)), encode(step), encode(saved(7))]
    command = [sys.executable, "-m", "remote_agent.runs", "--folder", str(tmp_path), "--reopen", "digits-1"]
    text = "\n".join([encode(specification("new")), *lines]) + "\n"
    subprocess.run(command, input=text, capture_output=True, text=True, timeout=30, check=True)
    assert numbers(place) == [1, 2, 3, 4, 5, 6]
    last = protocol.decode_event((place / "events.jsonl").read_text().splitlines()[-1])
    assert isinstance(last, protocol.HeadLost)
    assert last.step == 9


def test_a_run_that_goes_on_where_it_was_lost_no_head(tmp_path: Path) -> None:
    place = run_folder(tmp_path)
    runs.reopen(tmp_path, "digits-1", specification())
    assert numbers(place) == [1, 2]


def test_a_run_that_is_not_under_way_can_not_be_told_anything(tmp_path: Path) -> None:
    place = run_folder(tmp_path)
    with pytest.raises(runs.NotRunning):
        runs.tell(tmp_path, "digits-1", protocol.RunCommand(command=ControlCommand.DRAIN, host="h"))
    assert not (place / protocol.CONTROL_FILE).exists()


def trains_on_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run under way whose newest step was made on the hosts a and b."""
    place = run_folder(tmp_path)
    parts = {"device": "cpu", "samples": 1, "compute_s": 1.0, "push_s": 0.0, "pull_s": 0.0, "wait_s": 0.0}
    workers = tuple(protocol.WorkerStep(worker=f"{host}/cpu", host=host, **parts) for host in "ab")  # type: ignore[arg-type]
    step = run_step(7, seq=3, workers=workers)
    with (place / "events.jsonl").open("a") as file:
        file.write(encode(step) + "\n")
    monkeypatch.setattr(runs, "find_named", lambda *_: object())


@pytest.mark.parametrize(
    ("drained", "told"),
    [
        (["a"], protocol.Told()),
        (["a", "a"], protocol.Told(again=True)),
        (["a", "b"], protocol.Told(stays=True)),
        (["b", "c"], protocol.Told(is_out=True)),
    ],
)
def test_who_is_told_to_leave_learns_whether_it_will(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drained: list[str], told: protocol.Told
) -> None:
    trains_on_two(tmp_path, monkeypatch)
    back = protocol.DeviceSpec(host="a", device="cpu", name="CPU")
    found = protocol.Told()
    for command in (
        protocol.RunCommand(command=ControlCommand.DRAIN, host="a"),
        protocol.RunCommand(command=ControlCommand.ADD, devices=(back,)),
        *(protocol.RunCommand(command=ControlCommand.DRAIN, host=host) for host in drained),
    ):
        found = runs.tell(tmp_path, "digits-1", command)
    assert found == told


@pytest.mark.parametrize(("drained", "is_in"), [((), True), (("a",), False), (("b",), True)])
def test_who_is_to_take_part_again_learns_whether_it_does_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drained: tuple[str, ...], is_in: bool
) -> None:
    trains_on_two(tmp_path, monkeypatch)
    for host in drained:
        runs.tell(tmp_path, "digits-1", protocol.RunCommand(command=ControlCommand.DRAIN, host=host))
    for host, expected in (("a", is_in), ("c", False)):
        device = protocol.DeviceSpec(host=host, device="cpu", name="CPU")
        told = runs.tell(tmp_path, "digits-1", protocol.RunCommand(command=ControlCommand.ADD, devices=(device,)))
        assert told == protocol.Told(is_in=expected)
