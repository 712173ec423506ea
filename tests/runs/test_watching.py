"""What is followed ends with the loss of its head, and not before all that came was passed on."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from hetero_tui import deadlines
from hetero_tui.errors import HeadGone
from hetero_tui.runs import watching
from hetero_tui.runs.watching import KEPT, Seen, head_loss, until_lost
from hetero_tui.text import HostText
from remote_agent.protocol import HeadReport


async def numbers(count: int, *, for_ever: bool, closed: list[str]) -> AsyncGenerator[int]:
    try:
        for number in range(count):
            yield number
        if for_ever:
            await asyncio.Event().wait()
    finally:
        closed.append("closed")


async def test_the_loss_of_the_head_ends_what_waits_for_it() -> None:
    seen: list[int] = []
    closed: list[str] = []
    told = asyncio.Event()

    async def loss() -> str:
        await told.wait()
        return "no answer"

    async def look() -> None:
        async for number in until_lost(numbers(3, for_ever=True, closed=closed), watch):
            seen.append(number)
            if number == 2:
                told.set()

    watch = asyncio.create_task(loss())
    with pytest.raises(HeadGone, match="no answer"):
        await asyncio.wait_for(look(), 10)
    assert seen == [0, 1, 2]
    assert closed == ["closed"]


class Fleet:
    """A head that answers as ``answers`` says, look after look, and one host that says whether it reaches it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: list[bool], *, reached: bool = False) -> None:
        self.answers, self.reached, self.asked = answers, reached, 0
        self.called, self.looked = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(watching, "_answers", self._answers)
        monkeypatch.setattr(watching, "witnesses", self._witnesses)
        monkeypatch.setattr(deadlines, "HEAD_ASKED_AFTER", 0.01)
        monkeypatch.setattr(deadlines, "HEAD_LOOK_EVERY", 0.0)
        monkeypatch.setattr(deadlines, "HEAD_LOST_AFTER", 0.0)

    async def _answers(self, _: Any) -> bool:
        if not self.answers:  # all were looked at
            self.looked.set()
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        await self.called.wait()  # later than when the others are asked
        return answer

    async def _witnesses(self, *_: Any) -> dict[str, HeadReport | None]:
        self.asked += 1
        self.called.set()
        return {"b": HeadReport(answers=self.reached, silence="" if self.reached else "no answer", epoch=1)}


async def test_a_silent_head_is_asked_after_before_its_time_to_answer_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch, [False])
    why = await asyncio.wait_for(head_loss("lab", {"a": None, "b": None}, "a"), 10)  # type: ignore[dict-item]
    assert why == "it answers neither the laptop nor the other hosts (b: no answer)"
    assert fleet.asked == 1


@pytest.mark.parametrize(("answer", "reached"), [(True, False), (False, True)])
async def test_a_head_that_anyone_reaches_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, answer: bool, reached: bool
) -> None:
    fleet = Fleet(monkeypatch, [answer] * 3, reached=reached)
    watch = asyncio.create_task(head_loss("lab", {"a": None, "b": None}, "a"))  # type: ignore[dict-item]
    await asyncio.wait_for(fleet.looked.wait(), 10)
    assert not watch.done()
    watch.cancel()


def test_what_was_seen_is_given_back_as_it_stood_from_the_last_gap_on() -> None:
    seen = Seen()
    for seq in (1, 2, 2, 3):
        seen.add(HostText(f"line {seq}"), seq)
    assert (seen.last, seen.lines()) == (3, b"line 1\nline 2\nline 3\n")
    assert [seen.lines(after=seq) for seq in (1, 3, 9)] == [b"line 2\nline 3\n", b"", b""]
    seen.add(HostText("line 5"), 5)
    assert [seen.lines(after=seq) for seq in (0, 3, 4)] == [b"", b"", b"line 5\n"]


def test_what_was_seen_is_compared_with_what_the_history_is_now() -> None:
    seen = Seen()
    for seq in (1, 2, 3):
        seen.add(HostText(f"line {seq}"), seq)
    assert [seen.same(HostText(f"line {seq}"), seq) for seq in (1, 2)] == [True, True]
    assert not seen.same(HostText("another"), 3)
    assert not seen.same(HostText("line 4"), 4)
    seen.cut(2)
    seen.add(HostText("another"), 3)
    assert (seen.last, seen.lines()) == (3, b"line 1\nline 2\nanother\n")


def test_of_a_long_run_only_the_newest_events_are_kept() -> None:
    seen = Seen()
    for seq in range(1, KEPT + 3):
        seen.add(HostText(f"line {seq}"), seq)
    assert seen.lines(after=1) == b""
    assert seen.lines(after=2).count(b"\n") == KEPT
    assert seen.lines(after=KEPT) == f"line {KEPT + 1}\nline {KEPT + 2}\n".encode()
    assert seen.same(HostText("line 1"), 1)
    assert not seen.same(HostText("another"), KEPT)
