"""What the keys do, and what the screens do when the session fails, changes or is slow."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import NoReturn

import pytest
from textual.events import Key, Paste
from textual.widgets import Button, Input, Static
from textual.widgets._toast import Toast

from hetero_tui import events as ev
from hetero_tui.errors import ClusterError, InventoryError
from hetero_tui.events import ClusterState, HostState
from hetero_tui.fold import apply
from hetero_tui.intents import HostItem, TeardownReport
from hetero_tui.ui import cells
from hetero_tui.ui.app import HeteroApp
from hetero_tui.ui.keys import KEYS, QUIT, QUIT_FOR_GOOD, shown_keys
from hetero_tui.ui.screens.help import HelpScreen, HostScreen
from hetero_tui.ui.screens.main import MainScreen
from hetero_tui.ui.screens.questions import HostKeyScreen
from hetero_tui.ui.screens.teardown import TeardownScreen, outcome
from hetero_tui.ui.screens.train import TrainScreen
from hetero_tui.ui.widgets.lines import EventLog, Lines


def text_of(app, name: str) -> str:
    return "\n".join(line.plain for line in app.main.query_one(f"#{name}", Lines).lines)


def dialog_text(app) -> str:
    return str(app.screen.query_one("#text", Static).content)


def toasts(app) -> list[str]:
    return [notification.message for notification in app._notifications]


async def test_on_start_the_asked_operations_follow_one_another_after_the_first_frame(scenarios, open_app) -> None:
    app = open_app(scenarios.fresh(), on_start=("probe", "up", "train"), job="digits", settings={"seed": "1"})
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.intents.asked == [("probe",), ("up",), ("train", "digits", {"seed": "1"})]


async def test_what_follows_a_failed_operation_on_start_is_not_begun(scenarios, open_app) -> None:
    app = open_app(scenarios.fresh(), on_start=("up", "train"), session={"failure": scenarios.refused()})
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.intents.asked == [("up",)]


@pytest.mark.parametrize(("key", "asked"), [("p", ("probe",)), ("u", ("up",))])
async def test_a_key_asks_the_session_for_its_operation(key, asked, scenarios, open_app) -> None:
    app = open_app(scenarios.probed())
    async with app.run_test() as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert app.intents.asked == [asked]


async def test_enter_in_the_train_dialog_trains_the_first_ready_job(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        await pilot.press("t")
        assert isinstance(app.screen, TrainScreen)
        await pilot.press("enter")
        await pilot.pause()
        assert app.intents.asked == [("train", "digits", {})]


async def test_the_train_dialog_goes_through_the_jobs_and_takes_settings(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        await pilot.press("t", "down", "tab", *"steps=9 --with 'my data'", "enter")
        await pilot.pause()
        assert app.intents.asked == [("train", "text", {"steps": "9"}, "my data")]


async def test_to_leave_the_train_dialog_does_not_take_the_order_back(scenarios, open_app) -> None:
    gate = asyncio.Event()
    app = open_app(
        scenarios.up(), session={"gate": gate, "failure": ClusterError("the ledger is locked", step="train")}
    )
    async with app.run_test() as pilot:
        await pilot.press("t", "enter", "escape")
        assert isinstance(app.screen, MainScreen)
        gate.set()
        await pilot.pause()
        assert "the ledger is locked" in app.view().notes[-1].text


async def test_a_setting_that_can_not_be_read_is_said_in_the_dialog_and_nothing_is_trained(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        await pilot.press("t", "tab", *"steps", "enter")
        assert "“steps” is not key=value" in str(app.screen.query_one("#mistake", Static).content)
        await pilot.press("escape")
        assert isinstance(app.screen, MainScreen)
        assert app.intents.asked == []


async def test_what_can_not_be_trained_is_said_in_the_dialog_and_nothing_is_started(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        await pilot.press("t", "end", "backspace", "enter")
        assert "did you mean 'digits'?" in str(app.screen.query_one("#mistake", Static).content)
        await pilot.press("s", "enter")
        await pilot.pause()
        assert app.intents.asked == [("train", "digits", {})]


async def test_before_the_first_step_stop_promises_neither_a_checkpoint_nor_that_there_is_none(
    scenarios, open_app
) -> None:
    app = open_app(scenarios.starting())
    async with app.run_test() as pilot:
        await pilot.press("s")
        assert "ends before its first step, or after that with a checkpoint" in " ".join(dialog_text(app).split())


async def test_stop_asks_first_and_its_default_answer_lets_the_run_go_on(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test() as pilot:
        await pilot.press("s", "enter")
        await pilot.pause()
        assert app.intents.asked == []
        await pilot.press("s")
        assert "ends after its step, now 1,204, with a checkpoint" in dialog_text(app)
        await pilot.press("right", "enter")
        await pilot.pause()
        assert app.intents.asked == [("stop", "text-7f3")]


async def test_resume_lets_a_run_that_ended_too_early_go_on_and_the_key_is_offered_then(scenarios, open_app) -> None:
    app = open_app(scenarios.failed())
    async with app.run_test(size=(120, 40)) as pilot:
        assert ("r", "resume", "resume") in shown_keys(app.intents.state, "")
        await pilot.press("r")
        await pilot.pause()
        assert app.intents.asked == [("resume", "text-7f3")]


@pytest.mark.parametrize(
    ("key", "state", "busy", "reason"),
    [
        ("s", "up", "", "No run is going on"),
        ("t", "training", "", "text-7f3 is still training"),
        ("r", "training", "", "text-7f3 is still training"),
        ("r", "finished", "", "is finished. Press t"),
        ("u", "up", "", "up on every machine already"),
        ("p", "probed", "probing", "Still probing"),
        ("k", "up", "", "No machine offers"),
        ("t", "empty", "", "has no machines yet"),
        ("D", "training", "stopping", "teardown is under way"),
        ("enter", "empty", "", "no machine to look at"),
        ("slash", "empty", "", "no machines to filter"),
    ],
)
async def test_a_key_that_makes_no_sense_now_says_why(key, state, busy, reason, scenarios, open_app) -> None:
    app = open_app(getattr(scenarios, state)(), session={"busy": busy})
    async with app.run_test() as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert [reason in toast for toast in toasts(app)] == [True]
        assert app.intents.asked == []
        assert isinstance(app.screen, MainScreen)


async def test_teardown_asks_first_and_its_default_answer_changes_nothing(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test() as pilot:
        await pilot.press("D")
        assert "text-7f3 at step 1,204" in dialog_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, MainScreen)
        assert app.intents.asked == []


async def test_a_teardown_says_that_it_ends_what_is_under_way(scenarios, open_app) -> None:
    app = open_app(scenarios.fresh(), session={"busy": "starting"})
    async with app.run_test() as pilot:
        await pilot.press("D")
        assert "Under way  starting, which ends first" in dialog_text(app)


async def test_teardown_shows_each_host_while_it_goes_on_and_then_what_is_left(scenarios, open_app) -> None:
    gate = asyncio.Event()
    app = open_app(scenarios.training(), session={"gate": gate})
    async with app.run_test() as pilot:
        await pilot.press("D", "right", "enter")
        app.intents.change(apply(app.intents.state, _changed(scenarios, "mercer", HostState.STOPPING)))
        app.redraw()
        assert "mercer   ◔ stopping" in dialog_text(app)
        gate.set()
        await pilot.pause()
        assert "mercer: 5 processes" in dialog_text(app)
        assert "✕ nas: host, not reached" in dialog_text(app)
        await pilot.press("escape")
        assert isinstance(app.screen, MainScreen)


async def test_a_hidden_teardown_goes_on_and_says_when_it_is_done(scenarios, open_app) -> None:
    gate = asyncio.Event()
    app = open_app(scenarios.training(), session={"gate": gate})
    async with app.run_test() as pilot:
        await pilot.press("D", "right", "enter", "escape")
        assert isinstance(app.screen, MainScreen)
        gate.set()
        await pilot.pause()
        assert toasts(app) == ["Torn down, but 1 thing is left: see hetero-tui down."]


async def test_a_teardown_that_fails_says_so_in_its_dialog(scenarios, open_app) -> None:
    app = open_app(scenarios.training(), session={"failure": ClusterError("the ledger is locked", step="down")})
    async with app.run_test() as pilot:
        await pilot.press("D", "right", "enter")
        await pilot.pause()
        assert isinstance(app.screen, TeardownScreen)
        assert "the ledger is locked" in dialog_text(app)


async def test_the_question_before_a_teardown_says_how_things_are_and_not_how_they_were(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    looks = iter(("text-7f3 at step 1,204", "text-7f3 at step 1,300"))
    app.intents.teardown_preview = lambda: replace(scenarios.PREVIEW, running=next(looks, "text-7f3 at step 1,400"))
    async with app.run_test() as pilot:
        await pilot.press("D")
        app.redraw()
        assert "step 1,400" in dialog_text(app)


@pytest.mark.parametrize("size", [(60, 15), (80, 24)])
async def test_what_is_said_lies_over_no_button_of_a_dialog(size, scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.press("t")
        assert toasts(app) == ["text-7f3 is still training. Press s to stop it first."]
        await pilot.press("D")
        await pilot.pause()
        assert toasts(app) == [], "what an earlier key was refused for"
        app.notify("Copied all findings, and what else there is to say in a few words more.")
        await pilot.pause()
        await pilot.pause()
        said = app.screen.query_one(Toast).region
        buttons = [button.region for button in app.screen.query(Button)]
        assert said.area, "it is seen"
        assert not any(said.overlaps(button) for button in buttons), (said, buttons)


async def test_a_record_that_can_not_be_read_is_said_and_does_not_end_the_app(scenarios, open_app) -> None:
    def unreadable() -> NoReturn:
        raise ClusterError("/home/me/ledger.jsonl can't be read: permission denied", step="ledger")

    app = open_app(scenarios.training())
    app.intents.teardown_preview = unreadable
    async with app.run_test() as pilot:
        await pilot.press("D")
        await pilot.pause()
        assert isinstance(app.screen, MainScreen)
        assert "permission denied" in toasts(app)[0]


async def test_a_new_host_key_is_shown_and_trusted_only_after_a_yes(scenarios, open_app) -> None:
    app = open_app(scenarios.probed())
    async with app.run_test() as pilot:
        await pilot.press("k")
        assert isinstance(app.screen, HostKeyScreen)
        assert scenarios.FINGERPRINT in dialog_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert app.intents.asked == []
        await pilot.press("k", "right", "enter")
        await pilot.pause()
        assert app.intents.asked == [("accept", "macbook", scenarios.FINGERPRINT), ("probe",)]


async def test_the_key_of_a_jump_host_is_not_shown_as_that_of_the_host_behind_it(scenarios, open_app) -> None:
    state = scenarios.probed()
    hosts = tuple(
        replace(host, offered_by="gate (on the way)") if host.offered_key is not None else host for host in state.hosts
    )
    app = open_app(replace(state, hosts=hosts))
    async with app.run_test() as pilot:
        await pilot.press("k")
        assert "gate (on the way), for macbook, was never seen before" in " ".join(dialog_text(app).split())


@pytest.mark.parametrize("closing", ["escape", "q"])
async def test_every_dialog_closes_with_escape_and_without_a_field_with_q(closing, scenarios, open_app) -> None:
    for state, key, kind in [
        ("training", "question_mark", HelpScreen),
        ("training", "enter", HostScreen),
        ("up", "t", TrainScreen),
        ("training", "D", TeardownScreen),
        ("probed", "k", HostKeyScreen),
    ]:
        app = open_app(getattr(scenarios, state)())
        async with app.run_test() as pilot:
            await pilot.press(key)
            assert isinstance(app.screen, kind)
            await pilot.press(closing)
            assert isinstance(app.screen, TrainScreen if closing == "q" and kind is TrainScreen else MainScreen)


@pytest.mark.parametrize(
    ("key", "opening"),
    [
        ("ctrl+c", ("question_mark",)),
        ("ctrl+q", ("D",)),
        ("ctrl+c", ("colon",)),
        ("ctrl+q", ("slash", "q")),
        ("ctrl+c", ("t", "tab")),
    ],
)
async def test_the_keys_that_end_a_program_leave_from_anywhere(opening, key, scenarios, open_app) -> None:
    app = open_app(scenarios.up() if opening[0] == "t" else scenarios.training())
    async with app.run_test() as pilot:
        await pilot.press(*opening)
        await pilot.press(key)
        assert app._exit


async def test_selected_text_is_copied_by_the_key_that_leaves_otherwise(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        await pilot.press("slash", *"fast", "shift+home", "ctrl+c")
        assert app.clipboard == "fast"
        assert toasts(app) == ["The selected text is copied; ctrl+q leaves."]
        assert not app._exit


async def test_an_error_of_the_session_is_a_toast_and_a_line_in_the_log(scenarios, open_app) -> None:
    app = open_app(scenarios.probed(), session={"failure": scenarios.refused("[b]mercer[/] does not answer")})
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("u")
        await pilot.pause()
        said = "up: [b]mercer[/] does not answer -> check its cable"
        assert toasts(app) == [said]
        assert said in text_of(app, "events")


async def test_a_bug_in_an_operation_is_shown_and_logged_and_the_app_goes_on(scenarios, open_app, caplog) -> None:
    app = open_app(scenarios.probed(), session={"failure": ZeroDivisionError("oh")})
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("u")
        await pilot.pause()
        assert "a bug in hetero-tui while up: ZeroDivisionError: oh" in text_of(app, "events")
        assert "ZeroDivisionError" in caplog.text
        app.intents.failure = None
        await pilot.press("p")
        await pilot.pause()
        assert app.intents.asked[-1] == ("probe",)


async def test_a_state_that_can_not_be_drawn_does_not_end_the_app(scenarios, open_app, caplog) -> None:
    app = open_app(scenarios.training())
    async with app.run_test() as pilot:
        app.intents.state = None
        app.redraw()
        assert "while drawing" in caplog.text
        app.intents.state = scenarios.up()
        app.redraw()
        await pilot.pause()
        assert "text-7f3" not in text_of(app, "status")


async def test_a_burst_of_changes_is_drawn_at_most_twice_a_second(scenarios, open_app, monkeypatch) -> None:
    app = open_app(scenarios.up())
    drawn = []
    async with app.run_test() as pilot:
        began = time.monotonic()
        draw = app.main.draw
        monkeypatch.setattr(app.main, "draw", lambda *given: (drawn.append(1), draw(*given)))
        for _ in range(300):
            app.intents.change(apply(app.intents.state, _changed(scenarios, "nas", HostState.STOPPING)))
            await asyncio.sleep(0.004)
        await pilot.pause(0.6)
        assert 2 <= len(drawn) <= 2 * (time.monotonic() - began) + 1
        assert "stopping" in text_of(app, "rows")


async def test_only_lines_that_changed_are_drawn_again(scenarios, open_app, monkeypatch) -> None:
    app = open_app(scenarios.many())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        refreshed = []
        rows = app.main.query_one("#rows", Lines)
        monkeypatch.setattr(rows, "refresh_line", refreshed.append)
        app.intents.change(apply(app.intents.state, _changed(scenarios, "node-07", HostState.STOPPING)))
        app.redraw()
        assert refreshed == [6]


async def test_the_cursor_stays_on_its_host_and_the_table_does_not_jump_while_it_changes(scenarios, open_app) -> None:
    app = open_app(scenarios.many())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("pagedown", "pagedown", "down")
        rows = app.main.hosts.rows
        marked, top = rows.marked, rows.scroll_offset.y
        assert top > 0
        app.intents.change(apply(app.intents.state, _changed(scenarios, "node-01", HostState.STOPPING)))
        app.redraw()
        await pilot.pause()
        assert (rows.marked, rows.scroll_offset.y) == (marked, top)
        await pilot.press("end")
        assert rows.marked == "node-50"
        assert any("node-50" in rows.render_line(y).text for y in range(rows.size.height))


async def test_the_filter_shows_what_matches_while_it_is_typed_and_escape_shows_all(scenarios, open_app) -> None:
    app = open_app(scenarios.many())
    async with app.run_test() as pilot:
        await pilot.press("slash", *"node-1")
        await pilot.pause()
        assert text_of(app, "rows").count("node-1") == len(app.main.hosts.rows.lines) == 10
        await pilot.press("enter", "down")
        assert not app.main.query(Input)
        assert app.main.hosts.rows.marked == "node-11"
        await pilot.press("escape")
        await pilot.pause()
        assert len(app.main.hosts.rows.lines) == 50
        assert app.main.hosts.rows.marked == "node-11"


async def test_keys_typed_into_the_filter_are_text_and_not_commands(scenarios, open_app) -> None:
    app = open_app(scenarios.many())
    async with app.run_test() as pilot:
        await pilot.press("slash", *"qDts")
        await pilot.pause()
        assert app.main.hosts.filter == "qDts"
        assert isinstance(app.screen, MainScreen)


async def test_every_command_is_in_the_palette_and_can_be_found_by_name(scenarios, open_app) -> None:
    app = open_app(scenarios.probed())
    async with app.run_test() as pilot:
        titles = {command.title.lower() for command in app.get_system_commands(app.screen)}
        assert {key.word for key in KEYS if key.action != "command_palette"} <= titles
        await pilot.press("colon", *"probe")
        await app.workers.wait_for_complete()
        await pilot.press("down", "enter", "enter")
        await pilot.pause()
        assert app.intents.asked == [("probe",)]


async def test_leaving_says_that_the_run_goes_on_and_how_to_come_back(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test() as pilot:
        await pilot.press("q")
    assert app.farewell == "text-7f3 goes on without this screen. Come back with: hetero-tui attach text-7f3"


async def test_leaving_the_demo_does_not_promise_that_anything_goes_on(scenarios, open_app) -> None:
    app = open_app(scenarios.training(), quit_key=QUIT_FOR_GOOD)
    async with app.run_test() as pilot:
        assert text_of(app, "keys").endswith("q quit")
        await pilot.press("q")
    assert app.farewell == ""


async def test_the_demo_has_a_key_of_its_own_that_turns_chaos_on_and_off(scenarios, open_app) -> None:
    pressed: list[str] = []

    async def toggle() -> None:
        pressed.append("x")

    app = open_app(scenarios.training(), quit_key=QUIT_FOR_GOOD, chaos=toggle)
    async with app.run_test(size=(80, 24)) as pilot:
        assert "x break machines" in text_of(app, "keys")
        await pilot.press("x")
        await pilot.pause()
        assert pressed == ["x"]
        await pilot.press("question_mark")
        assert "break a machine every few seconds" in dialog_text(app)
    app = open_app(scenarios.training())
    async with app.run_test() as pilot:
        assert "break machines" not in text_of(app, "keys")
        await pilot.press("x", "question_mark")
        assert "break a machine" not in dialog_text(app)


async def test_the_first_frame_does_not_wait_for_the_session_to_be_opened(scenarios) -> None:
    gate = asyncio.Event()
    intents = scenarios.FixedIntents(scenarios.fresh())

    async def opener():
        await gate.wait()
        return intents

    app = HeteroApp(opener, now=lambda: scenarios.NOW)
    async with app.run_test() as pilot:
        assert "opening" in text_of(app, "status")
        assert "demo" not in text_of(app, "keys"), "whether there are machines is not known yet"
        await pilot.press("u")
        assert toasts(app) == ["The inventory is still being read."]
        gate.set()
        await pilot.pause()
        assert "mercer" in text_of(app, "rows")
        assert intents.asked == [("probe",)]


async def test_an_inventory_with_mistakes_ends_the_app_with_its_error_and_exit_code() -> None:
    mistakes = InventoryError("inventory.yaml", ("line 3: hots: did you mean hosts?",))

    async def opener():
        raise mistakes

    app = HeteroApp(opener)
    async with app.run_test() as pilot:
        await pilot.pause()
    assert app.opening_error is mistakes
    assert app.return_code == 2


async def test_control_characters_and_markup_of_a_host_are_shown_as_text(scenarios, open_app) -> None:
    state = apply(
        scenarios.fresh(),
        ev.HostChanged(time=scenarios.NOW, host="nas", state=HostState.FAILED, detail="[red]a\x1b[2Jb[/red]"),
    )
    app = open_app(state)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("end", "enter")
        assert "[red]ab[/red]" in dialog_text(app)
        assert "[red]ab[/red]" in text_of(app, "events")


@pytest.mark.parametrize("size", [(5, 50), (300, 90)])
async def test_the_terminal_may_have_any_size_and_change_it_at_any_time(size, scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    sizes = [(120, 40), (1, 1), (33, 12), (40, 10), (60, 20), (20, 5), (13, 24), (80, 24), size]
    async with app.run_test(size=size) as pilot:
        for width, height in sizes:
            await pilot.resize_terminal(width, height)
            await pilot.press("question_mark", "escape")
            if width > 1:
                assert [line.cell_len <= width for line in app.main.query_one("#status", Lines).lines] == [True]
        assert toasts(app) == []


async def test_without_colour_every_state_still_has_its_word_and_glyph(scenarios, open_app, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    intents = scenarios.FixedIntents(scenarios.training())
    app = HeteroApp(intents, on_start=(), now=lambda: scenarios.NOW)
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


def _changed(scenarios, host: str, state: HostState):
    return ev.HostChanged(time=scenarios.NOW, host=host, state=state)


def test_the_scenarios_are_what_they_say(scenarios) -> None:
    state = scenarios.training()
    assert state.cluster_state is ClusterState.DEGRADED
    assert [host.state.value for host in state.hosts] == ["training", "training", "slow", "unreachable"]


async def test_a_bug_while_the_session_is_opened_ends_the_app_and_is_kept_for_the_caller() -> None:
    async def opener():
        raise ZeroDivisionError

    app = HeteroApp(opener)
    async with app.run_test() as pilot:
        await pilot.pause()
    assert isinstance(app.opening_error, ZeroDivisionError)
    assert app.return_code == 1


async def test_why_an_order_was_refused_stays_in_the_form_until_something_is_typed(scenarios, open_app) -> None:
    app = open_app(scenarios.up(), session={"failure": scenarios.refused()})
    async with app.run_test() as pilot:
        await pilot.press("t", "enter")
        await pilot.pause()
        app.redraw()
        mistake = app.screen.query_one("#mistake", Static)
        assert str(scenarios.refused()).split()[0] in str(mistake.content)
        await pilot.press("end", "tab", "a", "=", "1")
        await pilot.pause()
        assert str(mistake.content) == ""


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40)], ids=str)
async def test_a_long_refusal_is_whole_in_the_form_or_it_says_where_it_is(scenarios, open_app, size) -> None:
    cause = "the model does not fit: " + "its layers need more memory than any of the machines has, " * 8
    app = open_app(scenarios.up(), session={"failure": scenarios.refused(cause)})
    async with app.run_test(size=size) as pilot:
        await pilot.press("t", "enter")
        await pilot.pause()
        app.redraw()
        await pilot.pause()
        shown = app.screen.query_one("#mistake", Static)
        said = str(shown.content)
        assert said.endswith("the events have all of it" if size == (60, 15) else "check its cable")
        assert shown.size.height == said.count("\n") + 1
        train = app.screen.query_one("#train").region
        assert train.bottom <= size[1] - 1, "the buttons are on the screen"
        await pilot.press("escape")
        app.redraw()
        log = app.main.query_one("#events", EventLog).text
        assert "check its cable" in " ".join(log.split())


def type_ahead(app: HeteroApp, *keys: str) -> None:
    """Keys that are there before the first of them was looked at, as on a busy computer."""
    characters = {"tab": "\t", "colon": ":", "slash": "/"}
    for key in keys:
        app.post_message(Key(key, characters.get(key, key if len(key) == 1 else None)))


async def test_pasted_text_reaches_a_field_without_what_a_terminal_would_obey(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash")
        app.post_message(Paste("\x1b[31mfast\x1b[2J\x07\thalf\u202e\r\nmore"))
        await pilot.pause()
        assert app.main.pane.table.filter == "fast half"


async def test_a_job_is_typed_in_the_place_of_the_one_that_an_arrow_chose(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("t")
        type_ahead(app, "down", *["backspace"] * len("text"), *"job")
        await pilot.pause()
        assert app.screen.query_one("#job", Input).value == "job"


async def test_keys_that_come_before_the_train_form_is_there_are_for_its_fields(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        type_ahead(app, "t", "tab", *"seed", "equals_sign")
        await pilot.pause()
        assert isinstance(app.screen, TrainScreen)
        assert app.screen.query_one("#settings", Input).value == "seed"
        assert app.screen.query_one("#job", Input).value == "digits"
        assert app.screen.focused.id == "settings"


async def test_a_correction_is_made_where_it_was_typed_however_late_the_keys_come(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        await pilot.press("t", "tab")
        type_ahead(app, *"siz", "backspace", *"ed", "home", "x", "delete")
        await pilot.pause()
        assert app.screen.query_one("#settings", Input).value == "xied"
        await pilot.press("escape", "slash")
        type_ahead(app, *"fast", "backspace", "backspace", *"r", "enter")
        await pilot.pause()
        assert app.main.pane.table.filter == "far"


async def test_keys_that_come_after_enter_are_none_of_the_order(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        await pilot.press("t", "tab", *"num_iterations", "equals_sign", "4")
        app.screen.query_one("#settings", Input).value = "num_iterations=400"
        await pilot.pause()
        app.screen.query_one("#settings", Input).action_end()
        type_ahead(app, "enter", "2")
        await pilot.pause()
        (order,) = [asked for asked in app.intents.asked if "400" in str(asked)]
        assert "4002" not in str(order)


@pytest.mark.parametrize("key", ["colon", "slash", "question_mark"])
async def test_what_is_typed_after_a_key_that_asks_is_no_command(key, scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        type_ahead(app, key, "u", "p")
        await pilot.pause()
        assert app.intents.asked == []


async def test_of_a_large_fleet_only_hosts_that_changed_are_put_into_words_again(
    scenarios, open_app, monkeypatch
) -> None:
    app = open_app(scenarios.many(64))
    made: list[str] = []
    original = cells.host_line
    monkeypatch.setattr(cells, "host_line", lambda host, *rest: made.append(host.name) or original(host, *rest))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert len(made) == 64
        made.clear()
        await pilot.press("4", "1")
        assert made == []
        change = ev.HostChanged(time=scenarios.NOW, host="node-07", state=HostState.RESTARTING)
        app.intents.change(apply(app.intents.state, change))
        app.redraw()
        assert made == ["node-07"]


async def test_a_key_that_shows_another_view_draws_once(scenarios, open_app, monkeypatch) -> None:
    app = open_app(scenarios.training())
    drawn: list[int] = []
    original = MainScreen.draw
    monkeypatch.setattr(MainScreen, "draw", lambda screen, view: drawn.append(view.number) or original(screen, view))
    monkeypatch.setattr(app, "_now", lambda: 0.0)  # no second passes, which would be drawn, too
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4")
        await pilot.pause()
        drawn.clear()
        await pilot.press("1")
        await pilot.pause()
        assert drawn == [1]


@pytest.mark.parametrize("busy", ["stopping", "starting", "installing"])
async def test_leaving_asks_first_where_it_cuts_off_what_changes_machines(busy, scenarios, open_app) -> None:
    app = open_app(scenarios.training(), session={"busy": busy})
    async with app.run_test() as pilot:
        await pilot.press("q")
        assert f"interrupted while {busy}: `hetero-tui " in " ".join(dialog_text(app).split())
        await pilot.press("enter")
        assert isinstance(app.screen, MainScreen)
        assert app.is_running
        await pilot.press("q", "q" if busy == "stopping" else "ctrl+c")
    assert app.farewell.startswith(f"Interrupted while {busy}: `hetero-tui ")


@pytest.mark.parametrize(("busy", "quit_key"), [("probing", QUIT), ("starting", QUIT_FOR_GOOD)])
async def test_leaving_does_not_ask_where_nothing_is_left_half_done(busy, quit_key, scenarios, open_app) -> None:
    app = open_app(scenarios.training(), session={"busy": busy}, quit_key=quit_key)
    async with app.run_test() as pilot:
        await pilot.press("q")
        assert not app.is_running or app._exit


async def test_the_question_before_leaving_says_when_there_is_nothing_to_cut_off_any_more(scenarios, open_app) -> None:
    app = open_app(scenarios.training(), session={"busy": "stopping"})
    async with app.run_test() as pilot:
        await pilot.press("q")
        app.intents.busy = ""
        app.redraw()
        assert dialog_text(app) == "What was under way is done."
        await pilot.press("right", "enter")
    assert app.farewell.startswith("text-7f3 goes on without this screen")


@pytest.mark.parametrize("hides", [False, True])
async def test_a_teardown_names_the_machines_that_it_did_not_look_at(hides, scenarios, open_app) -> None:
    gate = asyncio.Event()
    report = TeardownReport(unseen=("nas", "studio"))
    app = open_app(scenarios.training(), session={"gate": gate, "report": report})
    async with app.run_test() as pilot:
        await pilot.press("D", "right", "enter", *(["escape"] if hides else []))
        gate.set()
        await app.workers.wait_for_complete()
        await pilot.pause()
        if hides:
            assert toasts(app) == ["Torn down: nothing is left; not looked at, as there was no answer: nas, studio."]
        else:
            said = " ".join(dialog_text(app).split())
            assert "every machine" not in said
            assert "nas, studio: no answer; nothing was started there from this computer" in said


async def test_an_order_that_was_given_can_be_hidden_and_is_not_said_to_be_cancelled(scenarios, open_app) -> None:
    gate = asyncio.Event()
    app = open_app(scenarios.up(), session={"gate": gate, "failure": scenarios.refused()})

    def shown() -> list[str]:
        return [str(button.label) for button in app.screen.query(Button) if button.display]

    async with app.run_test() as pilot:
        await pilot.press("t")
        assert shown() == ["[ Cancel ]", "[ Train ]"]
        await pilot.press("enter")
        await pilot.pause()
        assert shown() == ["[ Hide ]"]
        assert "it goes on when this is hidden" in str(app.screen.query_one("#order-foot", Static).content)
        gate.set()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert shown() == ["[ Cancel ]", "[ Train ]"], "it was refused, and can be given again"


async def test_the_train_form_takes_no_key_until_its_order_is_answered(scenarios, open_app) -> None:
    gate = asyncio.Event()
    app = open_app(scenarios.up(), session={"gate": gate, "failure": scenarios.refused()})

    def typed() -> list[str]:
        return [app.screen.query_one(name, Input).value for name in ("#job", "#settings")]

    async with app.run_test() as pilot:
        await pilot.press("t", "tab", *"seed=1", "enter")
        await pilot.press(*"23", "backspace", "down", "down", "enter")
        await pilot.pause()
        assert (typed(), app.intents.asked) == (["digits", "seed=1"], [("train", "digits", {"seed": "1"})])
        gate.set()
        await app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("4")
        assert typed() == ["digits", "seed=14"], "it was refused, and can be changed where it was left"


async def test_a_teardown_names_what_it_keeps_and_how_that_is_removed(scenarios, open_app) -> None:
    kept = tuple(
        HostItem(host=host, kind=kind, detail=f"~/.hetero-tui/rc-lab/{name}")
        for host in ("mercer", "crosby")
        for kind, name in (("agent", "agent"), ("runs", "runs"), ("measurements", "profiles"))
    )
    app = open_app(scenarios.training(), session={"report": TeardownReport(kept=(*kept[:2], *kept[3:]))})
    async with app.run_test() as pilot:
        await pilot.press("D", "right", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        said = " ".join(dialog_text(app).split())
    assert "Left ✔ nothing runs; every machine was looked at" in said
    assert "Kept on mercer: agent, runs on crosby: agent, runs, measurements `hetero-tui down --purge` removes" in said
    assert said.endswith("`rm -r ~/.hetero-tui/rc-lab` on a host removes its runs, too")
    assert outcome(TeardownReport(kept=kept)) == "Torn down: nothing runs; kept: agent, runs, measurements."


def test_of_what_is_kept_no_way_is_named_that_does_not_remove_it() -> None:
    runs = HostItem(host="nas", kind="runs", detail="~/.hetero-tui/lab/runs")
    removal = "`rm -r ~/.hetero-tui/lab` on a host removes its runs, too"
    assert TeardownReport(kept=(runs,)).kept_words == (
        "kept on nas: runs (listed again after the next `up`)",
        removal,
    )
    agent = replace(runs, kind="agent", detail="~/.hetero-tui/lab/agent")
    assert TeardownReport(kept=(agent, runs)).kept_words == (
        "kept on nas: agent, runs",
        "`hetero-tui down --purge` removes all but the runs",
        removal,
    )
    other = TeardownReport(kept=(replace(runs, kind="folder", detail="~/.hetero-tui/lab/mine"),))
    assert other.kept_words[1:] == ("`rm -r ~/.hetero-tui/lab` on a host removes the rest",)
    assert TeardownReport().kept_words == ()
