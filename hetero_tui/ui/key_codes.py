"""Keys by name: as the settings file may give them, as Textual names them, and as they are printed."""

from __future__ import annotations

import string
import unicodedata

_SHORTER = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}
"""Textual's names for characters that Unicode names in another way."""


def _name(character: str) -> str:
    name = unicodedata.name(character).lower().replace("-", "_").replace(" ", "_")
    return _SHORTER.get(name, name)


CHARACTERS = {_name(character): character for character in string.punctuation}
"""The characters by Textual's names for them."""

TAKEN = {
    **dict.fromkeys(("q", "ctrl+q", "ctrl+c"), "leaves the app"),
    "ctrl+p": "opens the commands",
    "escape": "shows all lines again, and closes dialogs",
    **dict.fromkeys(("tab", "shift+tab", "left", "right"), "moves between the parts of the screen"),
    **dict.fromkeys(("up", "down", "pageup", "pagedown", "home", "end"), "moves the mark"),
}
"""Keys that keep their meaning, and which."""

_NAMED = {"enter", "space", "backspace", "insert", "delete", *TAKEN, *(f"f{number}" for number in range(1, 25))}
_SAME = {"ctrl+i": "tab", "ctrl+m": "enter"}
"""Keys that a terminal can't tell from others."""


def code_of(typed: str) -> str | None:
    """Textual's name for the key that ``typed`` means, such as ``%``, ``T``, ``F5`` or ``Ctrl+T``; None: no key."""
    if typed in CHARACTERS or (len(typed) == 1 and typed.isalnum()):
        return typed
    if len(typed) == 1:
        return _name(typed) if typed in string.punctuation else None
    modifier, plus, key = typed.lower().rpartition("+")
    if not plus:
        return key if key in _NAMED else None
    base = key if len(key) == 1 and key.isalnum() else code_of(key)
    if base is None or modifier not in ("ctrl", "alt", "shift"):
        return None
    if modifier == "shift" and base not in _NAMED:  # terminals send the character that it gives
        return base.upper() if len(base) == 1 and base.isalpha() else None
    code = f"{modifier}+{base}"
    return _SAME.get(code, code)
