"""The table of hosts: its cursor, filter and order, and what stands in a line."""

from __future__ import annotations

from dataclasses import replace

from textual.widgets import Input

from hetero_tui import events as ev
from hetero_tui.events import HostState, RunProgressed
from hetero_tui.fold import apply
from hetero_tui.state import Behind
from hetero_tui.ui.keys import VIEWS
from hetero_tui.ui.screens.help import HostScreen
from hetero_tui.ui.screens.main import MainScreen
from remote_agent.protocol import WorkerLost
from tests.ui.looking import dialog_text, pane_text, resize, rows_of, seen, settle, show, text_of, title_of, toasts


async def test_the_views_are_reached_by_number_and_escape_leads_back_to_the_fleet(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.training()))
    async with app.run_test(size=(120, 40)) as pilot:
        headers = set()
        for number in VIEWS:
            await pilot.press(str(number))
            assert app.main.number == number
            headers.add(text_of(app, "status"))
        assert len(headers) == 1
        await pilot.press("escape")
        assert app.main.number == 1
        await pilot.click("#tabs", offset=(24, 0))
        await pilot.pause()
        assert VIEWS[app.main.number] == "Plan"


async def test_the_cursor_and_the_table_stay_while_it_changes_and_the_filter_shows_what_matches(
    scenarios, open_app
) -> None:
    app = open_app(scenarios.many())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("pagedown", "pagedown", "down")
        rows = app.main.hosts.rows
        marked, top = rows.marked, rows.scroll_offset.y
        assert top > 0
        stopping = ev.HostChanged(time=scenarios.NOW, host="node-01", state=HostState.STOPPING)
        show(app, apply(app.intents.state, stopping))
        await pilot.pause()
        assert (rows.marked, rows.scroll_offset.y) == (marked, top)
        lost = ev.HostLost(time=scenarios.NOW, host="node-50", cause="no answer for 15 s")
        show(app, apply(app.intents.state, lost))
        await pilot.press("end")
        await pilot.pause()
        assert rows.marked == "node-50"
        line, *_ = [line for line in seen(app).splitlines() if "node-50" in line]
        assert "unreachable" in line, "one that comes into sight is shown as it is now"
        height = rows.size.height
        await pilot.press("slash", *"qD")
        assert isinstance(app.screen, MainScreen), "letters are text and not commands"
        app.main.query_one(Input).value = "node-1"
        await settle(app, pilot)
        assert rows.size.height == height, "the filter takes no line from the table"
        assert len([row for row in rows_of(app) if "node-1" in row]) == len(rows_of(app)) == 10
        await pilot.press("enter", "home", "down")
        assert not app.main.query(Input)
        assert rows.marked == "node-11"
        await settle(app, pilot, "escape")
        assert (len(rows_of(app)), rows.marked) == (50, "node-11")


async def test_sorting_is_seen_in_the_title_on_a_narrow_terminal_too_and_a_line_is_copied(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("o", "y")
        assert title_of(app, "hosts") == "Hosts, by name"
        assert rows_of(app)[0].startswith("  crosby")
        assert "mercer" in app.clipboard
        await pilot.press("o", "o", "o", "o", "o", "o")
        show(app, scenarios.demo())
        await resize(app, pilot, 60, 15)
        while "by" in title_of(app, "hosts"):
            await pilot.press("o")
        assert title_of(app, "hosts") == "Hosts, 3 simulated on this computer"


async def test_a_host_is_drained_and_brought_back_with_keys(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test() as pilot:
        await settle(app, pilot, "down", "d", "end", "d")
        assert app.intents.asked == [("drain", "crosby"), ("drain", "nas")], "a lost one is not to come back, then"
        assert toasts(app) == []
        app.intents.asked.clear()
        show(app, scenarios.faulty())
        await settle(app, pilot, "4", "home", "down", "b", "1", "home", "down", "b", "home", "d")
        assert {*app.intents.asked} == {("bring back", "nas"), ("bring back", "crosby")}
        assert len(toasts(app)) == 1, "mercer is the last machine that trains"


async def test_a_device_of_a_host_that_trains_with_another_can_be_brought_back(scenarios, open_app) -> None:
    lost = WorkerLost(
        seq=3, time=scenarios.NOW, worker="mercer/cuda:1", host="mercer", device="cuda:1", step=1,
        cause="its process was killed", retry_s=40.0,
    )  # fmt: skip
    app = open_app(apply(scenarios.two_devices(), RunProgressed(run="text-1", event=lost)))
    async with app.run_test(size=(120, 40)) as pilot:
        assert app.intents.state.host("mercer").state is HostState.TRAINING
        assert "b bring back" in text_of(app, "keys")
        await settle(app, pilot, "4")
        assert "1 device of mercer paused, next try in 40 s (b brings it back now)" in pane_text(app)
        await settle(app, pilot, "b", "1", "b")
        assert app.intents.asked == [("bring back", "mercer")] * 2
        assert toasts(app) == []


async def test_two_clicks_on_a_line_open_it_where_there_is_something_to_open(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.faulty()))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot, "5")
        await pilot.click(app.main.pane.table.rows, offset=(5, 2), times=2)
        await settle(app, pilot)
        assert ("read run", "text-e2c0") in app.intents.asked
        await pilot.press("1")
        await pilot.click(app.main.hosts.rows, offset=(5, 1), times=2)
        await pilot.pause()
        assert isinstance(app.screen, HostScreen)
        assert "192.168.1.12" in dialog_text(app)


async def test_while_a_history_is_read_every_view_says_how_far_and_shows_nothing_of_it(scenarios, open_app) -> None:
    state = scenarios.faulty()
    behind = Behind(seq=state.run.last_seq + 1, step=3000)
    app = open_app(replace(state, run=replace(state.run, step=1204, behind=behind)))
    async with app.run_test(size=(120, 40)) as pilot:
        assert "step 1,204 of 3,000" in text_of(app, "status")
        for view in "1234":
            await pilot.press(view)
            assert "step 1,204 of 3,000" in pane_text(app)
            assert "no step yet" not in pane_text(app)
        await pilot.press("1", "s")
        assert "1,204" not in dialog_text(app)
