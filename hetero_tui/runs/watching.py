"""Notices that the head of a followed run is lost, from the laptop's own look and from the other hosts' words."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from itertools import islice
from typing import TypeVar

from hetero_tui import deadlines
from hetero_tui.errors import HeadGone, HostError
from hetero_tui.fleet import agent
from hetero_tui.planning.cluster import Verdict, judge_head, silence_in_words
from hetero_tui.text import HostText
from hetero_tui.transport import Transport
from remote_agent import protocol

KEPT = 2000
"""Lines that are kept: what is older has been copied to the other hosts long before."""


class Seen:
    """The last lines of one run's ``events.jsonl``, without a gap from the one after number :attr:`first`."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT)
        self.last = 0

    @property
    def first(self) -> int:
        """The number before that of the first line that is kept."""
        return self.last - len(self._lines)

    def add(self, line: HostText, seq: int) -> None:
        """Keep the next event; after a gap (a kind that this version skips, a history in few steps) it is the first."""
        if seq > self.last + 1:
            self._lines.clear()
        if seq > self.last:
            self._lines.append(line.raw)
            self.last = seq

    def lines(self, after: int = 0) -> bytes:
        """Those after number ``after``, as they stood in the file; none where there is a gap between."""
        if after < self.first:
            return b""
        return "".join(f"{line}\n" for line in islice(self._lines, after - self.first, None)).encode()

    def same(self, line: HostText, seq: int) -> bool:
        """Whether the event that was seen with this number is this one; what is older than those kept counts as it."""
        return seq <= self.first or (seq <= self.last and self._lines[seq - self.first - 1] == line.raw)

    def cut(self, seq: int) -> None:
        """Forget the events after number ``seq``."""
        while self._lines and self.last > seq:
            self._lines.pop()
            self.last -= 1


STEP = "watch head"
T = TypeVar("T")


async def until_lost(lines: AsyncGenerator[T], loss: asyncio.Task[str]) -> AsyncGenerator[T]:
    """What ``lines``, which is closed at the end, yields; raises HeadGone once ``loss`` is done."""
    async with aclosing(lines):
        while True:
            coming = asyncio.ensure_future(anext(lines))
            try:
                await asyncio.wait({coming, loss}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    raise HeadGone(loss.result(), step=STEP)
            finally:
                if not coming.done():
                    coming.cancel()
                    with suppress(asyncio.CancelledError, StopAsyncIteration):
                        await coming
            try:
                line = coming.result()
            except StopAsyncIteration:
                return
            yield line


async def head_loss(cluster: str, transports: Mapping[str, Transport], head: str) -> str:
    """Return once the head is lost: why. While it is only the laptop's own link that is broken, this goes on."""
    since: float | None = None
    while True:
        looked = time.monotonic()
        answer = asyncio.ensure_future(_answers(transports[head]))
        try:
            await asyncio.wait({answer}, timeout=deadlines.HEAD_ASKED_AFTER)
            words = {} if answer.done() and answer.result() else await witnesses(cluster, transports, head)
            answers = await answer
        finally:
            answer.cancel()
        verdict = Verdict.LIVES if answers else judge_head(words)
        if verdict is Verdict.LIVES:
            since = None
        else:
            since = looked if since is None else since
            if verdict is Verdict.LOST and time.monotonic() - since >= deadlines.HEAD_LOST_AFTER:
                return silence_in_words(words)
        await asyncio.sleep(deadlines.HEAD_LOOK_EVERY)


async def witnesses(
    cluster: str, transports: Mapping[str, Transport], head: str | None = None
) -> dict[str, protocol.HeadReport | None]:
    """What every host but ``head`` says of the head; None for one that does not answer."""
    others = [name for name in transports if name != head]
    reports = await asyncio.gather(*(_report(cluster, transports[name]) for name in others))
    return dict(zip(others, reports, strict=True))


async def _answers(transport: Transport) -> bool:
    try:
        async with asyncio.timeout(deadlines.HEAD_ANSWER):
            await transport.connect()
            await transport.round_trip()
    except (TimeoutError, HostError):
        return False
    return True


async def _report(cluster: str, transport: Transport) -> protocol.HeadReport | None:
    try:
        async with asyncio.timeout(deadlines.WITNESS):
            await transport.connect()
            done = await agent.call(
                transport, cluster, "host.node", "head", "--folder", agent.home_folder(cluster), step=STEP
            )
            if done is None:
                return None
            return agent.answer(protocol.HeadReport, transport.host, done, step=STEP)
    except (TimeoutError, HostError):
        return None
