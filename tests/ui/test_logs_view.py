"""How the reading of a log stands: it goes on, ended, or broke off; and when it begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from hetero_tui.errors import Unreachable
from hetero_tui.intents import LoggedLine
from hetero_tui.ui.app import HeteroApp
from hetero_tui.ui.views.logs import KEPT, LogsPane, log_lines
from hetero_tui.ui.widgets.lines import Lines
from remote_agent import protocol
from tests.ui.looking import pane_text, settle, text_of, title_of, toasts, view_of


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


async def read(app: HeteroApp, pilot: Any, *keys: str) -> tuple[str, str]:
    """The panel's title and text once all is read and drawn."""
    await settle(app, pilot, *keys)
    return title_of(app, "log"), app.main.pane.lines("log").text.strip()


async def test_a_run_that_logged_is_never_said_to_have_logged_nothing(scenarios, reading: Reading) -> None:
    app, _ = reading("finished", scenarios.logged())
    async with app.run_test(size=(120, 40)) as pilot:
        assert (await read(app, pilot, "6"))[0] == "text-7f3, all machines, all, ended"
        assert (await read(app, pilot, "slash", *"zzzz", "enter"))[1] == "Nothing matches."


async def test_a_run_without_a_line_is_said_to_have_logged_nothing(reading: Reading) -> None:
    app, _ = reading("finished", [])
    async with app.run_test(size=(120, 40)) as pilot:
        assert (await read(app, pilot, "end", "l"))[1] == "text-7f3 logged nothing on nas."


async def test_a_read_that_broke_off_says_so_below_what_came_and_begins_anew(scenarios, reading: Reading) -> None:
    gone = Unreachable("nas", "no answer for 15 s", step="logs")
    app, logs = reading("finished", [*scenarios.logged()[:2], gone], scenarios.logged())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        title, text = await read(app, pilot)
        assert title == "text-7f3, all machines, all, broken off"
        assert "epoch 1, batch 20" in text
        assert "nas: logs: no answer for 15 s (6 reads it again)" in text
        await pilot.press("6")
        title, text = await read(app, pilot)
        assert title == "text-7f3, all machines, all, ended"
        assert "no answer" not in text
        assert len(logs.asked) == 2


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
        assert (await read(app, pilot))[0] == "text-7f3, all machines, all, ended"


async def test_where_there_is_no_run_there_is_said_to_be_none_once_the_machines_were_asked(reading: Reading) -> None:
    app, logs = reading("probed")
    async with app.run_test(size=(120, 40)) as pilot:
        assert (await read(app, pilot, "6"))[
            1
        ].strip() == "There is nothing to read. No run is going on. Press t to train."
        assert logs.asked == []
        assert ("list runs",) in app.intents.asked


async def test_logs_are_searched_paused_saved_and_shown_of_one_host_and_kind(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        await app.workers.wait_for_complete()
        await pilot.press("slash", *"zzz", "enter", "w", "escape")
        assert toasts(app) == ["There is nothing to save."]
        app.redraw()
        assert "Traceback (most recent call last):" in pane_text(app)
        assert "ValueError: labels out of range [red]7[/red]" in pane_text(app)
        await pilot.press("n", "n")
        assert pane_text(app).count("\n") == 3
        await pilot.press("slash", *"batch", "enter")
        await pilot.pause()
        assert "epoch 1, batch 20" in pane_text(app)
        assert "Traceback" not in pane_text(app)
        await pilot.press("escape", "f")
        app.main.pane.add(scenarios.log_line("mercer", "cuda:0", 1, "a line that comes"))
        app.redraw()
        assert "a line that comes" not in pane_text(app)
        await pilot.press("f", "w")
        await app.workers.wait_for_complete()
        assert "a line that comes" in pane_text(app)
        name, text = app.intents.asked[-1][1:]
        assert name == "text-7f3.log"
        assert "a line that comes" in text
        await pilot.press("1", "down", "l")
        await app.workers.wait_for_complete()
        assert ("logs", "text-7f3", "crosby") in app.intents.asked


async def test_hostile_lines_of_a_log_change_nothing_but_their_own(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("6")
        await app.workers.wait_for_complete()
        before = text_of(app, "status")
        for line in (
            "\x1b[2J\x1b]0;title\x07[b]x[/b]",
            "y" * 10_000_000,
            "\ud800\u202e\x00",
            "a\nb\tc",
            "e" + "\u0301" * 10_000,
        ):
            app.main.pane.add(scenarios.log_line("nas", "cpu", 0, line))
        app.redraw()
        await pilot.pause()
        assert text_of(app, "status") == before
        shown = pane_text(app)
        assert "[b]x[/b]" in shown
        assert not set(shown) & set("\x1b\x00\u202e\ud800\x07")
        assert max(map(len, shown.splitlines())) <= 80


def test_a_line_of_a_log_in_wide_characters_is_all_there_and_begins_where_others_do(scenarios) -> None:
    entries = [scenarios.log_line("mercer", "训练.out", 3.0, "梯" * 80), scenarios.log_line("nas", "cpu", 2.0, "x")]
    lines = [line.plain for line in log_lines(entries, view_of(scenarios.up()), 60)]
    assert max(map(cell_len, lines)) <= 60
    assert "".join(lines).count("梯") == 80
    assert len({cell_len(line[: line.index(first)]) for line, first in ((lines[0], "梯"), (lines[-1], "x"))}) == 1


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
