"""Devices of one computer are timed one after the other; one of them audits the job, and all others repeat that."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from remote_agent.protocol import DeviceSpec
from remote_agent.training.coordinator.plan.placement import Node, Placement
from remote_agent.training.coordinator.processes.measure import Candidate, measure
from remote_agent.training.shared import rpc
from remote_agent.training.shared.audit import NO_NOISE, Audit, Cause, Finding, Sketch
from remote_agent.training.shared.dataplane import Usage
from remote_agent.training.shared.messages import AuditTask, Measured, WorkerReady

SKETCH = Sketch(12, 1.0, 12, 12, np.ones((3, 64)))
AUDIT = Audit(np.arange(12), SKETCH, NO_NOISE, moved=frozenset({"ema"}))


class Device:
    """A worker's actor; a call of it is its answer and what was called."""

    def __init__(self, name: str) -> None:
        self._name, self.given = name, dict[str, tuple[Any, ...]]()
        self.alone, self.sketch = AUDIT, SKETCH

    def call(self, method: str, *arguments: Any) -> rpc.Ref[Any]:
        self.given[method] = arguments
        answer: Any = None
        if method == "measure":
            answer = Measured(points=((2, 0.1), (4, 0.2)), usage=Usage())
        if method == "audit":
            answer = self.alone if arguments[0].alone else self.sketch
        return rpc.Ref((f"{method} {self._name}", answer))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The calls that are waited for together; the last one of them is answered first."""
    found: list[list[str]] = []

    def first_ready(refs: Sequence[rpc.Ref[Any]], deadline_s: float) -> int:
        del deadline_s
        found.append([ref.raw[0] for ref in refs])
        return len(refs) - 1

    monkeypatch.setattr(rpc, "first_ready", first_ready)
    monkeypatch.setattr(rpc, "get", lambda ref, _: ref.raw[1])
    return found


@pytest.fixture
def devices() -> list[Device]:
    return [Device(name) for name in "abc"]


@pytest.fixture
def candidates(devices: list[Device]) -> list[Candidate]:
    """The first two are of one computer."""
    found = []
    for device, name, machine in zip(devices, "abc", ("one", "one", "two"), strict=True):
        node = Node(host=name, selector=("host", name), cpus=2, gpus=0)
        seat = Placement(worker=name, spec=DeviceSpec(host=name, device="cpu", name=""), node=node, threads=1)
        opened = WorkerReady(machine=machine, cores=2, device="cpu")
        found.append(Candidate(seat, cast("rpc.Actor", device), opened))
    return found


def test_slices_are_timed_alone_on_a_computer_and_the_audit_is_repeated_by_all_at_once(
    at_once: list[list[str]], devices: list[Device], candidates: list[Candidate]
) -> None:
    measured = measure(candidates, 12, 0.5, 10.0)
    assert len(measured.profiles) == 3
    assert at_once[:3] == [["measure a", "measure c"], ["measure a"], ["measure b"]]
    assert at_once[3:] == [["audit a"], ["audit b", "audit c"], ["audit b"]]
    assert devices[0].given == {"measure": ((2, 4), 0.5), "audit": (AuditTask(alone=True),), "ping": ()}
    assert measured.audit == dataclasses.replace(AUDIT, place="a")
    assert measured.usage.buffers == {"ema"}
    measure(candidates, 12, 0.5, 10.0, again=True)
    assert devices[0].given["measure"] == ((2, 4), 0.0)


def test_all_workers_repeat_the_audit_of_the_head(
    at_once: list[list[str]], devices: list[Device], candidates: list[Candidate]
) -> None:
    found = dataclasses.replace(AUDIT, place="head", evaluating=True)
    assert measure(candidates, 12, 0.5, 10.0, audit=found).audit == found
    assert at_once[3] == ["audit a", "audit b", "audit c"]
    (task,) = devices[0].given["audit"]
    assert (task.indices.tolist(), task.evaluating, task.alone) == (list(range(12)), True, False)


def test_a_worker_that_computes_other_numbers_is_found(
    at_once: list[list[str]], devices: list[Device], candidates: list[Candidate]
) -> None:
    del at_once
    devices[1].sketch = dataclasses.replace(SKETCH, gradient=0.5 * SKETCH.gradient)
    found = measure(candidates, 12, 0.5, 10.0).audit
    assert found is not None
    assert found.finding is not None
    assert (found.finding.cause, found.finding.places) == (Cause.MACHINES_DIFFER, ("b", "a"))


def test_what_one_worker_finds_alone_is_not_asked_of_the_others(
    at_once: list[list[str]], devices: list[Device], candidates: list[Candidate]
) -> None:
    devices[0].alone = dataclasses.replace(AUDIT, finding=Finding(Cause.CALLS_DO_NOT_REPEAT))
    found = measure(candidates, 12, 0.5, 10.0).audit
    assert found is not None
    assert found.finding == Finding(Cause.CALLS_DO_NOT_REPEAT)
    assert at_once[3:] == [["audit a"]]
