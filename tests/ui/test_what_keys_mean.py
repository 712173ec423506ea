"""What a key, an entry of the palette and a sentence are about: this view, the run or host that is seen, this app."""

from __future__ import annotations

from dataclasses import replace

from textual.screen import Screen

from hetero_tui.ui.keys import FLEET, RUN
from hetero_tui.ui.preferences import Preferences
from hetero_tui.ui.widgets.lines import Lines
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


async def test_resume_is_about_the_run_that_is_shown(scenarios, open_app) -> None:
    """The session's own run is another one, which failed; what was opened fills the views of a run."""
    app = open_app(scenarios.listed(scenarios.failed()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5", "down", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        opened = app.view().run.run
        assert opened != app.intents.state.run.run
        await pilot.press("r")
        await app.workers.wait_for_complete()
        assert app.intents.asked[-1] == ("resume", opened)


async def test_in_the_fleet_resume_is_about_the_run_that_stands_there(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.failed()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5", "down", "enter")
        await app.workers.wait_for_complete()
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


async def test_no_host_is_brought_back_into_a_run_of_the_past(scenarios, open_app) -> None:
    app = open_app(scenarios.faulty())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5", "down", "enter")
        await app.workers.wait_for_complete()
        await pilot.press("4", "b")
        await pilot.pause()
        (said,) = toasts(app)
        assert said.endswith(" is over. The run under way is text-7f3.")
        assert "bring back" not in [asked[0] for asked in app.intents.asked]


async def test_the_line_at_the_bottom_offers_resume_for_the_run_that_is_shown(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.finished()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5", "down", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
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
