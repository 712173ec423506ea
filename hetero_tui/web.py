"""The app in a browser: textual-serve on loopback, which asks nobody for a password, behind a link that works once.

The link hands a cookie to the browser that opens it first; nothing else is answered, not even the page's own files.
Requests for another name than this address are refused, since a page from elsewhere may have its name lead here (DNS
rebinding), and so are those that another page sends. Each page runs an app of its own, as each terminal does.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server

from hetero_tui import deadlines
from hetero_tui.errors import UsageError

ADDRESS = "127.0.0.1"
OPEN = "/open"
COOKIE = "hetero-tui"

_REFUSED = "This page is for the browser that opened the link of `hetero-tui web`, which works once: start it again.\n"

_FROM_ELSEWHERE = re.compile(r'<link\s[^>]*href="https?://(?!127\.0\.0\.1[:/])[^>]*>')

_FOCUS = """<script>
new MutationObserver((_, observer) => {
  const terminal = document.querySelector(".xterm-helper-textarea");
  if (terminal) { observer.disconnect(); terminal.focus(); }
}).observe(document, {childList: true, subtree: true});
</script></head>"""
"""Has the page take keys from its beginning: textual-serve's does only once it was clicked on."""

_TERMINAL = ("env", "-u", "COLORFGBG", "TERM=xterm-256color", "COLORTERM=truecolor")
"""What a page's terminal is, whatever the one is that this was started in."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard:
    """Lets the browser through that was the first to open the link; ``place``: ``host:port`` that is served."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._token, self._session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._is_open = False

    @property
    def link(self) -> str:
        """What the user opens."""
        return f"http://{self._place}{OPEN}?token={self._token}"

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer the one who may, 403 to all others."""
        is_here = request.headers.get("Host") == self._place
        is_own = request.headers.get("Origin", f"http://{self._place}") == f"http://{self._place}"
        if not (is_here and is_own):
            return web.Response(status=403, text=_REFUSED)
        if _same(request.cookies.get(COOKIE), self._session):
            return await handler(request)
        if request.path != OPEN or self._is_open or not _same(request.query.get("token"), self._token):
            return web.Response(status=403, text=_REFUSED)
        self._is_open = True
        answer = web.Response(status=302, headers={"Location": "/", "Referrer-Policy": "no-referrer"})
        answer.set_cookie(COOKIE, self._session, httponly=True, samesite="Strict")
        return answer


def _same(given: str | None, secret: str) -> bool:
    return given is not None and secrets.compare_digest(given.encode(), secret.encode())


class GuardedServer(Server):
    """Serves ``command``'s app at ``listening``, which listens already."""

    def __init__(self, command: Sequence[str], listening: socket.socket) -> None:
        host, port = listening.getsockname()[:2]
        super().__init__(f"exec {shlex.join((*_TERMINAL, *command))}", host=host, port=port, title="hetero-tui")
        self._listening = listening
        self.guard = Guard(f"{host}:{port}")

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self.guard.check)
        app.router.add_get("/favicon.ico", self.handle_icon)
        return app

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        """textual-serve's page, with the focus, and without what it has browsers fetch from other servers."""
        page = await super().handle_index(request)
        assert isinstance(page, web.Response), "a template is answered whole"
        page.text = _FROM_ELSEWHERE.sub("", page.text or "").replace("</head>", _FOCUS, 1)
        return page

    async def handle_icon(self, request: web.Request) -> web.Response:
        """There is none, which is no error."""
        return web.Response(status=204)

    async def _process_messages(self, websocket: web.WebSocketResponse, app_service: AppService) -> None:
        """The page's app ends with the page: textual-serve asks it to, and would wait without end or not at all."""
        try:
            await super()._process_messages(websocket, app_service)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadlines.APP_QUIT):
                    await app_service.stop()
            if (process := app_service._process) is not None:  # noqa: SLF001 - it has no public name, and no deadline
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def on_startup(self, app: web.Application) -> None:
        """It is said elsewhere."""

    async def run(self, say: Callable[[str], None]) -> None:
        """Tell the link, and serve until this is cancelled: then all apps end, too."""
        runner = web.AppRunner(await self._make_app(), access_log=None)
        await runner.setup()
        try:
            await web.SockSite(runner, self._listening).start()
            say(self.guard.link)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


def listen(port: int) -> socket.socket:
    """Listen on loopback, 0: on any free port; raises UsageError if the port is taken."""
    try:
        return socket.create_server((ADDRESS, port))
    except OSError as error:
        cause = f"port {port} on this computer can't be listened on: {error.strerror}"
        raise UsageError(cause, step="web", hint="name another one with --port") from None


def app_command(inventory: str, *, accept_new_host_keys: bool, readonly: bool) -> list[str]:
    """What a page runs: the app, as this command was started."""
    flags = ["--accept-new-host-keys"] * accept_new_host_keys + ["--readonly"] * readonly
    return [sys.executable, "-m", "hetero_tui", "--inventory", inventory, *flags]
