"""What a key, an entry of the palette and a sentence are about: this view, the run or host that is seen, this app."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from textual.screen import Screen
from textual.widgets import Static

from hetero_tui.events import HostState, RunProgressed
from hetero_tui.fold import apply
from hetero_tui.recording.replay import Recording, Replay
from hetero_tui.ui.guards import refusal
from hetero_tui.ui.keys import ADD, DEMO, EDIT, FLEET, KEYS, RUN
from hetero_tui.ui.palette import DARK
from hetero_tui.ui.preferences import Preferences
from hetero_tui.ui.replaying import ReplayApp
from hetero_tui.ui.screens.help import HostScreen
from hetero_tui.ui.view import View
from hetero_tui.ui.widgets.lines import Lines
from remote_agent.protocol import WorkerLost
from remote_agent.states import RunState


def text_of(app, name: str) -> str:
    return "\n".join(line.plain for line in app.screen.query_one(f"#{name}", Lines).lines)


def toasts(app) -> list[str]:
    return [notification.message for notification in app._notifications]


async def choose(app, pilot, title: str) -> None:
    """The palette's entry of that name."""
    screen: Screen = app.screen
    (entry,) = [entry for entry in app.get_system_commands(screen) if entry.title == title]
    app.call_later(entry.callback)
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


async def test_a_command_of_another_view_leads_there_and_acts_on_nothing_unseen(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        for title, view in (("Zoom", RUN), ("Drain", FLEET), ("Log scale", RUN)):
            await choose(app, pilot, title)
            assert app.main.number == view
        assert app.intents.asked == []
        assert not app.main.pane.is_logarithmic
        await choose(app, pilot, "Log scale")
        assert app.main.pane.is_logarithmic


async def open_second_run(app: Any, pilot: Any) -> None:
    """Have the views of a run show the second one of the list of runs."""
    await pilot.press("5", "down", "enter")
    await app.workers.wait_for_complete()
    await pilot.pause()


async def test_resume_is_about_the_run_that_is_shown(scenarios, open_app) -> None:
    """The session's own run is another one, which failed; what was opened fills the views of a run."""
    app = open_app(scenarios.listed(scenarios.failed()))
    async with app.run_test(size=(120, 40)) as pilot:
        await open_second_run(app, pilot)
        opened = app.view().run.run
        assert opened != app.intents.state.run.run
        await pilot.press("r")
        await app.workers.wait_for_complete()
        assert app.intents.asked[-1] == ("resume", opened)


async def test_in_the_fleet_resume_is_about_the_run_that_stands_there(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.failed()))
    async with app.run_test(size=(120, 40)) as pilot:
        await open_second_run(app, pilot)
        await pilot.press("1", "r")
        await app.workers.wait_for_complete()
        assert app.intents.asked[-1] == ("resume", "text-7f3")


async def test_no_run_is_resumed_from_a_list_that_shows_none(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.failed()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5", "slash", *"zzz", "enter", "r")
        await app.workers.wait_for_complete()
        assert toasts(app) == ["No run is marked."]
        assert ("resume",) not in [asked[:1] for asked in app.intents.asked]


async def test_a_marked_run_that_is_finished_is_not_resumed(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.up()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5", "end", "r")
        await app.workers.wait_for_complete()
        assert toasts(app) == ["digits-4b26 is finished. Press t to train anew."]


async def test_the_list_of_runs_offers_to_resume_the_marked_one_only_if_that_can_go_on(scenarios, open_app) -> None:
    """The first one failed before its first checkpoint, the second was stopped, the last is finished."""
    app = open_app(scenarios.listed(scenarios.up()))
    offered = []
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5")
        await app.workers.wait_for_complete()
        for _ in range(3):
            foot = app.main.pane.query_one("#foot", Lines).text
            offered.append((app.main.pane.table.rows.marked, "r resume" in text_of(app, "keys"), "r resumes" in foot))
            await pilot.press("down")
            await pilot.pause()
        assert offered == [("text-91aa", False, False), ("text-e2c0", True, True), ("digits-4b26", False, False)]
        app.intents.change(scenarios.listed(scenarios.training()))
        await pilot.press("up")
        await pilot.pause()
        assert app.main.pane.table.rows.marked == "text-e2c0"
        assert "resume" not in text_of(app, "keys") + app.main.pane.query_one("#foot", Lines).text, (
            "another one goes on"
        )


async def test_no_host_is_brought_back_into_a_run_of_the_past(scenarios, open_app) -> None:
    app = open_app(scenarios.faulty())
    async with app.run_test(size=(120, 40)) as pilot:
        await open_second_run(app, pilot)
        await pilot.press("4", "b")
        await pilot.pause()
        (said,) = toasts(app)
        assert said.endswith(" is over. The run under way is text-7f3.")
        assert "bring back" not in [asked[0] for asked in app.intents.asked]


async def test_the_line_at_the_bottom_offers_resume_for_the_run_that_is_shown(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.finished()))
    async with app.run_test(size=(120, 40)) as pilot:
        await open_second_run(app, pilot)
        assert "r resume" in text_of(app, "keys")


async def test_a_readonly_check_offers_no_mend(scenarios, open_app) -> None:
    for readonly, offered in ((False, True), (True, False)):
        app = open_app(scenarios.probed(), preferences=Preferences(readonly=readonly))
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("c")
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert app.screen.query_one("#mend").display is offered
            await pilot.press("right", "right", "enter")
            await app.workers.wait_for_complete()
            assert (("check", True) in app.intents.asked) is offered


async def test_stop_is_offered_for_the_run_that_it_names_alone(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("s")
        state = app.intents.state
        app.intents.change(replace(state, run=replace(state.run, run="other-9", state=RunState.RUNNING)))
        app.redraw()
        await pilot.press("right", "enter")
        await app.workers.wait_for_complete()
        assert app.intents.asked == []
        await pilot.press("escape", "s")
        await pilot.press("right", "enter")
        await app.workers.wait_for_complete()
        assert app.intents.asked == [("stop", "other-9")]


async def everything_said(app, pilot) -> str:
    """The views, the help and the palette, as far as they name keys."""
    said = []
    for number in "123456":
        await pilot.press(number)
        if not isinstance(app, ReplayApp):  # which plays for as long as it is shown
            await app.workers.wait_for_complete()
        app.redraw()
        await pilot.pause()
        said += [strip.text for strip in app.main._compositor.render_strips()]
    await pilot.press("question_mark")
    await pilot.pause()
    said.append(str(app.screen.query_one("#text", Static).content))
    await pilot.press("escape")
    said += [entry.title for entry in app.get_system_commands(app.screen)]
    return "\n".join(said)


@pytest.mark.parametrize("state", ["faulty", "failed", "probed", "up", "empty", "torn_down"])
async def test_an_app_that_only_shows_names_no_key_that_it_refuses(state, scenarios, open_app) -> None:
    app = open_app(getattr(scenarios, state)(), preferences=Preferences(readonly=True))
    async with app.run_test(size=(200, 60)) as pilot:
        said = await everything_said(app, pilot)
        assert not [key.help for key in (*KEYS, ADD, EDIT, DEMO) if key.changes and key.help in said]
        assert "demo" not in said


def test_what_a_key_is_refused_for_names_only_keys_that_there_are(scenarios) -> None:
    view = View(state=scenarios.training(), busy="", now=scenarios.NOW, zone=None, palette=DARK, inventory_path="")
    some = replace(view, keys=tuple(key for key in KEYS if key.action != "stop"))
    assert refusal("train", view) == "text-7f3 is still training. Press s to stop it first."
    assert refusal("train", some) == "text-7f3 is still training."


async def test_a_recording_names_no_key_that_asks_machines_and_says_why_it_refuses_them(scenarios, tmp_path) -> None:
    shown = scenarios.listed(scenarios.failed())
    app = ReplayApp(Replay(Recording(tmp_path, scenarios.NOW, shown, (), cut_off=False)))
    async with app.run_test(size=(120, 40)) as pilot:
        said = await everything_said(app, pilot)
        assert not [key.help for key in KEYS if (key.changes or key.asks == key.views) and key.help in said]
        assert "enter opens" not in said
        await pilot.press("1", "p", "c", "l", "5", "enter", "space", "c")
        await pilot.pause()
        assert {*toasts(app)} == {"This is a recording: its machines can't be asked for more."}
        await pilot.press("1", "enter")
        assert isinstance(app.screen, HostScreen)


async def test_two_clicks_on_a_line_open_it_where_there_is_something_to_open(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.faulty()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4")
        await pilot.click(app.main.pane.table.rows, offset=(5, 0), times=2)
        await pilot.pause()
        assert app.screen is app.main
        await pilot.press("5")
        await app.workers.wait_for_complete()
        await pilot.click(app.main.pane.table.rows, offset=(5, 2), times=2)
        await app.workers.wait_for_complete()
        assert ("read run", "text-e2c0") in app.intents.asked
        await pilot.press("1")
        await pilot.click(app.main.hosts.rows, offset=(5, 1), times=2)
        await pilot.pause()
        assert isinstance(app.screen, HostScreen)
        assert "192.168.1.12" in str(app.screen.query_one("#text", Static).content)


async def test_a_device_of_a_host_that_trains_with_another_can_be_brought_back(scenarios, open_app) -> None:
    lost = WorkerLost(
        seq=3, time=scenarios.NOW, worker="mercer/cuda:1", host="mercer", device="cuda:1", step=1,
        cause="its process was killed", retry_s=40.0,
    )  # fmt: skip
    app = open_app(apply(scenarios.two_devices(), RunProgressed(run="text-1", event=lost)))
    async with app.run_test(size=(120, 40)) as pilot:
        assert app.intents.state.host("mercer").state is HostState.TRAINING
        assert "b bring back" in text_of(app, "keys")
        await pilot.press("4")
        await pilot.pause()
        said = "1 device of mercer paused, next try in 40 s (b brings it back now)"
        assert said in app.main.pane.table.query_one("#foot", Lines).text
        await pilot.press("b", "1", "b")
        await app.workers.wait_for_complete()
        assert app.intents.asked == [("bring back", "mercer")] * 2
        assert toasts(app) == []
