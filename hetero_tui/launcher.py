"""Runs the event loop of a command or the app, ends it in order, and returns the exit code; opens the app."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hetero_tui.errors import HeteroTuiError, UsageError

if TYPE_CHECKING:
    from hetero_tui.app_session import AppSession
    from hetero_tui.machines import Machines
    from hetero_tui.recording.replay import Replay
    from hetero_tui.ui.preferences import Preferences

T = TypeVar("T")

DONE, FAILED, USAGE, PARTLY, LEFT_BEHIND, INTERRUPTED = 0, 1, 2, 3, 4, 130
"""Exit codes; an API for scripts."""

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

RUNS_GO_ON = "interrupted; what runs on the hosts goes on (`hetero-tui status`)"
"""What most commands that are interrupted leave the user with."""

DEMO = -1
"""Instead of an exit code: the user asked for the demo."""

LOOK_EVERY = 1.0
"""Seconds between two looks whether the inventory has changed."""

INVENTORY = "inventory.yaml"
INVENTORY_VARIABLE = "HETERO_TUI_INVENTORY"


def open_app(path: Path, *, accept_new_host_keys: bool = False, readonly: bool = False) -> int:
    """Open the terminal app on an inventory, until the user leaves it; the answer is the exit code."""
    if not on_a_terminal():
        _say(
            "hetero-tui: the app needs a terminal that it can draw on for stdin, stdout and stderr; "
            "`hetero-tui --help` lists the commands for scripts"
        )
        return USAGE
    opened: list[AppSession] = []
    path = path.absolute()

    def machines() -> Machines:
        from hetero_tui.machines import Machines

        return Machines(path, accept_new_host_keys=accept_new_host_keys)

    async def whole() -> int:
        require_utf8()
        from hetero_tui.ui.app import HeteroApp

        preferences = read_settings(readonly=readonly)

        async def opener() -> AppSession:
            session = open_session(path, accept_new_host_keys=accept_new_host_keys, readonly=preferences.readonly)
            if opened:
                session.go_on_from(opened[-1].state)
            opened.append(session)
            session.record()
            return session

        app = HeteroApp(
            opener,
            changes=lambda: changes_of(path),
            inventory_path=str(path),
            machines=machines,
            preferences=preferences,
        )
        try:
            await app.run_async()
        finally:
            for session in opened:
                await session.close()
        if app.opening_error is not None:
            raise app.opening_error
        return DEMO if app.wants_demo else app.return_code or DONE

    return run_to_end(whole)


def open_session(path: Path, *, accept_new_host_keys: bool = False, readonly: bool = False) -> AppSession:
    """The app's session on an inventory; with ``readonly`` it changes nothing on the hosts by itself.

    The app opens it after its first frame: what a session needs takes longer to import than the screens themselves.
    """
    from hetero_tui.app_session import AppSession
    from hetero_tui.inventory.file import load

    session = AppSession(load(path), path, accept_new_host_keys=accept_new_host_keys)
    if readonly:
        session.only_show()
    return session


def read_settings(*, readonly: bool = False) -> Preferences:
    """The user's settings file, if there is one; ``readonly`` overrules it. Raises UsageError for mistakes."""
    import tomllib
    from dataclasses import replace

    from platformdirs import user_config_path

    from hetero_tui.ui.preferences import Preferences, read_preferences

    path = user_config_path("hetero-tui") / "settings.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Preferences(readonly=readonly)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read: {error}", step="settings") from error
    found = read_preferences(document, str(path))
    return replace(found, readonly=readonly or found.readonly)


async def changes_of(path: Path) -> AsyncIterator[None]:
    """Yields after each change of a file: written, made or removed. It is looked at once a second."""

    def look() -> tuple[int, int] | None:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    known = look()
    while True:
        await asyncio.sleep(LOOK_EVERY)
        now = look()
        if now != known:
            known = now
            yield


def open_replay(replay: Replay) -> int:
    """Open the terminal app on a recording; the answer is the exit code."""

    async def whole() -> int:
        require_utf8()
        from hetero_tui.ui.replaying import ReplayApp

        app = ReplayApp(replay)
        await app.run_async()
        return app.return_code or DONE

    return run_to_end(whole)


def require_utf8() -> None:
    """Raise UsageError if the terminal, on whose stderr Textual draws, can't show the app's signs."""
    encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"
    if "TEXTUAL_DRIVER" not in os.environ and codecs.lookup(encoding).name != "utf-8":
        raise UsageError(
            f"the app needs a terminal with UTF-8, and this one has {encoding}",
            step="app",
            hint="set LC_ALL=C.UTF-8, or use the commands (`hetero-tui --help`)",
        )


def on_a_terminal() -> bool:
    """Whether the app can be drawn and has keys; Textual draws on stderr, or as ``hetero-tui web`` tells it."""
    if "TEXTUAL_DRIVER" in os.environ:
        return True
    return os.environ.get("TERM") != "dumb" and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


class _Threads(ThreadPoolExecutor):
    """Threads that nothing waits for at the end: a name that is being resolved, or a command of ssh_config."""

    def submit(self, work: Callable[..., T], /, *words: Any, **named: Any) -> Future[T]:
        future: Future[T] = Future()

        def whole() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the command was interrupted; from here on it can't be cancelled, and may have a result
            try:
                result = work(*words, **named)
            except Exception as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=whole, daemon=True).start()
        return future


def run_to_end(
    work: Callable[[], Coroutine[Any, Any, int]],
    say: Callable[[str], None] | None = None,
    *,
    interrupted: str = RUNS_GO_ON,
) -> int:
    """Run ``work`` on an event loop of its own; errors become one clear line, signals a clean end."""
    say = say or _say

    async def guarded() -> int:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        loop.set_default_executor(_Threads())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
        return await work()

    try:
        code = asyncio.run(guarded())
        sys.stdout.flush()
    except HeteroTuiError as error:
        say(f"hetero-tui: {error}")
        return error.exit_code
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        say(str(error) or interrupted)
        return INTERRUPTED
    except BrokenPipeError:
        return FAILED
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to be written is not tried again at the end
        with contextlib.suppress(OSError):
            say(f"hetero-tui: the output can't be written: {error.strerror}")
        return FAILED
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr)
