"""How the reading of a log stands: it goes on, ended, or broke off; and when it begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from hetero_tui.errors import Unreachable
from hetero_tui.intents import LoggedLine
from hetero_tui.ui.app import HeteroApp
from hetero_tui.ui.widgets.lines import Lines


class Logs:
    """What the session reads: each read yields the next of ``reads``, and fails where that holds an error."""

    def __init__(self, reads: list[list[LoggedLine | Exception]]) -> None:
        self.reads = reads
        self.asked: list[tuple[str | None, str]] = []

    async def __call__(self, run: str | None, host: str) -> AsyncGenerator[LoggedLine]:
        self.asked.append((run, host))
        for entry in self.reads.pop(0):
            if isinstance(entry, Exception):
                raise entry
            yield entry


Reading = Callable[..., tuple[HeteroApp, Logs]]


@pytest.fixture
def reading(scenarios: Any, open_app: Callable[..., HeteroApp]) -> Reading:
    def build(state: str, *reads: list[LoggedLine | Exception]) -> tuple[HeteroApp, Logs]:
        app, logs = open_app(getattr(scenarios, state)()), Logs([*reads])
        app.intents.logs = logs  # type: ignore[method-assign]
        return app, logs

    return build


async def settle(app: HeteroApp, pilot: Any) -> tuple[str, str]:
    """The panel's title and text once all is read and drawn."""
    await app.workers.wait_for_complete()
    app.redraw()
    await pilot.pause()
    panel = app.main.query_one("#log", Lines)
    return str(panel.border_title), panel.text


async def test_a_run_that_logged_is_never_said_to_have_logged_nothing(scenarios, reading: Reading) -> None:
    app, _ = reading("finished", scenarios.logged())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        assert (await settle(app, pilot))[0] == "text-7f3, all machines, all, ended"
        await pilot.press("slash", *"zzzz", "enter")
        assert (await settle(app, pilot))[1].strip() == "Nothing matches."


async def test_a_run_without_a_line_is_said_to_have_logged_nothing(reading: Reading) -> None:
    app, _ = reading("finished", [])
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("end", "l")
        assert (await settle(app, pilot))[1].strip() == "text-7f3 logged nothing on nas."


async def test_a_read_that_broke_off_says_so_below_what_came_and_begins_anew(scenarios, reading: Reading) -> None:
    gone = Unreachable("nas", "no answer for 15 s", step="logs")
    app, logs = reading("finished", [*scenarios.logged()[:2], gone], scenarios.logged())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        title, text = await settle(app, pilot)
        assert title == "text-7f3, all machines, all, broken off"
        assert "epoch 1, batch 20" in text
        assert "nas: logs: no answer for 15 s (6 reads it again)" in text
        await pilot.press("6")
        title, text = await settle(app, pilot)
        assert title == "text-7f3, all machines, all, ended"
        assert "no answer" not in text
        assert len(logs.asked) == 2


async def test_the_log_of_a_run_that_was_resumed_is_read_on(scenarios, reading: Reading) -> None:
    app, logs = reading("finished", scenarios.logged("crosby")[:1], scenarios.logged("crosby"))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("down", "l")
        await settle(app, pilot)
        await pilot.press("1", "6")
        await settle(app, pilot)
        assert len(logs.asked) == 1, "it is whole"
        app.intents.change(scenarios.training())
        await pilot.press("1", "6")
        _, text = await settle(app, pilot)
        assert logs.asked == [("text-7f3", "crosby")] * 2
        assert "labels out of range" in text


async def test_while_a_log_is_read_its_title_does_not_say_that_it_ended(scenarios, open_app) -> None:
    app, gate = open_app(scenarios.training()), asyncio.Event()

    async def logs(run: str | None, host: str) -> AsyncGenerator[LoggedLine]:
        yield scenarios.logged()[0]
        await gate.wait()

    app.intents.logs = logs
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        await pilot.pause()
        app.redraw()
        assert str(app.main.query_one("#log", Lines).border_title) == "text-7f3, all machines, all"
        gate.set()
        assert (await settle(app, pilot))[0] == "text-7f3, all machines, all, ended"


async def test_the_newest_runs_log_is_read_also_before_the_runs_are_known(scenarios, reading: Reading) -> None:
    app, logs = reading("probed", scenarios.logged())
    asked = asyncio.Event()

    async def list_runs() -> None:
        await asked.wait()
        app.intents.change(scenarios.listed(app.intents.state))

    app.intents.list_runs = list_runs  # type: ignore[method-assign]
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        app.redraw()
        assert app.main.query_one("#log", Lines).text.strip() == "Waiting for the first line."
        asked.set()
        title, text = await settle(app, pilot)
        newest = app.intents.state.runs[-1].id
        assert (title, logs.asked) == (f"{newest}, all machines, all, ended", [(newest, "")])
        assert "epoch 1, batch 20" in text


async def test_where_there_is_no_run_there_is_said_to_be_none_once_the_machines_were_asked(reading: Reading) -> None:
    app, logs = reading("probed")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        assert (await settle(app, pilot))[
            1
        ].strip() == "There is nothing to read. No run is going on. Press t to train."
        assert logs.asked == []
        assert ("list runs",) in app.intents.asked


async def test_the_first_picture_of_a_log_does_not_say_that_there_is_none(scenarios, reading: Reading) -> None:
    app, _ = reading("training", scenarios.logged())
    async with app.run_test(size=(120, 40)) as pilot:
        pane = await app.main.show_pane(6)
        assert "logged nothing" not in pane.query_one("#log", Lines).text, "before it is asked for"
        await pilot.press("1", "6")
        assert str(pane.query_one("#log", Lines).border_title).startswith("text-7f3, all machines")
