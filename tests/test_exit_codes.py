"""Exit codes are promised to scripts: README.md and docs/commands.md say which, and each command keeps it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from hetero_tui import commanding, launcher, plan_command
from hetero_tui.cli import application
from hetero_tui.cli_runs import commanding as sweeping
from hetero_tui.session import Session
from tests.documents import ROOT

BOTH = "hosts:\n  laptop: {connection: local}\n  gone: {address: 127.0.0.1, port: 1}\n"
SILENT = "hosts:\n  gone: {address: 127.0.0.1, port: 1}\n"
NONE = "hosts:\n"

WITH_ALL = {
    "plan": ("digits",),
    "train": ("digits",),
    "resume": ("digits-1",),
    "sweep": ("digits", "--param", "lr=0.1,0.2"),
    "run": ("script.py",),
}
"""Commands that start something on all hosts, and their words."""


async def nothing_found(*_: object) -> Any:
    """A sweep that was stopped before a trial ended."""
    return SimpleNamespace(trials=())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What starts on hosts and is followed ends well, after all hosts were looked at."""
    did: list[str] = []

    async def look(session: Session, *_: object, **__: object) -> str:
        did.append("started")
        await session._fleet.look()
        return "digits-1"

    async def survey(session: Session, *_: object, **__: object) -> tuple[object, bool]:
        await look(session)
        return SimpleNamespace(), False

    async def followed(*_: object, **__: object) -> int:
        return launcher.DONE

    monkeypatch.setattr(Session, "launch", look)
    monkeypatch.setattr(Session, "resume_run", look)
    monkeypatch.setattr(Session, "sweep_result", nothing_found)
    monkeypatch.setattr(Session, "survey_of", survey)
    monkeypatch.setattr(plan_command, "_print", lambda *_, **__: launcher.DONE)
    for module in (commanding, sweeping):
        monkeypatch.setattr(module, "follow", followed)
        monkeypatch.setattr(module, "follow_script", followed)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("print(1)\n")
    return did


def done(hosts: str, *words: str) -> Any:
    Path("inventory.yaml").write_text(hosts)
    return CliRunner().invoke(application, list(words))


@pytest.mark.parametrize(
    ("command", "words"), [*WITH_ALL.items(), *dict.fromkeys(("probe", "status", "runs"), ()).items()]
)
def test_what_is_done_without_a_host_of_the_inventory_is_exit_code_3_and_the_host_is_named(
    started: list[str], command: str, words: tuple[str, ...]
) -> None:
    found = done(BOTH, command, *words)
    assert found.exit_code == launcher.PARTLY, found.output
    (*_, last) = [line for line in found.stderr.splitlines() if line.startswith("hetero-tui: ")]
    assert last.startswith("hetero-tui: gone: connect: "), found.stderr
    assert bool(started) is (command in WITH_ALL)


@pytest.mark.parametrize(("command", "words"), WITH_ALL.items())
def test_what_failed_is_exit_code_1_also_where_a_host_is_away(
    started: list[str], monkeypatch: pytest.MonkeyPatch, command: str, words: tuple[str, ...]
) -> None:
    async def failed(*_: object, **__: object) -> int:
        return launcher.FAILED

    for name in ("follow", "follow_script"):
        monkeypatch.setattr(commanding, name, failed)
    monkeypatch.setattr(plan_command, "_print", lambda *_, **__: launcher.FAILED)
    assert done(BOTH, command, *words).exit_code == launcher.FAILED


@pytest.mark.parametrize("command", ["probe", "status", "runs", "up", "bootstrap", "check"])
def test_where_no_host_answers_nothing_is_done(started: list[str], command: str) -> None:
    assert done(SILENT, command).exit_code == launcher.FAILED


EVERY: Mapping[str, tuple[str, ...]] = {
    **WITH_ALL,
    **dict.fromkeys(
        ("probe", "check", "bootstrap", "up", "attach", "logs", "report", "export", "serve", "metrics"), ()
    ),
    **dict.fromkeys(("drain", "undrain"), ("gone",)),
}


@pytest.mark.parametrize(("command", "words"), EVERY.items())
def test_an_inventory_without_hosts_is_exit_code_2_and_how_to_add_one_is_said(
    started: list[str], command: str, words: tuple[str, ...]
) -> None:
    found = done(NONE, command, *words)
    assert (found.exit_code, found.stdout) == (launcher.USAGE, ""), found.output
    assert "names no hosts yet -> `hetero-tui add me@HOST` adds one" in found.stderr
    assert not started


@pytest.mark.parametrize(("words", "code"), [(("status",), 0), (("runs",), 0), (("down", "--yes"), 0), (("stop",), 1)])
def test_what_former_hosts_may_still_run_is_looked_for_in_an_inventory_without_hosts(
    started: list[str], words: tuple[str, ...], code: int
) -> None:
    found = done(NONE, *words)
    assert found.exit_code == code, found.output
    assert "names no hosts yet" in found.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/commands.md"])
def test_the_pages_name_every_exit_code(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    said = re.search(r"[Ee]xit codes\**: (.*?130 interrupted)", text)
    assert said is not None
    assert [int(code) for code in re.findall(r"\b\d+\b", said[1])] == [0, 1, 2, 3, 4, 130]
