"""Scenarios for all tests of the screens, and an app over one that stands still: same clock, same time zone."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hetero_tui.state import State
from hetero_tui.ui.app import HeteroApp
from tests.ui import scenarios


@pytest.fixture(scope="session", name="scenarios")
def _scenarios() -> ModuleType:
    return scenarios


@pytest.fixture
def open_app(scenarios: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., HeteroApp]:
    for variable in ("COLORFGBG", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def build(state: State, *, on_start: tuple[str, ...] = (), session: dict[str, Any] | None = None, **options: Any):
        intents = scenarios.FixedIntents(state, **(session or {}))
        return HeteroApp(intents, on_start=on_start, now=lambda: scenarios.NOW, zone=UTC, **options)

    return build


@pytest.fixture
def snapshot_of(request: pytest.FixtureRequest) -> Callable[[HeteroApp, str], None]:
    """Compares an app's screen with its accepted picture; with ``--snapshot-update`` it becomes that."""
    folder = Path(__file__).parent / "__snapshots__"

    def compare(app: HeteroApp, name: str) -> None:
        taken = re.sub(r"terminal-\d+", "terminal", app.export_screenshot())
        path = folder / f"{name}.svg"
        if request.config.getoption("update_snapshots", default=False):
            folder.mkdir(exist_ok=True)
            path.write_text(taken, encoding="utf-8")
            return
        if not path.is_file() or path.read_text(encoding="utf-8") != taken:
            seen = Path(tempfile.gettempdir()) / f"{name}.svg"
            seen.write_text(taken, encoding="utf-8")
            pytest.fail(f"{name} does not look as it was accepted: {seen}, beside {path}; --snapshot-update accepts it")

    return compare
