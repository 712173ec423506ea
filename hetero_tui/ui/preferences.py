"""The settings file of the app: colours and keys. What it may hold, and every mistake in it at once.

::

    theme = "light"          # dark, light, ansi (the terminal's own 16 colours); auto
    readonly = true          # no key changes anything on the machines
    bell = false             # no bell and no notification when a run ends or something needs a hand

    [keys]
    teardown = "ctrl+t"      # an action of the help screen, and the key for it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hetero_tui.errors import UsageError
from hetero_tui.text import meant
from hetero_tui.ui.keys import ADD, CHAOS, DEMO, EDIT, KEYS, clashes, code_of, remapped
from remote_agent.removed import why_removed

THEMES = ("auto", "dark", "light", "ansi")

_KNOWN = ("theme", "readonly", "bell", "keys")


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """How a user wants the app; ``codes`` gives actions other keys than their usual ones."""

    theme: str = "auto"
    readonly: bool = False
    bell: bool = True
    codes: Mapping[str, str] = field(default_factory=dict)


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
    given = document.get("keys", {})
    codes: dict[str, str] = {}
    if isinstance(given, Mapping):
        actions = [key.action for key in (*KEYS, EDIT, DEMO)]
        for action, code in given.items():
            if action not in actions:
                mistakes.append(f"keys.{action}: no such action{_near(str(action), actions)}")
            elif not isinstance(code, str) or (known := code_of(code)) is None:
                mistakes.append(f'keys.{action}: should be a key such as "T", "%", "f5" or "ctrl+t", not {code!r}')
            else:
                codes[str(action)] = known
    else:
        mistakes.append("keys: should be a table, [keys]")
    with_machines = (*KEYS, CHAOS)
    without = (*(key for key in with_machines if key.action not in ("add", "edit", "drain")), ADD, EDIT, DEMO)
    said = [clash for keys in (with_machines, without) for clash in clashes(remapped(keys, codes))]
    mistakes += [f"keys: {clash}" for clash in dict.fromkeys(said)]
    if mistakes:
        raise UsageError(f"{where}: {'; '.join(mistakes)}", step="settings")
    return Preferences(
        theme=str(theme),
        readonly=bool(document.get("readonly")),
        bell=bool(document.get("bell", True)),
        codes=codes,
    )


def _near(word: str, valid: Sequence[str]) -> str:
    return meant(word, valid) or f"; there are: {', '.join(valid)}"
