"""What a user is told who asks a run to go on without a host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hetero_tui.runs import membership
from remote_agent import protocol


async def test_a_host_leaves_and_joins_all_runs_that_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def under_way(*_: Any) -> tuple[tuple[str, Any], ...]:
        return (("mercer", SimpleNamespace(id="text-1")), ("mercer", SimpleNamespace(id="text-2")))

    async def tell(_: Any, __: Any, run: str, ___: Any) -> protocol.Told:
        return protocol.Told(is_in=run == "text-2")

    monkeypatch.setattr(membership, "_under_way", under_way)
    monkeypatch.setattr(membership, "_tell", tell)
    monkeypatch.setattr(membership, "plan_devices", lambda *_: ())
    asked = await membership.drain("lab", {"mercer": None}, "nas")  # type: ignore[dict-item]
    assert asked.run == "text-1, text-2"
    assert asked.said == "text-1 is told to go on without nas; text-2 is told to go on without nas"
    fleet: Any = SimpleNamespace(cluster="lab", transports={"mercer": None}, members={"nas"})
    asked = await membership.undrain(fleet, "nas")
    assert asked.said == (
        "nas takes part in text-1 again as soon as its worker is started;"
        " nas takes part in text-2 already, and was not drained: nothing changes"
    )
