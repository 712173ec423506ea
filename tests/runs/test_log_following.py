"""The logs of a run are followed from one head to the next, and each line comes once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest

from hetero_tui import deadlines
from hetero_tui.errors import HostError, RunError, Unreachable
from hetero_tui.intents import LoggedLine
from hetero_tui.runs.log_following import Place, follow_logs
from remote_agent.protocol import LogLine, RunSummary
from remote_agent.states import RunState

SUMMARY = RunSummary(id="text-1", job="text", state=RunState.RUNNING, step=5, loss=1.0, started=1.0)
PATIENCE = 20.0


def ignore(_: HostError) -> None:
    """The test looks at the lines."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "HEAD_LOOK_EVERY", 0.0)
    monkeypatch.setattr(deadlines, "RUN_RESUMED", 0.0)


async def said(answers: list[RunState | str], *, is_lost: bool) -> list[str]:
    """What is followed of a run on ``one``, whose hosts give these answers, by state or by head."""

    async def lines(place: Place, lost: Callable[[HostError], None]) -> AsyncGenerator[LoggedLine]:
        yield LoggedLine(place[0], LogLine(time=1.0, process="coordinator", line=f"on {place[0]}"))
        if place[0] == "one" and is_lost:
            lost(Unreachable("one", "no answer", step="logs"))
            await asyncio.Event().wait()

    async def ask() -> Place:
        answer = answers.pop(0)
        if answer == "nobody":
            raise RunError("no run 'text-1' on the hosts that answer")
        if isinstance(answer, RunState):
            return "one", replace(SUMMARY, state=answer)
        return answer, SUMMARY

    async with asyncio.timeout(PATIENCE):
        return [entry.line.line async for entry in follow_logs(("one", SUMMARY), lines, ask, ignore)]


async def test_after_the_head_is_lost_the_next_one_is_followed() -> None:
    answers = ["nobody", RunState.LOST, "two", RunState.FINISHED]
    assert await said(answers, is_lost=True) == ["on one", "on two"]


async def test_a_coordinator_that_is_started_again_is_followed_and_one_that_is_not_ends_it() -> None:
    assert await said([RunState.RUNNING, RunState.FINISHED], is_lost=False) == ["on one", "on one"]
    assert await said([RunState.LOST], is_lost=False) == ["on one"]
    assert await said(["nobody"], is_lost=False) == ["on one"]
