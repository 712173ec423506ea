"""A palette as Textual's theme, so that its own parts (input fields, toasts, the command palette) wear our colours."""

from __future__ import annotations

from textual.theme import Theme

from hetero_tui.ui.palette import Palette


def theme_of(palette: Palette) -> Theme:
    """The theme; our further colours become variables of the style sheets."""

    def css(colour: str) -> str:
        return colour if colour.startswith("#") else f"ansi_{colour}"

    return Theme(
        name=palette.name,
        dark=palette.dark,
        primary=css(palette.accent),
        secondary=css(palette.push),
        accent=css(palette.accent),
        success=css(palette.accent),
        warning=css(palette.warning),
        error=css(palette.bad),
        foreground=css(palette.foreground),
        background=css(palette.background),
        surface=css(palette.surface),
        panel=css(palette.raised),
        variables={
            "line": css(palette.line),
            "raised": css(palette.raised),
            "muted": css(palette.muted),
            "bad": css(palette.bad),
        },
    )
