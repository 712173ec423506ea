"""What a user is told who asks a run to go on without a host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hetero_tui.runs import membership
from remote_agent import protocol


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (protocol.Told(), "text-1 is told to go on without nas"),
        (protocol.Told(stays=True), "nas leaves when another one takes part"),
        (protocol.Told(is_out=True), "no worker of nas trains in text-1 now"),
    ],
)
async def test_a_drain_says_whether_the_host_leaves(
    monkeypatch: pytest.MonkeyPatch, told: protocol.Told, said: str
) -> None:
    async def under_way(*_: Any) -> tuple[str, Any]:
        return "mercer", SimpleNamespace(id="text-1")

    async def tell(*_: Any) -> protocol.Told:
        return told

    monkeypatch.setattr(membership, "_under_way", under_way)
    monkeypatch.setattr(membership, "_tell", tell)
    asked = await membership.drain("lab", {"mercer": None}, "nas")  # type: ignore[dict-item]
    assert asked.run == "text-1"
    assert said in asked.said
