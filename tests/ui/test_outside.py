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


async def test_what_ssh_says_when_it_fails_is_said_by_the_app_which_is_drawn_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: App[None] = App()
    monkeypatch.setattr(app, "suspend", nullcontext)
    ssh = tmp_path / "ssh"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    async def ended(script: str) -> str:
        ssh.write_text(f"#!/bin/sh\n{script}\n")
        ssh.chmod(0o700)
        return await outside.run(app, ["ssh", "nas"])

    refused = "me@nas: Permission denied (publickey)."
    assert await ended(f"echo hello >&2; printf '\\033[31m{refused}\\n' >&2; exit 255") == refused
    told = "echo no terminal here >&2; echo Connection to 127.0.0.4 closed. >&2; exit 255"
    assert await ended(told) == "no terminal here"
    assert await ended("echo Connection to nas closed. >&2; exit 1") == "", "the user's last command failed, not ssh"
