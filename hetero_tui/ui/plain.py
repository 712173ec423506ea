"""ASCII for the signs of the screens: one character for one, so that no column moves."""

from __future__ import annotations

import io
from typing import TextIO

_SIGNS = {
    "●": "*", "◉": "@", "◐": "%", "◑": "%", "○": "o", "◇": "o", "◌": ".", "◔": "~", "□": "-", "■": "#",
    "✔": "+", "✕": "x", "▲": "!", "·": ".", "›": ">", "…": ".", "×": "x", "→": ">", "–": "-", "“": '"', "”": '"',
    "━": "=", "╸": "-", "─": "-", "█": "#", "▓": "=", "▒": "-", "░": ".", "│": "|", "°": " ",
    "╭": "+", "╮": "+", "╰": "+", "╯": "+", "↑": "^", "↓": "v", "┊": ":",
    "▁": "_", "▂": "_", "▃": "-", "▄": "-", "▅": "=", "▆": "=", "▇": "#",
}  # fmt: skip


def _dots(bits: int) -> str:
    """A braille cell by the height of its highest dot: an apostrophe, a dash, or a point at the bottom."""
    if bits & (0x01 | 0x08):
        return "'"
    return "-" if bits & (0x02 | 0x10 | 0x04 | 0x20) else "." if bits else " "


_TABLE = str.maketrans(_SIGNS | {chr(0x2800 + bits): _dots(bits) for bits in range(256)})


def to_ascii(text: str) -> str:
    """``text`` with ASCII for our own signs; names and messages from elsewhere stay as they are."""
    return text.translate(_TABLE)


def has_signs(terminal: TextIO | None) -> bool:
    """Whether the encoding of a terminal has our signs.

    If it lacks them, a character that it lacks is written as one ``?`` from now on: Python's escape sequences for it
    would move all that stands behind it.
    """
    try:
        "".join(_SIGNS).encode(getattr(terminal, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        if isinstance(terminal, io.TextIOWrapper):
            terminal.reconfigure(errors="replace")
        return False
    return True
