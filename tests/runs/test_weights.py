"""Exported weights do not mix with those of another export."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hetero_tui.errors import UsageError
from hetero_tui.fleet import agent
from hetero_tui.inventory import Host, Inventory
from hetero_tui.runs.weights import _NAME, SINGLE, _bring, refuse_kind, refuse_others
from hetero_tui.text import HostText
from hetero_tui.transport import open_transport
from remote_agent.protocol import Exported

NAMES = ("config.json", "model.safetensors")


def test_a_folder_with_files_of_another_export_is_refused(tmp_path: Path) -> None:
    refuse_others(tmp_path / "new", NAMES)
    refuse_others(tmp_path, NAMES)
    for name in (*NAMES, ".model.safetensors.part"):
        (tmp_path / name).touch()
    refuse_others(tmp_path, NAMES)  # the same export once more
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(UsageError, match=r"not of this export, such as adapter_config\.json") as error:
        refuse_others(tmp_path, NAMES)
    assert "--output" in error.value.hint


@pytest.mark.parametrize("form", ["safetensors", "pt", "hf", "peft", "merged"])
def test_a_file_in_a_folders_place_is_refused_and_so_is_a_folder_in_a_files(tmp_path: Path, form: str) -> None:
    (file := tmp_path / "file").touch()
    (folder := tmp_path / "folder").mkdir()
    wrong, right = (folder, file) if form in SINGLE else (file, folder)
    with pytest.raises(UsageError, match=f"--format {form} is ") as error:
        refuse_kind(wrong, form)
    assert "--output" in error.value.hint
    refuse_kind(right, form)
    refuse_kind(tmp_path / "new", form)


@pytest.mark.parametrize("form", ["pt", "hf"])
def test_a_place_below_a_file_is_refused_before_the_head_makes_the_export(tmp_path: Path, form: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file"):
        refuse_kind(tmp_path / "file/new/weights", form)


class Gone(Exception):
    """The command that exports was ended."""


def lines_of(step: int, *, ends_before: str = "") -> Callable[..., Any]:
    """What follows a file of an export at a step: its one line, or the end of the command that reads it."""

    @asynccontextmanager
    async def follow(*words: str, step: str = "") -> AsyncIterator[AsyncIterator[HostText]]:
        async def lines() -> AsyncIterator[HostText]:
            if words[-1] == ends_before:
                raise Gone
            yield HostText(base64.b64encode(b"%d" % at).decode())

        yield lines()

    at = step
    return follow


async def test_the_files_of_two_exports_to_one_folder_are_all_of_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = open_transport(Host(name="nas", connection="local"), Inventory(cluster="lab", hosts=()))
    found = Exported(files=dict.fromkeys(NAMES, 1), step=1, name="hf-1")
    first_is_here, second_is_done = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def slow(*words: str, step: str = "") -> AsyncIterator[AsyncIterator[HostText]]:
        if words[-1] == NAMES[-1]:
            first_is_here.set()
            await second_is_done.wait()
        async with lines_of(1)(*words) as lines:
            yield lines

    monkeypatch.setattr(agent, "follow", slow)
    one = asyncio.create_task(_bring(transport, "lab", (), found, tmp_path, is_single=False))
    await first_is_here.wait()
    monkeypatch.setattr(agent, "follow", lines_of(2))
    await _bring(transport, "lab", (), found, tmp_path, is_single=False)
    assert {path.read_text() for path in tmp_path.iterdir() if path.suffix != ".part"} == {"2"}
    second_is_done.set()
    await one
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(NAMES, "1")


def test_files_may_be_in_a_folder_of_the_export_and_nowhere_else(tmp_path: Path) -> None:
    names = (*NAMES, "additional_chat_templates/tools.jinja")
    assert all(map(_NAME.fullmatch, names))
    for name in ("../x", "/x", "a/../x", "a/b/c", "./x", "a//b", ".x", "a/.x"):
        assert not _NAME.fullmatch(name), name
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tools.jinja").touch()
    refuse_others(tmp_path, names)
    (tmp_path / "additional_chat_templates" / "old.jinja").touch()
    with pytest.raises(UsageError, match=r"such as additional_chat_templates/old\.jinja"):
        refuse_others(tmp_path, names)
