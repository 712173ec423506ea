"""While another program has the terminal, the app's event loop goes on."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from textual.app import App

from hetero_tui.ui import outside

WAITS = "for i in $(seq 50); do test -e go && echo seen > said && exit 0; sleep 0.1; done"


async def test_all_else_goes_on_while_another_program_has_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell that is open for a while would else have every host fall silent, and lose what is under way."""
    monkeypatch.chdir(tmp_path)
    app: App[None] = App()
    monkeypatch.setattr(app, "suspend", nullcontext)  # a test has no terminal

    async def meanwhile() -> None:
        Path("go").touch()

    said, _ = await asyncio.gather(outside.run(app, ["sh", "-c", WAITS]), meanwhile())
    assert said == ""
    assert Path("said").read_text() == "seen\n"


async def test_an_editor_that_is_not_there_is_said_after_the_terminal_is_the_apps_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app: App[None] = App()
    left: list[Any] = []

    class Suspended:
        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: Any, *_: object) -> None:
            left.append(kind)

    monkeypatch.setattr(app, "suspend", Suspended)
    assert await outside.run(app, ["no-such-editor"]) == "no-such-editor: No such file or directory"
    assert left == [None], "an error would leave the terminal suspended"
