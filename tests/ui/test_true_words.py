"""The app says nothing that is untrue: of runs to come and runs that ended, of keys, of the order of things."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hetero_tui import events
from hetero_tui.fold import apply
from hetero_tui.intents import LoggedLine
from hetero_tui.ui import guards, train_form
from hetero_tui.ui.details import details_lines
from hetero_tui.ui.header import header_line
from hetero_tui.ui.palette import DARK
from hetero_tui.ui.view import View
from hetero_tui.ui.views import runs
from hetero_tui.ui.views.logs import KEPT, LogsPane
from hetero_tui.ui.widgets.lines import Lines
from remote_agent import protocol
from remote_agent.states import RunState


def text_of(app) -> str:
    """What the view shows, panel by panel."""
    return "\n".join(part.text for part in app.main.pane.query(Lines) if part.display)


def keys_of(app) -> str:
    """The line at the bottom."""
    return app.main.query_one("#keys", Lines).text


async def test_where_a_run_is_about_to_start_no_view_says_to_start_one(scenarios, open_app) -> None:
    gate = asyncio.Event()
    app = open_app(scenarios.up(), on_start=("up", "train"), session={"gate": gate})
    async with app.run_test(size=(120, 40)) as pilot:
        for number in "12345":
            await pilot.press(number)
            await pilot.pause()
            app.redraw()
            assert "A run is about to start." in text_of(app) or number == "5", number
            assert "to train" not in text_of(app)
        gate.set()
        await app.workers.wait_for_complete()
        await pilot.press("2")
        assert "No run is going on. Press t to train." in text_of(app)


async def test_where_nothing_is_known_of_runs_it_is_not_said_that_there_was_none(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        assert "No run is going on. Press t to train." in text_of(app)
        app.intents.change(apply(app.intents.state, events.RunsListed(runs=())))
        app.redraw()
        assert "No run yet. Press t to train." in text_of(app)


def sweeping(state, word: RunState = RunState.RUNNING, host: str = "mercer"):
    sweep = protocol.RunSummary(
        id="sweep-12ab", job="digits", state=word, step=0, loss=None, started=1.0, host=host, script=True
    )
    return apply(state, events.RunsListed(runs=(*(state.runs or ()), sweep)))


@pytest.mark.parametrize("scenario", ["up", "finished"])
def test_a_sweep_that_uses_the_devices_stands_in_the_header(scenario: str, scenarios) -> None:
    state = getattr(scenarios, scenario)()

    def header(state) -> str:
        return header_line(state, "", scenarios.NOW, None, 120, DARK).plain

    assert "● sweep-12ab running" in header(sweeping(state))
    assert "sweep" not in header(sweeping(state, RunState.FINISHED))
    assert "sweep" not in header(apply(sweeping(state), events.ClusterChanged(state=events.ClusterState.DOWN)))
    away = apply(sweeping(state), events.HostLost(time=scenarios.NOW, host="mercer", cause="no answer"))
    assert "sweep" not in header(away), "it may have ended"


def test_how_long_a_sweep_took_that_ended_without_a_word_is_not_known(scenarios) -> None:
    state = sweeping(scenarios.listed(scenarios.up()), RunState.LOST)
    *others, sweep = state.runs
    state = replace(state, runs=(*others, replace(sweep, ended=sweep.started)))
    view = View(state=state, busy="", now=scenarios.NOW, zone=None, palette=DARK, inventory_path="")
    took = {run.id: runs._cells(run, (), view)[7].plain for run in state.runs}
    assert took["sweep-12ab"] == "n/a"
    assert took["text-91aa"] == "9.0 s"


async def test_a_sweep_that_uses_the_devices_is_said_in_every_view_without_a_run(scenarios, open_app) -> None:
    app = open_app(sweeping(scenarios.up()))
    async with app.run_test(size=(120, 40)) as pilot:
        for number in "1234":
            await pilot.press(number)
            await pilot.pause()
            assert "sweep-12ab is running on these machines" in text_of(app), number


def test_the_train_form_says_that_a_sweep_uses_the_machines(scenarios) -> None:
    state = sweeping(scenarios.up())
    assert train_form.foot(state, "digits", {}).endswith("hosts ready, in use by sweep-12ab")
    assert "sweep" not in train_form.foot(sweeping(scenarios.up(), RunState.FINISHED), "digits", {})


def test_a_setting_by_its_initials_does_not_hide_how_long_a_run_takes(scenarios) -> None:
    state = scenarios.listed(scenarios.up())
    assert "of steps" in train_form.foot(state, "digits", {"lr": "0.1"})
    assert train_form.foot(state, "digits", {"lr": "0.1"}) == train_form.foot(state, "digits", {"learning_rate": "1"})
    assert "of steps" not in train_form.foot(state, "digits", {"bs": "8"})


async def test_the_form_names_a_mistake_as_it_was_typed(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    app.intents.mistakes_in = lambda *_: ("--set xx: no such setting",)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("t")
        await pilot.pause()
        assert str(app.screen.query_one("#mistake").content) == "xx: no such setting"


def test_a_run_that_trains_has_the_header_also_beside_a_sweep(scenarios) -> None:
    line = header_line(sweeping(scenarios.training()), "", scenarios.NOW, None, 120, DARK)
    assert "text-7f3" in line.plain
    assert "sweep" not in line.plain


@pytest.mark.parametrize(
    ("key", "offered"),
    [
        ("s", "enter choose"),
        ("D", "enter choose"),
        ("question_mark", "up down scroll"),
        ("enter", "up down scroll"),
        ("slash", "enter keep"),
        ("colon", "enter choose"),
    ],
)
async def test_below_a_dialog_only_its_own_keys_are_offered(key: str, offered: str, scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        before = keys_of(app)
        assert "? help" in before
        await pilot.press(key)
        await pilot.pause()
        assert offered in keys_of(app)
        assert "? help" not in keys_of(app)
        assert "teardown" not in keys_of(app)
        await pilot.press("escape")
        await pilot.pause()
        assert keys_of(app) == before


async def test_the_train_form_offers_its_keys_and_a_letter_is_for_its_field(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("t", "question_mark")
        await pilot.pause()
        assert app.screen.query_one("#job").value.endswith("?")
        assert "? help" not in keys_of(app)
        assert "enter train" in keys_of(app)


@pytest.mark.parametrize(("view", "without"), [("2", ("filter", "sort")), ("3", ("sort",)), ("6", ("sort",))])
async def test_no_view_offers_a_key_that_does_nothing_in_it(view: str, without: tuple[str, ...], scenarios, open_app):
    app = open_app(scenarios.training())
    async with app.run_test(size=(200, 40)) as pilot:
        await pilot.press(view)
        await pilot.pause()
        for word in without:
            assert word not in keys_of(app)


@pytest.mark.parametrize(("scenario", "offered"), [("training", True), ("starting", False), ("up", False)])
async def test_only_where_there_is_a_curve_its_keys_are_offered(scenario: str, offered: bool, scenarios, open_app):
    app = open_app(getattr(scenarios, scenario)())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await pilot.pause()
        assert ("smooth" in keys_of(app)) is offered


@pytest.mark.parametrize(
    ("scenario", "word", "said"),
    [
        ("training", RunState.RUNNING, "text-7f3 is still training."),
        ("training", RunState.STOPPING, "text-7f3 is stopping."),
        ("starting", RunState.STARTING, "text-7f3 is starting."),
    ],
)
def test_a_run_that_does_not_train_is_not_said_to_train(scenario: str, word: RunState, said: str, scenarios) -> None:
    state = getattr(scenarios, scenario)()
    state = replace(state, run=replace(state.run, state=word))
    view = View(state=state, busy="", now=scenarios.NOW, zone=None, palette=DARK, inventory_path="")
    for action in (guards.TRAIN, guards.RESUME):
        assert guards.refusal(action, view).startswith(said)


async def test_a_run_that_ended_while_its_stop_is_asked_is_said_to_have_ended(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("s", "right")
        state = app.intents.state
        app.intents.change(replace(state, run=replace(state.run, state=RunState.STOPPED)))
        app.redraw()
        await pilot.pause()
        dialog = app.screen
        assert "text-7f3 stopped at step 1,204 meanwhile" in str(dialog.query_one("#text").content)
        assert [str(button.label) for button in dialog.query("Button") if button.display] == ["[ Close ]"]
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen is app.main
        assert app.intents.asked == []


def line(time: float, text: str = "x", host: str = "nas") -> LoggedLine:
    return LoggedLine(host, protocol.LogLine(time=time, process="cpu", line=text))


def test_log_lines_stand_in_the_order_of_their_times_however_they_came() -> None:
    pane = LogsPane()
    for entry in (line(2.0, "b"), line(5.0, "d"), line(1.0, "a"), line(5.0, "e"), line(3.0, "c"), line(6.0, "f")):
        pane.add(entry)
    assert "".join(entry.line.line for entry in pane.entries) == "abcdef"


def test_of_many_log_lines_the_newest_by_their_times_are_kept() -> None:
    pane = LogsPane()
    for number in range(KEPT):
        pane.add(line(10.0 + number))
    pane.add(line(1.0, "old"))
    assert (len(pane.entries), pane.entries[0].line.time) == (KEPT, 10.0)
    pane.add(line(10.5, "late"))
    assert [entry.line.time for entry in list(pane.entries)[:2]] == [10.5, 11.0]
    assert len(pane.entries) == KEPT


async def test_the_log_of_the_next_run_is_shown_once_there_is_one(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        await app.workers.wait_for_complete()
        app.intents.asked.clear()
        app.intents.change(scenarios.training())
        await app.workers.wait_for_complete()
        assert app.intents.asked == [("logs", "text-7f3", "")]
        app.main.pane.run = "other-1"
        state = app.intents.state
        app.intents.change(replace(state, run=replace(state.run, run="text-2")))
        await app.workers.wait_for_complete()
        assert len(app.intents.asked) == 1, "a user asked for that of another run"


async def test_until_the_cursor_is_moved_the_newest_fault_is_the_marked_one(scenarios, open_app) -> None:
    app = open_app(scenarios.faulty())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4")
        run = app.intents.state.run
        newest = run.faults[-1]
        assert app.main.pane.table.rows.marked == str(newest.number)

        def add(number: int) -> None:
            state = app.intents.state
            faults = (*state.run.faults, replace(newest, number=number))
            app.intents.change(replace(state, run=replace(state.run, faults=faults)))
            app.redraw()

        add(newest.number + 1)
        assert app.main.pane.table.rows.marked == str(newest.number + 1)
        await pilot.press("down", "up")
        add(newest.number + 2)
        assert app.main.pane.table.rows.marked == str(newest.number + 1), "it stays on what a user chose"


@pytest.mark.parametrize(("speed", "words"), [(1.0, "as fast as this computer"), (0.5, "×0.5 of this computer")])
def test_a_simulated_machine_of_full_speed_is_not_said_to_be_slowed_down(speed: float, words: str, scenarios) -> None:
    state = scenarios.demo()
    host = replace(state.hosts[0], facts=scenarios.facts("ash", simulated_speed=speed))
    said = "\n".join(line.plain for line in details_lines(host, None, scenarios.NOW, 80, DARK))
    assert words in said
    assert ("slowed" in said) is (speed < 1)
