"""The session says what is under way for as long as any of it is."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from hetero_tui.errors import RunError
from hetero_tui.inventory import Host, Inventory
from hetero_tui.session import Session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session on this computer, for a cluster that is not there."""
    inventory = Inventory(cluster=f"none-{secrets.token_hex(4)}", hosts=(Host(name="laptop", connection="local"),))
    return Session(inventory, tmp_path / "inventory.yaml", ledger_folder=tmp_path)


async def test_a_stop_or_a_drain_that_ends_first_leaves_the_session_busy_with_the_rest(session: Session) -> None:
    async with session:
        async with session._exclusively("starting"):
            with pytest.raises(RunError):
                await session.stop_run("text-1")
            assert session.busy == "starting"
            with pytest.raises(RunError):
                await session.drain("laptop")
            assert session.busy == "starting"
        assert session.busy == ""


async def test_an_operation_that_ends_before_a_stop_that_goes_on_leaves_the_session_busy(session: Session) -> None:
    async with session:
        with session._working("stopping the run"):
            assert session.busy == "stopping the run"
            async with session._exclusively("stopping"):
                assert session.busy == "stopping", "the teardown is what no key may begin a second time"
            assert session.busy == "stopping the run"
        assert session.busy == ""
