"""What a key, an entry of the palette and a sentence are about: this view, the run or host that is seen, this app."""

from __future__ import annotations

from textual.screen import Screen

from hetero_tui.ui.keys import FLEET, RUN
from hetero_tui.ui.widgets.lines import Lines


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
