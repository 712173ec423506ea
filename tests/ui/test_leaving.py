"""A teardown and leaving: both ask where something is lost, and say what came of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hetero_tui import events as ev
from hetero_tui.errors import ClusterError
from hetero_tui.events import HostState
from hetero_tui.fold import apply
from hetero_tui.ui.keys import QUIT_FOR_GOOD
from hetero_tui.ui.screens.main import MainScreen
from hetero_tui.ui.screens.teardown import TeardownScreen
from tests.ui.looking import dialog_text, settle, show, toasts


async def test_teardown_asks_first_shows_each_host_and_then_what_is_left(scenarios, open_app) -> None:
    gate = asyncio.Event()
    app = open_app(scenarios.training(), session={"gate": gate})
    previews = [scenarios.PREVIEW]
    app.intents.teardown_preview = lambda: previews[-1]
    async with app.run_test() as pilot:
        await pilot.press("D", "enter")
        assert isinstance(app.screen, MainScreen), "its default answer changes nothing"
        app.intents.busy = "stopping"
        await pilot.press("D")
        assert "teardown is under way" in toasts(app)[-1]
        app.intents.busy = ""
        await pilot.press("D")
        previews.append(replace(scenarios.PREVIEW, running="text-7f3 at step 1,400"))
        app.redraw()
        assert "step 1,400" in dialog_text(app), "it says how things are, and not how they were"
        assert app.intents.asked == []
        await pilot.press("right", "enter")
        stopping = ev.HostChanged(time=scenarios.NOW, host="mercer", state=HostState.STOPPING)
        show(app, apply(app.intents.state, stopping))
        assert "mercer ◔ stopping" in dialog_text(app)
        gate.set()
        await settle(app, pilot)
        assert "mercer: 5 processes" in dialog_text(app)
        assert "✕ nas: host, not reached" in dialog_text(app)
        await pilot.press("escape")
        assert isinstance(app.screen, MainScreen)
        gate.clear()
        await pilot.press("D", "right", "enter", "escape")
        assert isinstance(app.screen, MainScreen)
        gate.set()
        await settle(app, pilot)
        assert toasts(app) == ["Torn down, but 1 thing is left: see hetero-tui down."], "a hidden one goes on"
        app.intents.failure = ClusterError("the ledger is locked", step="down")
        await settle(app, pilot, "D", "right", "enter")
        assert isinstance(app.screen, TeardownScreen)
        assert "the ledger is locked" in dialog_text(app)


async def test_leaving_asks_first_where_it_cuts_off_what_changes_machines(scenarios, open_app) -> None:
    app = open_app(scenarios.training(), session={"busy": "stopping"})
    async with app.run_test() as pilot:
        for busy in ("starting", "installing", "stopping"):
            app.intents.busy = busy
            await pilot.press("q")
            assert f"interrupted while {busy}: `hetero-tui " in dialog_text(app)
            await pilot.press("enter")
            assert isinstance(app.screen, MainScreen)
        await pilot.press("q")
        app.intents.busy = ""
        app.redraw()
        assert dialog_text(app) == "What was under way is done."
        await pilot.press("enter")
        app.intents.busy = "stopping"
        await pilot.press("q", "q")
    assert app.farewell.startswith("Interrupted while stopping: `hetero-tui ")


@pytest.mark.parametrize(("busy", "options"), [("probing", {}), ("starting", {"quit_key": QUIT_FOR_GOOD})])
async def test_leaving_does_not_ask_where_nothing_is_left_half_done(busy, options, scenarios, open_app) -> None:
    app = open_app(scenarios.training(), session={"busy": busy}, **options)
    async with app.run_test() as pilot:
        await pilot.press("q")
        assert app._exit
    assert app.farewell.startswith("text-7f3 goes on without this screen") is not options


async def test_the_keys_that_end_a_program_leave_from_anywhere(scenarios, open_app, monkeypatch) -> None:
    app, left = open_app(scenarios.training()), []
    monkeypatch.setattr(app, "exit", lambda *_, **__: left.append(1))
    async with app.run_test() as pilot:
        for keys in (("question_mark", "ctrl+c"), ("D", "ctrl+q"), ("colon", "ctrl+c"), ("slash", "q", "ctrl+q")):
            await pilot.press(*keys, "escape", "escape")
        show(app, scenarios.up())
        await pilot.press("t", "tab", "ctrl+c")
        assert len(left) == 5
