"""Scenarios for all tests of the screens, and an app over one that stands still: same clock, same time zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from types import ModuleType
from typing import Any

import pytest
from textual import _wait

from hetero_tui.state import State
from hetero_tui.ui.app import HeteroApp
from tests.ui import scenarios


@pytest.fixture(scope="session", autouse=True)
def short_looks() -> None:
    """A pilot looks twice as often whether an app is idle, and still not before its next frame (1/120 s)."""
    _wait.SLEEP_GRANULARITY, _wait.SLEEP_IDLE = 0.01, 0.01 / 20


@pytest.fixture(scope="session", name="scenarios")
def _scenarios() -> ModuleType:
    return scenarios


@pytest.fixture
def open_app(scenarios: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., HeteroApp]:
    """An app over a state; starting one takes most of a test's time, so a test shows it several states."""
    for variable in ("COLORFGBG", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def build(state: State, *, on_start: tuple[str, ...] = (), session: dict[str, Any] | None = None, **options: Any):
        intents = scenarios.FixedIntents(state, **(session or {}))
        return HeteroApp(intents, on_start=on_start, now=lambda: scenarios.NOW, zone=UTC, **options)

    return build
