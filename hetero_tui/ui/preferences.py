"""The settings file of the app: colours, bell. What it may hold, and every mistake in it at once.

::

    theme = "light"          # dark, light, ansi (the terminal's own 16 colours); auto
    readonly = true          # no key changes anything on the machines
    bell = false             # no bell and no notification when a run ends or something needs a hand
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_tui.errors import UsageError
from hetero_tui.text import meant
from remote_agent.removed import why_removed

THEMES = ("auto", "dark", "light", "ansi")

_KNOWN = ("theme", "readonly", "bell")


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """How a user wants the app."""

    theme: str = "auto"
    readonly: bool = False
    bell: bool = True


def read_preferences(document: Mapping[str, object], where: str) -> Preferences:
    """The preferences in a settings file that was parsed.

    Args:
        document: its values.
        where: its path, for messages.

    Raises:
        UsageError: with every mistake.
    """
    unknown = [key for key in document if key not in _KNOWN]
    mistakes = [
        why_removed(f"{key} in settings.toml") or f"{key}: no such setting{_near(key, _KNOWN)}" for key in unknown
    ]
    theme = document.get("theme", "auto")
    if theme not in THEMES:
        mistakes.append(f"theme: {theme!r} is not one of {', '.join(THEMES)}")
    mistakes += [
        f"{name}: should be true or false, not {document[name]!r}"
        for name in ("readonly", "bell")
        if not isinstance(document.get(name, False), bool)
    ]
    if mistakes:
        raise UsageError(f"{where}: {'; '.join(mistakes)}", step="settings")
    return Preferences(
        theme=str(theme),
        readonly=bool(document.get("readonly")),
        bell=bool(document.get("bell", True)),
    )


def _near(word: str, valid: Sequence[str]) -> str:
    return meant(word, valid) or f"; there are: {', '.join(valid)}"
