"""A palette as Textual's theme, so that its own parts (input fields, toasts, the command palette) wear our colours."""

from __future__ import annotations

from textual.theme import Theme

from hetero_tui.ui.palette import Palette


def theme_of(palette: Palette) -> Theme:
    """The theme; our further colours become variables of the style sheets."""
    return Theme(
        name=palette.name,
        dark=palette.dark,
        primary=palette.accent,
        secondary=palette.push,
        accent=palette.accent,
        success=palette.accent,
        warning=palette.warning,
        error=palette.bad,
        foreground=palette.foreground,
        background=palette.background,
        surface=palette.surface,
        panel=palette.raised,
        variables={"line": palette.line, "raised": palette.raised, "muted": palette.muted, "bad": palette.bad},
    )
