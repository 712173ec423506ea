"""An error that no thread beside the run expects: the run neither waits for that thread nor goes on without it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from remote_agent.protocol import DeviceSpec
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.background import Background
from remote_agent.training.coordinator.plan.placement import Node
from remote_agent.training.coordinator.processes import joining
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.processes.joining import Joining
from remote_agent.training.errors import PlacementError
from remote_agent.training.shared import rpc
from remote_agent.training.shared.optimizer_options import OptimizerOptions

WAIT_S = 20.0


class Silent:
    """An actor whose answers are never looked at."""

    def call_in(self, group: str, name: str) -> object:
        return object()


class Opens:
    """Starts workers, all of which come up."""

    def __init__(self) -> None:
        self.started: list[object] = []
        self.ended: list[object] = []

    def start(self, seat: object) -> tuple[object, object]:
        self.started.append(object())
        return self.started[-1], None

    def opened(self, *_: object) -> None:
        pass

    def end(self, actor: object) -> None:
        self.ended.append(actor)

    def kill(self) -> None:
        pass


def rely_on(heartbeat: Heartbeat, actor: Any) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        heartbeat.wait(0.05)
        heartbeat.of(actor)


def fails(*_: Any, **__: Any) -> Any:
    raise ValueError("no measurement")


def test_what_work_beside_the_run_fails_of_is_raised_where_it_is_relied_on() -> None:
    work = Background("something", fails)
    work.check()
    work.start()
    work.join(WAIT_S)
    with pytest.raises(RuntimeError, match="something ended: ValueError"):
        work.check()


def test_a_heartbeat_that_ended_is_not_taken_for_one_that_hears_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "wait_all", fails)
    actor: Any = Silent()
    with Heartbeat() as heartbeat:
        heartbeat.watch([actor])
        with pytest.raises(RuntimeError, match="heartbeat ended"):
            rely_on(heartbeat, actor)


def test_a_worker_that_fails_unexpectedly_on_its_way_back_has_failed_and_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining, "measure", fails)
    node = Node(host="a", selector=("host", "a"), cpus=1, gpus=0)
    monkeypatch.setattr(joining.placement, "living_nodes", lambda: [node])
    workers: Any = Opens()
    options = OptimizerOptions(kind="SGD", groups=())
    with Joining(workers, None, buffers=(), reference=None, config=TrainingConfig(), options=options) as coming:
        future = coming.new(DeviceSpec(host="a", device="cpu", name="test"))
        failed = future.exception(WAIT_S)
    assert isinstance(failed, PlacementError)
    assert "no measurement" in failed.cause
    assert workers.ended == workers.started
