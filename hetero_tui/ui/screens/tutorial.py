"""What is shown while the inventory is empty: the lines to add, and where."""

from __future__ import annotations

from rich.text import Text

from hetero_tui.ui.palette import Palette

_EXAMPLE = (
    "hosts:",
    "  mercer: {address: mercer.local}",
    "  laptop: {connection: local}",
)


def tutorial_lines(inventory_path: str, palette: Palette) -> list[Text]:
    """The first steps, with the inventory's own path."""
    said, code = palette.foreground, f"bold {palette.accent}"
    return [
        Text(""),
        Text("Add your machines to this file, a name and an address each:", style=said),
        Text(f"  {inventory_path}", style=code),
        Text(""),
        *(Text(f"    {line}", style=palette.accent) for line in _EXAMPLE),
        Text(""),
        Text("Then start hetero-tui again. What ~/.ssh/config says about", style=said),
        Text("an address holds: user, port, keys, jump hosts.", style=said),
        Text(""),
        Text("Or see it work on this computer, with nothing to set up:", style=said),
        Text("  hetero-tui demo", style=code),
    ]
