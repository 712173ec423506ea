"""Shows what to do while the inventory names no machine: the file, the lines to add, and the next step."""

from __future__ import annotations

from rich.text import Text

from hetero_tui.ui.details import wrapped
from hetero_tui.ui.view import View

_EXAMPLE = (
    "hosts:",
    "  mercer: {address: mercer.local}",
    "  laptop: {connection: local}",
)


def tutorial_title(view: View) -> str:
    """Whether there is nothing yet, or something to mend: a mistake has its line of the file."""
    return "The inventory has mistakes" if _is_wrong(view) else "No machines yet"


def _is_wrong(view: View) -> bool:
    return any(line.startswith("line ") for line in view.mistakes)


def tutorial_lines(view: View, width: int) -> list[Text]:
    """The first steps, with the inventory's own path and what is wrong in it."""
    palette = view.palette
    said, code, key = palette.foreground, f"bold {palette.accent}", f"bold {palette.accent}"
    width = max(20, width)
    first = (
        "Correct the lines named below, in" if _is_wrong(view) else "Add your machines, a name and an address each, to"
    )
    lines = [Text(part, style=said) for part in wrapped(first, width)]
    lines += [Text(f"  {part}", style=code) for part in wrapped(view.inventory_path, width - 2)]
    for mistake in view.mistakes:
        lines += [Text(part, style=palette.bad) for part in wrapped(mistake, width)]
    lines += [Text(""), *(Text(f"    {line}", style=palette.accent) for line in _EXAMPLE), Text("")]
    wanted = {
        "add": "adds a machine in a form, or those of ~/.ssh/config",
        "edit": "opens the file in your editor; it is made if need be",
        "demo": "shows it all on this computer, without any setup",
    }
    offered = [known for known in view.more_keys if known.action in wanted]
    lines += [Text.assemble((f"  {known.key}", key), (f"  {wanted[known.action]}", said)) for known in offered]
    about = (
        "The file is watched: once you save it, the machines are here. What ~/.ssh/config says about an address holds:"
        " user, port, keys, jump hosts."
    )
    return [*lines, Text(""), *(Text(part, style=palette.muted) for part in wrapped(about, width))]
