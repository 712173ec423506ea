"""State that can't be fetched from the shards is blamed on a host whose shard does not answer, not on any other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from remote_agent.training.coordinator import loop
from remote_agent.training.coordinator.processes.heartbeat import Beat, Heartbeat
from remote_agent.training.coordinator.recovery import shard_snapshots
from remote_agent.training.coordinator.session import Session
from remote_agent.training.errors import ServerGone
from remote_agent.training.shared import rpc

SECONDS = {"mercer": 0.0, "crosby": 100.0}
"""Until each host's shard answers."""


class Actor:
    """An actor whose answer is its host."""

    def __init__(self, host: str) -> None:
        self._host = host

    def call(self, *_: object) -> str:
        return self._host


def shard(host: str) -> Any:
    return SimpleNamespace(host=host, actor=Actor(host))


@pytest.mark.parametrize("error", [rpc.exceptions.ActorUnavailableError("", None), rpc.Timeout("late")])
def test_the_host_that_does_not_answer_is_named_whatever_the_error_was(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def get(host: str, seconds: float) -> None:
        if SECONDS[host] > seconds:
            raise rpc.Timeout("late")

    monkeypatch.setattr(rpc, "get", get)
    session = cast("Session", SimpleNamespace(servers=[shard(host) for host in SECONDS]))
    lost = loop._not_fetched(session, None, error)
    assert isinstance(lost, ServerGone)
    assert (lost.host, lost.known) == ("crosby", ("crosby",))


@pytest.mark.parametrize(("silent_s", "silent_workers"), [(1.0, ("crosby",)), (4.0, ())])
def test_a_shard_that_falls_silent_as_its_state_is_kept_is_lost_as_in_a_step(
    monkeypatch: pytest.MonkeyPatch, silent_s: float, silent_workers: tuple[str, ...]
) -> None:
    """Ray said so after 31 s, where only large packets were lost on its link."""
    servers = [shard(host) for host in SECONDS]
    workers = [SimpleNamespace(host=host, actor=host) for host in silent_workers]
    session = cast("Session", SimpleNamespace(servers=servers, members=workers, away=[]))
    beats = {servers[1].actor: Beat(silent_s=silent_s, patience_s=0.9)}
    beats |= {worker.actor: Beat(silent_s=silent_s, patience_s=0.9) for worker in workers}
    heartbeat = cast("Heartbeat", SimpleNamespace(of=lambda actor: beats.get(actor, Beat())))
    monkeypatch.setattr(rpc, "wait_all", lambda calls, seconds: {0})
    with pytest.raises(ServerGone) as caught:
        shard_snapshots.of_shards(session, heartbeat)
    assert caught.value.host == "crosby"


def test_the_state_of_shards_that_are_late_and_answer_pings_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    session = cast("Session", SimpleNamespace(servers=[shard("mercer")], members=[], away=[], shapes={}))
    heartbeat = cast("Heartbeat", SimpleNamespace(of=lambda actor: Beat()))
    ready, got = [set[int](), set[int](), {0}], list[object]()
    monkeypatch.setattr(rpc, "wait_all", lambda calls, seconds: ready.pop(0))
    monkeypatch.setattr(rpc, "get_all", lambda calls, seconds: got.append(calls))
    shard_snapshots.of_shards(session, heartbeat)
    assert not ready
    assert got == [["mercer"]]
