"""`hetero-tui web` answers the browser that opened its link, and nobody else."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from hetero_tui import deadlines
from hetero_tui.web import COOKIE, GuardedServer, app_command, listen

HANGS = "print('__GANGLION__', flush=True); import time; time.sleep(600)"
"""A program that is drawn by nobody and never quits."""


@asynccontextmanager
async def served(inventory: Path, command: list[str] | None = None) -> AsyncIterator[tuple[str, str]]:
    """The page's address, and the link."""
    said = asyncio.Queue[str]()
    with listen(0) as listening:
        command = command or app_command(str(inventory), accept_new_host_keys=False, readonly=True)
        serving = asyncio.create_task(GuardedServer(command, listening).run(said.put_nowait))
        try:
            link = await asyncio.wait_for(said.get(), 20)
            yield link.partition("/open")[0], link
        finally:
            serving.cancel()
            await asyncio.wait({serving})


async def status(session: aiohttp.ClientSession, url: str, **headers: str) -> int:
    async with session.get(url, headers=headers, allow_redirects=False) as answer:
        return answer.status


def browser() -> aiohttp.ClientSession:
    """One of its own, with cookies for addresses such as 127.0.0.1."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=aiohttp.ClientTimeout(total=20))


async def test_without_the_link_nothing_is_answered(tmp_path: Path) -> None:
    async with served(tmp_path / "inventory.yaml") as (place, link), browser() as stranger:
        stranger.cookie_jar.update_cookies({COOKIE: "guessed"})
        for path in (
            "/",
            "/ws",
            "/static/css/xterm.css",
            "/download/x",
            "/open",
            "/open?token=",
            "/open?token=guessed",
        ):
            assert await status(stranger, place + path) == 403, path
        assert await status(stranger, link.replace("token=", "token=%C3%A4")) == 403


async def test_the_link_works_once_and_for_its_own_page_alone(tmp_path: Path) -> None:
    async with served(tmp_path / "inventory.yaml") as (place, link), browser() as mine, browser() as other:
        assert await status(mine, link, Origin="http://elsewhere.example") == 403
        assert await status(mine, link, Host="elsewhere.example") == 403, "a name that leads here, of another's page"
        async with mine.get(link) as page:
            assert page.status == 200
            assert page.url.path == "/"
            text = await page.text()
            assert "hetero-tui" in text
            assert text.index("terminal.focus()") < text.index("</head>"), "keys are for the app from the beginning"
            assert set(re.findall(r'(?:href|src)="(\w+://[^/"]+)', text)) == {place}
        assert await status(mine, f"{place}/static/css/xterm.css") == 200
        assert await status(mine, f"{place}/favicon.ico") == 204
        assert await status(mine, place, Host="elsewhere.example") == 403
        assert await status(mine, f"{place}/ws", Origin="http://elsewhere.example") == 403
        assert await status(other, link) == 403
        assert await status(other, place) == 403


async def test_the_page_runs_the_app_which_ends_with_it(tmp_path: Path) -> None:
    async with served(tmp_path / "inventory.yaml") as (place, link), browser() as mine:
        await status(mine, link)
        async with asyncio.timeout(60), mine.ws_connect(f"{place}/ws?width=100&height=30") as page:
            drawn = b""
            while b"inventory.yaml" not in drawn:
                message = await page.receive()
                assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), drawn[-2000:]
                drawn += message.data if isinstance(message.data, bytes) else b""
            children = apps(str(tmp_path))
            assert len(children) == 1
    assert apps(str(tmp_path)) == []


async def test_a_page_that_does_not_quit_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "APP_QUIT", 0.2)
    async with asyncio.timeout(60), served(tmp_path, [sys.executable, "-c", HANGS]) as (place, link), browser() as mine:
        await status(mine, link)
        async with mine.ws_connect(f"{place}/ws"):
            while not apps(HANGS):
                await asyncio.sleep(0.05)
    assert apps(HANGS) == []


def apps(word: str) -> list[psutil.Process]:
    """Children of this process that ``word`` stands in the command of."""
    return [one for one in psutil.Process().children() if any(word in part for part in one.cmdline())]
