"""Keys ask the session for operations; its errors, and ours, are shown, and the app goes on."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import NoReturn

import pytest
from textual.events import Paste
from textual.widgets import Button, Input
from textual.widgets._toast import Toast

from hetero_tui import events as ev
from hetero_tui.errors import ClusterError
from hetero_tui.events import HostState
from hetero_tui.fold import apply
from hetero_tui.ui.app import HeteroApp
from hetero_tui.ui.keys import QUIT_FOR_GOOD
from hetero_tui.ui.screens.main import MainScreen
from hetero_tui.ui.screens.questions import HostKeyScreen
from hetero_tui.ui.widgets.lines import Lines
from remote_agent.states import RunState
from tests.ui.looking import dialog_text, resize, seen, settle, show, text_of, toasts, type_ahead


def changed(scenarios, host: str, state: HostState) -> ev.HostChanged:
    return ev.HostChanged(time=scenarios.NOW, host=host, state=state)


async def test_on_start_the_asked_operations_follow_one_another_until_one_fails(scenarios, open_app) -> None:
    for failure, asked in ((None, 3), (scenarios.refused(), 1)):
        app = open_app(scenarios.fresh(), on_start=("probe", "up", "train"), job="digits", settings={"seed": "1"},
                       session={"failure": failure})  # fmt: skip
        async with app.run_test() as pilot:
            while not app.intents.asked:  # after the first frame
                await pilot.pause()
            await settle(app, pilot)
            assert app.intents.asked == [("probe",), ("up",), ("train", "digits", {"seed": "1"})][:asked]


async def test_keys_ask_for_operations_and_one_that_makes_no_sense_now_says_why(scenarios, open_app) -> None:
    app = open_app(scenarios.probed())
    async with app.run_test() as pilot:
        await settle(app, pilot, "p", "u")
        assert app.intents.asked == [("probe",), ("up",)]
        app.intents.asked.clear()
        show(app, scenarios.up())
        for key, reason in (("s", "No run is going on"), ("k", "No machine offers"), ("u", "up on every machine")):
            await pilot.press(key)
            assert reason in toasts(app)[-1]
    empty = open_app(scenarios.empty())
    async with empty.run_test() as pilot:
        for key, reason in (
            ("enter", "no machine to look"),
            ("slash", "no machines to"),
            ("t", "no machines yet"),
        ):
            await pilot.press(key)
            assert reason in toasts(empty)[-1]
        assert isinstance(empty.screen, MainScreen)
    assert app.intents.asked == empty.intents.asked == []


async def test_stop_asks_first_and_is_about_the_run_that_it_names_alone(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("s", "enter")
        assert isinstance(app.screen, MainScreen), "its default answer lets the run go on"
        await pilot.press("s", "right")
        state = app.intents.state
        show(app, replace(state, run=replace(state.run, state=RunState.STOPPED)))
        await settle(app, pilot)
        assert [str(button.label) for button in app.screen.query("Button") if button.display] == ["[ Close ]"]
        await settle(app, pilot, "enter")
        show(app, state)
        await pilot.press("s")
        show(app, replace(state, run=replace(state.run, run="other-9")))
        await settle(app, pilot, "right", "enter")
        assert app.intents.asked == []
        await settle(app, pilot, "escape", "s", "right", "enter")
        assert app.intents.asked == [("stop", "other-9")]


async def test_a_new_host_key_is_shown_and_trusted_only_after_a_yes(scenarios, open_app) -> None:
    app = open_app(scenarios.probed())
    async with app.run_test() as pilot:
        await pilot.press("k")
        assert isinstance(app.screen, HostKeyScreen)
        assert scenarios.FINGERPRINT in dialog_text(app)
        await settle(app, pilot, "enter")
        assert app.intents.asked == []
        await settle(app, pilot, "k", "right", "enter")
        assert app.intents.asked == [("accept", "macbook", scenarios.FINGERPRINT), ("probe",)]
        state = app.intents.state
        hosts = tuple(
            replace(host, offered_by="gate (on the way)") if host.offered_key else host for host in state.hosts
        )
        show(app, replace(state, hosts=hosts))
        await pilot.press("k")
        assert "gate (on the way), for macbook, was never seen before" in dialog_text(app)


async def test_an_error_is_a_toast_and_one_line_and_a_bug_is_logged_and_the_app_goes_on(
    scenarios, open_app, caplog
) -> None:
    error = scenarios.refused("[b]mercer[/] does not answer")
    app = open_app(scenarios.probed(), session={"failure": error})
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot, "u")
        said = "up: [b]mercer[/] does not answer -> check its cable"
        assert toasts(app) == [said]
        assert text_of(app, "events").count(said) == 1
        app.intents.failure = other = scenarios.refused("nas is full")
        told = ev.Notice(time=scenarios.NOW, level=ev.Level.BAD, text=str(other))
        show(app, apply(app.intents.state, told))
        await settle(app, pilot, "u")
        assert text_of(app, "events").count(str(other)) == 1, "the session has told it"
        app.intents.failure = ZeroDivisionError("oh")
        await settle(app, pilot, "u")
        assert "a bug in hetero-tui while up: ZeroDivisionError: oh" in text_of(app, "events")
        assert "ZeroDivisionError" in caplog.text
        app.intents.failure = None
        await settle(app, pilot, "p")
        assert app.intents.asked[-1] == ("probe",)


async def test_what_can_not_be_read_or_drawn_does_not_end_the_app(scenarios, open_app, caplog) -> None:
    def unreadable() -> NoReturn:
        raise ClusterError("/home/me/ledger.jsonl can't be read: permission denied", step="ledger")

    app = open_app(scenarios.training())
    app.intents.teardown_preview = unreadable
    async with app.run_test() as pilot:
        await settle(app, pilot, "D")
        assert isinstance(app.screen, MainScreen)
        assert "permission denied" in toasts(app)[0]
        state = scenarios.up()
        app.intents.state = None
        app.redraw()
        assert "while drawing" in caplog.text
        app.intents.state = state
        await settle(app, pilot)
        assert "text-7f3" not in text_of(app, "status")


async def test_a_burst_of_changes_is_drawn_at_most_twice_a_second(scenarios, open_app, monkeypatch) -> None:
    app = open_app(scenarios.up())
    drawn = []
    async with app.run_test() as pilot:
        began = time.monotonic()
        draw = app.main.draw
        monkeypatch.setattr(app.main, "draw", lambda *given: (drawn.append(1), draw(*given)))
        for _ in range(200):
            app.intents.change(apply(app.intents.state, changed(scenarios, "nas", HostState.STOPPING)))
            await asyncio.sleep(0.004)
        await pilot.pause(0.6)
        assert 2 <= len(drawn) <= 2 * (time.monotonic() - began) + 1
        assert "stopping" in text_of(app, "rows")


async def test_the_demo_has_a_key_of_its_own_that_turns_chaos_on_and_off(scenarios, open_app) -> None:
    pressed: list[str] = []

    async def toggle() -> None:
        pressed.append("x")

    for options, offered in (({"quit_key": QUIT_FOR_GOOD, "chaos": toggle}, True), ({}, False)):
        app = open_app(scenarios.training(), **options)
        async with app.run_test(size=(80, 24)) as pilot:
            assert ("x break machines" in text_of(app, "keys")) is offered
            await settle(app, pilot, "x", "question_mark")
            assert ("break a machine every few seconds" in dialog_text(app)) is offered
            await pilot.press("escape", "q")
        assert (app.farewell == "") is offered, "of the demo nothing goes on"
    assert pressed == ["x"]


# --- Text, sizes and colours -----------------------------------------------------------------------------------------


async def test_control_characters_and_markup_of_a_host_are_shown_as_text(scenarios, open_app) -> None:
    failed = ev.HostChanged(time=scenarios.NOW, host="nas", state=HostState.FAILED, detail="[red]a\x1b[2Jb[/red]")
    app = open_app(apply(scenarios.fresh(), failed))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("end", "enter")
        assert "[red]ab[/red]" in dialog_text(app)
        assert "[red]ab[/red]" in text_of(app, "events")


async def test_the_terminal_may_have_any_size_and_change_it_at_any_time(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(5, 50)) as pilot:
        for width, height in ((1, 1), (33, 12), (40, 10), (13, 24), (300, 90), (20, 5)):
            await pilot.resize_terminal(width, height)
            await pilot.press("question_mark", "escape")
            if width > 1:
                assert [line.cell_len <= width for line in app.main.query_one("#status", Lines).lines] == [True]
        assert toasts(app) == []


async def test_what_is_said_lies_over_no_button_of_a_dialog(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(60, 15), notifications=True) as pilot:
        for size in ((60, 15), (80, 24)):
            await resize(app, pilot, *size)
            await pilot.press("t")
            assert len(toasts(app)) == 1
            await settle(app, pilot, "D")
            assert toasts(app) == [], "what an earlier key was refused for"
            app.notify("Copied all findings, and what else there is to say in a few words more.")
            await settle(app, pilot)
            said = app.screen.query_one(Toast).region
            assert said.area, "it is seen"
            assert not any(said.overlaps(button.region) for button in app.screen.query(Button))
            app.clear_notifications()
            await pilot.press("escape")


async def test_without_colour_every_state_still_has_its_word_and_glyph(scenarios, open_app, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = HeteroApp(scenarios.FixedIntents(scenarios.training()), on_start=(), now=lambda: scenarios.NOW)
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.no_color
        assert "◐ slow ×0.6" in text_of(app, "rows")
        assert "○ unreachable 2 min" in text_of(app, "rows")


async def test_a_light_terminal_gets_the_light_colours_and_the_palette_can_change_them(
    scenarios, open_app, monkeypatch
) -> None:
    monkeypatch.setenv("COLORFGBG", "0;15")
    app = HeteroApp(scenarios.FixedIntents(scenarios.up()), on_start=(), now=lambda: scenarios.NOW)
    async with app.run_test() as pilot:
        assert app.theme == "hetero-light"
        app.action_colours()
        await pilot.pause()
        assert app.theme == "hetero-ansi"


# --- Keys that come faster than they are looked at -------------------------------------------------------------------


@pytest.mark.parametrize("key", ["colon", "slash", "question_mark"])
async def test_what_is_typed_after_a_key_that_asks_is_no_command(key, scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        type_ahead(app, key, "u", "p")
        await settle(app, pilot)
        assert app.intents.asked == []


async def test_keys_that_come_early_or_late_are_for_the_field_that_they_were_typed_for(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        type_ahead(app, "t", "tab", *"siz", "backspace", *"ed", "home", "x", "delete", "equals_sign")
        await settle(app, pilot)
        fields = [app.screen.query_one(name, Input).value for name in ("#job", "#settings")]
        assert fields == ["digits", "x=ied"] or fields == ["digits", "xied"]
        await pilot.press("escape", "t")
        type_ahead(app, "enter", "2")
        await settle(app, pilot)
        assert [asked for asked in app.intents.asked if asked[0] == "train"] == [("train", "digits", {})]


async def test_pasted_text_reaches_a_field_without_what_a_terminal_would_obey(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash")
        app.post_message(Paste("\x1b[31mfast\x1b[2J\x07\thalf\u202e\r\nmore"))
        await settle(app, pilot)
        assert app.main.pane.table.filter == "fast half"
        await pilot.press("shift+home", "ctrl+c")
        assert (app.clipboard, app._exit) == ("fast half", False), "selected text is copied by the key that leaves"
        assert "fast half" in seen(app)
