"""What the app and the commands share: an event loop, an end in good order, an exit code; and opening the app."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_tui.errors import HeteroTuiError

if TYPE_CHECKING:
    from hetero_tui.session import Session

DONE, FAILED, USAGE, PARTLY, LEFT_BEHIND, INTERRUPTED = 0, 1, 2, 3, 4, 130
"""Exit codes; an API for scripts."""

INVENTORY = "inventory.yaml"
INVENTORY_VARIABLE = "HETERO_TUI_INVENTORY"


def open_app(path: Path, *, accept_new_host_keys: bool = False) -> int:
    """Open the terminal app on an inventory, until the user leaves it; the answer is the exit code."""
    if not on_a_terminal():
        _say(
            "hetero-tui: the app needs a terminal for stdin, stdout and stderr; "
            "`hetero-tui --help` lists the commands for scripts"
        )
        return USAGE
    opened: list[Session] = []

    async def open_session() -> Session:
        # After the first frame: what a session needs takes longer to import than the screens themselves.
        from hetero_tui.inventory.file import load
        from hetero_tui.session import Session

        opened.append(Session(load(path), path, accept_new_host_keys=accept_new_host_keys))
        return opened[0]

    async def whole() -> int:
        from hetero_tui.ui.app import HeteroApp

        app = HeteroApp(open_session)
        try:
            await app.run_async()
        finally:
            for session in opened:
                await session.close()
        if app.opening_error is not None:
            raise app.opening_error
        return app.return_code or DONE

    return run_to_end(whole)


def on_a_terminal() -> bool:
    """Whether the app can be drawn and has keys; Textual draws on stderr."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def run_to_end(
    work: Callable[[], Coroutine[Any, Any, int]],
    say: Callable[[str], None] | None = None,
    *,
    interrupted: str = "interrupted; what runs on the hosts goes on (`hetero-tui status`)",
) -> int:
    """Run ``work`` on an event loop of its own; errors become one clear line, signals a clean end."""
    say = say or _say

    async def guarded() -> int:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
        return await work()

    try:
        return asyncio.run(guarded())
    except HeteroTuiError as error:
        say(f"hetero-tui: {error}")
        return error.exit_code
    except (asyncio.CancelledError, KeyboardInterrupt):
        say(interrupted)
        return INTERRUPTED
    except BrokenPipeError:
        return FAILED


def _say(text: str) -> None:
    print(text, file=sys.stderr)
