"""State that can't be fetched from the shards is blamed on a host whose shard does not answer, not on any other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from remote_agent.training.coordinator import loop
from remote_agent.training.coordinator.session import Session
from remote_agent.training.errors import ServerGone
from remote_agent.training.shared import rpc

SECONDS = {"mercer": 0.0, "crosby": 100.0}
"""Until each host's shard answers."""


def shard(host: str) -> Any:
    return SimpleNamespace(host=host, actor=SimpleNamespace(call=lambda method: host))


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
