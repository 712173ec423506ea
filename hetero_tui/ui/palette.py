"""Our colours, by what they mean. One accent; amber for what to look at; red only for what needs a hand.

Every meaning is also a word and a glyph, so a terminal without colour loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Colours as ``#rrggbb`` or names of the terminal's own. ``push`` and ``pull`` are weaker forms of the accent."""

    name: str
    dark: bool
    background: str
    surface: str
    raised: str
    line: str
    foreground: str
    muted: str
    faint: str
    accent: str
    push: str
    pull: str
    warning: str
    bad: str


DARK = Palette(
    name="hetero-dark",
    dark=True,
    background="#0d1117",
    surface="#0d1117",
    raised="#18202b",
    line="#2f3946",
    foreground="#dbe2ea",
    muted="#8794a3",
    faint="#3d4856",
    accent="#4ad6c0",
    push="#3f9fd0",
    pull="#5b76b8",
    warning="#e8b04c",
    bad="#ff6b6b",
)

LIGHT = Palette(
    name="hetero-light",
    dark=False,
    background="#fbfbf9",
    surface="#fbfbf9",
    raised="#e9eeee",
    line="#c3cccd",
    foreground="#1d2730",
    muted="#5d6b76",
    faint="#c3cccd",
    accent="#00796b",
    push="#1f6fa3",
    pull="#6a7fb5",
    warning="#8f5d00",
    bad="#c62828",
)


ANSI = Palette(
    name="hetero-ansi",
    dark=True,
    background="default",
    surface="default",
    raised="default",
    line="bright_black",
    foreground="default",
    muted="bright_black",
    faint="bright_black",
    accent="cyan",
    push="blue",
    pull="magenta",
    warning="yellow",
    bad="red",
)
"""The terminal's own 16 colours, whatever they are there."""

PALETTES = (DARK, LIGHT, ANSI)


def preferred(environment: Mapping[str, str], theme: str = "auto") -> Palette:
    """The palette for a terminal.

    Args:
        environment: ``COLORFGBG`` tells a light background, ``TERM`` a terminal with no more than 16 colours.
        theme: ``dark``, ``light`` or ``ansi``; ``auto``: as the terminal is.
    """
    named = {"dark": DARK, "light": LIGHT, "ansi": ANSI}.get(theme)
    if named is not None:
        return named
    if environment.get("TERM", "") in ("linux", "ansi", "vt100", "vt220", "screen", "xterm", "xterm-16color"):
        few = "COLORTERM" not in environment
        if few:
            return ANSI
    background = environment.get("COLORFGBG", "").rsplit(";", 1)[-1]
    return LIGHT if background in ("7", "15") else DARK
