"""Devices of one computer are timed one after the other, and all look at the job at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from remote_agent.protocol import DeviceSpec
from remote_agent.training.coordinator.plan.placement import Node, Placement
from remote_agent.training.coordinator.processes.measure import Candidate, measure
from remote_agent.training.shared import rpc
from remote_agent.training.shared.dataplane import Usage
from remote_agent.training.shared.messages import Measured, WorkerReady


class Device:
    """A worker's actor; a call of it is its answer and what was called."""

    def __init__(self, name: str) -> None:
        self._name, self.given = name, dict[str, tuple[Any, ...]]()

    def call(self, method: str, *arguments: Any) -> rpc.Ref[Any]:
        self.given[method] = arguments
        points = ((2, 0.1), (4, 0.2))
        answer = Measured(points=points, usage=Usage()) if method == "check" else None
        return rpc.Ref((f"{method} {self._name}", answer))


def test_slices_are_timed_alone_on_a_computer_and_checks_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[list[str]] = []

    def first_ready(refs: Sequence[rpc.Ref[Any]], deadline_s: float) -> int:
        del deadline_s
        at_once.append([ref.raw[0] for ref in refs])
        return len(refs) - 1

    monkeypatch.setattr(rpc, "first_ready", first_ready)
    monkeypatch.setattr(rpc, "get", lambda ref, _: ref.raw[1])
    candidates, devices = [], [Device(name) for name in "abc"]
    for device, name, machine in zip(devices, "abc", ("one", "one", "two"), strict=True):
        node = Node(host=name, selector=("host", name), cpus=2, gpus=0)
        seat = Placement(worker=name, spec=DeviceSpec(host=name, device="cpu", name=""), node=node, threads=1)
        opened = WorkerReady(machine=machine, cores=2, device="cpu")
        candidates.append(Candidate(seat, cast("rpc.Actor", device), opened))
    measured = measure(candidates, 12, 0.5, 10.0)
    assert len(measured.profiles) == 3
    assert at_once[:3] == [["measure a", "measure c"], ["measure a"], ["measure b"]]
    assert at_once[3] == ["check a", "check b", "check c"]
    assert devices[0].given == {"measure": ((2, 4), 0.5), "check": (False,), "ping": ()}
    measure(candidates, 12, 0.5, 10.0, again=True)
    assert devices[0].given == {"measure": ((2, 4), 0.0), "check": (True,), "ping": ()}
