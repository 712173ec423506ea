"""What a coordinator does before its run begins, and when another follows one that was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from remote_agent.protocol import (
    CONTROL_FILE,
    CoordinatorLost,
    DeviceSpec,
    RunCommand,
    RunSpec,
    Step,
    decode_event,
    encode,
)
from remote_agent.states import ControlCommand
from remote_agent.training.coordinator import cluster, engine
from remote_agent.training.coordinator.control import Control
from remote_agent.training.coordinator.main import MAX_WITHOUT_PROGRESS, _Progress, _report_lost, attempt
from remote_agent.training.coordinator.request import Request
from remote_agent.training.data import record


def test_another_follows_while_steps_are_made_and_not_for_ever_where_none_is(tmp_path: Path) -> None:
    may_go_on = _Progress(tmp_path)
    slices = tmp_path / record.FILE
    for length in range(1, 10):
        slices.write_text("x" * length)
        assert may_go_on(), "a step was made since"
    assert [may_go_on() for _ in range(MAX_WITHOUT_PROGRESS)] == [True] * (MAX_WITHOUT_PROGRESS - 1) + [False]
    before_first_step = _Progress(tmp_path / "another")
    assert [before_first_step() for _ in range(MAX_WITHOUT_PROGRESS)] == [True] * (MAX_WITHOUT_PROGRESS - 1) + [False]


def test_that_the_coordinator_was_lost_is_an_event_before_the_next_one_begins(tmp_path: Path) -> None:
    _report_lost(tmp_path)  # what can't be written keeps no other one from following
    spec = RunSpec(
        run="r", job="j", cluster="c", host="mercer", ray_address="", node_address="", devices=(), server_host="mercer"
    )
    (tmp_path / "run.json").write_text(encode(spec))
    _report_lost(tmp_path)
    assert not (tmp_path / "events.jsonl").read_text(), "the run has not begun"
    step = Step(seq=1, time=1.0, step=7, loss=1.0, samples=1, seconds=1.0, bytes_pushed=0, bytes_pulled=0)
    (tmp_path / "events.jsonl").write_text(encode(step) + '\n{"seq":2,"ti')
    _report_lost(tmp_path)
    lost = decode_event((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert isinstance(lost, CoordinatorLost)
    assert (lost.seq, lost.host, lost.step) == (2, "mercer", 7)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which signals wait")
def test_a_run_that_is_stopped_while_torch_loads_ends_with_its_last_event(tmp_path: Path) -> None:
    """The signal comes before anything of ours could take it; the machine has no Ray that it could connect to."""
    (tmp_path / "run.json").write_text("{}")
    process = subprocess.Popen(
        [sys.executable, "-m", "remote_agent.coordinate", str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    wait_until_blocked(process.pid)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1, said
    assert "can't read run.json" in said, "it came as far as its own code, and was not killed"


def wait_until_blocked(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status").read_text()
        blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
        if blocked >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.005)
    raise AssertionError("SIGTERM is never blocked")


def test_a_host_that_is_drained_while_a_run_starts_is_drained_and_what_was_asked_before_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = DeviceSpec(host="mercer", device="cpu", name="CPU")
    about = {"run": "r", "job": "digits", "cluster": "c", "ray_address": "", "node_address": "", "devices": (device,)}
    control = tmp_path / CONTROL_FILE

    def tell(host: str) -> None:
        with control.open("a") as file:
            file.write(encode(RunCommand(command=ControlCommand.DRAIN, host=host)) + "\n")

    asked: list[Request] = []
    tell("before")
    spec = RunSpec(**about, host="mercer", server_host="mercer", commands=control.stat().st_size)
    (tmp_path / "run.json").write_text(encode(spec))
    tell("meanwhile")
    monkeypatch.setattr(cluster, "connect", lambda *_: None)
    monkeypatch.setattr(cluster, "disconnect", lambda: None)
    monkeypatch.setattr(engine, "run", lambda request, *_: asked.append(request))
    attempt(tmp_path, threading.Event())
    assert [command.host for command in Control(control, asked[0].commands).poll()] == ["meanwhile"]
