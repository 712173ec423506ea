"""What is followed ends with the loss of its head, and not before all that came was passed on."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from hetero_tui.errors import HeadGone
from hetero_tui.runs.seen import KEPT, Seen
from hetero_tui.runs.watching import until_lost
from hetero_tui.text import HostText


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


async def test_what_ends_by_itself_ends_without_an_error() -> None:
    watch = asyncio.create_task(asyncio.Event().wait())
    seen = [number async for number in until_lost(numbers(3, for_ever=False, closed=[]), watch)]  # type: ignore[arg-type]
    watch.cancel()
    assert seen == [0, 1, 2]


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


def test_of_a_run_that_was_attached_to_late_what_is_older_is_not_kept() -> None:
    seen = Seen()
    for seq in (1, 500, 1000, 1001):  # its history in few steps
        seen.add(HostText(f"line {seq}"), seq)
    assert seen.lines(after=1000) == b"line 1001\n"
    assert seen.lines(after=998) == b""
    assert all(seen.same(HostText(f"line {seq}"), seq) for seq in (1, 900, 1000, 1001))
    assert not seen.same(HostText("line 1000"), 1001)
    seen.cut(1000)
    assert (seen.last, seen.lines(after=999)) == (1000, b"line 1000\n")
