"""The screens as text, three of them as pictures, and a check at other sizes that nothing is cut or overlaps.

After a change that is meant: ``REWRITE_SCREENS=1 python -m pytest tests/ui/test_screens.py``, and read the difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text
from textual.containers import VerticalScroll
from textual.scroll_view import ScrollView
from textual.widget import Widget
from textual.widgets import Button, Static

from hetero_tui.inventory.file import load
from hetero_tui.machines import Machines
from hetero_tui.ui.app import HeteroApp
from hetero_tui.ui.keys import VIEWS
from hetero_tui.ui.widgets.lines import Lines
from tests.ui.looking import resize, seen, settle

REWRITES = bool(os.environ.get("REWRITE_SCREENS"))
TEXTS, PICTURES = Path(__file__).parent / "screens", Path(__file__).parent / "pictures"
SIZE, OTHER_SIZES = (120, 40), ((200, 60), (80, 24), (60, 15))
"""Dialogs are looked at in the first two of the others; ``test_machine_forms.py`` has the forms in the last."""

VIEWS_OF = {
    "running": "123456",
    "faulty": "123456",
    "torn_down": "123456",
    "empty": "15",
    "probed": "1",
    "starting": "12",
    "pipeline": "23",
    "finished": "12",
    "failed": "12",
    "demo": "1",
}
"""A scenario and the views that are shown of it."""

DIALOGS = {
    "help": ("running", "question_mark"),
    "host": ("running", "enter"),
    "stop": ("running", "s"),
    "stop before the first step": ("starting", "s"),
    "teardown": ("running", "D"),
    "teardown, done": ("running", "D", "right", "enter"),
    "train": ("up", "t"),
    "train, with a mistake": ("up", "t", "tab", "b", "a", "t", "c", "h", "equals_sign", "x", "enter"),
    "host key": ("probed", "k"),
    "unfit host": ("probed", "end", "enter"),
    "add": ("probed", "a"),
    "edit": ("probed", "e"),
    "remove": ("probed", "R"),
    "install": ("probed", "i"),
    "install, done": ("probed", "i", "enter"),
    "check": ("probed", "c"),
    "compare": ("running", "5", "space", "down", "space", "c"),
}
"""A dialog, or a view that keys lead to: the scenario and the keys."""


def shown(scenarios: Any, name: str) -> Any:
    """A scenario's state, with its list of runs where the scenario trains."""
    return scenarios.listed(scenarios.training()) if name == "running" else getattr(scenarios, name)()


async def views(app: HeteroApp, pilot: Any, scenario: str) -> AsyncIterator[str]:
    """Show one view after the other."""
    for key in VIEWS_OF[scenario]:
        await settle(app, pilot, key)
        yield VIEWS[int(key)].lower()


def machines(folder: Path) -> Machines:
    path = folder / "inventory.yaml"
    path.write_text("hosts:\n  mercer: {address: mercer.local}\n  crosby: {address: 192.168.1.12}\n")
    assert load(path)
    return Machines(path)


def text_of_dialog(app: HeteroApp) -> str:
    """The box alone, where there is one."""
    lines = seen(app).splitlines()
    boxes = app.screen.query("#dialog")
    if not boxes:
        return "\n".join(lines).rstrip()
    box = boxes.first().region
    return "\n".join(line[box.x : box.right].rstrip() for line in lines[box.y : box.bottom])


def compare(name: str, screens: dict[str, str]) -> None:
    """With what was accepted."""
    text = "".join(f"== {title} ==\n{screen}\n" for title, screen in screens.items())
    path = TEXTS / f"{name}.txt"
    if REWRITES:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("scenario", VIEWS_OF)
async def test_views_are_as_accepted_and_nothing_is_cut_or_overlaps(scenario: str, scenarios: Any, open_app) -> None:
    app = open_app(shown(scenarios, scenario))
    async with app.run_test(size=SIZE) as pilot:
        screens = {view: seen(app).rstrip() async for view in views(app, pilot, scenario)}
        known = words(" ".join(screens.values()))
        wrong = {}
        for width, height in OTHER_SIZES:
            await resize(app, pilot, width, height)
            async for view in views(app, pilot, scenario):
                if width > SIZE[0]:
                    known |= words(seen(app))
                wrong[f"{view} {width}x{height}"] = [*mistakes(app), *cut_words(seen(app), known)]
        assert [f"{place}: {mistake}" for place, found in wrong.items() for mistake in found] == []
    compare(scenario, screens)


@pytest.mark.parametrize("scenario", sorted({scenario for scenario, *_ in DIALOGS.values()}))
async def test_dialogs_are_as_accepted_and_nothing_is_cut_or_overlaps(scenario, scenarios, open_app, tmp_path) -> None:
    app = open_app(shown(scenarios, scenario), machines=lambda: machines(tmp_path))
    screens, wrong = {}, {}
    async with app.run_test(size=SIZE) as pilot:
        for name, (of, *keys) in DIALOGS.items():
            if of != scenario:
                continue
            await resize(app, pilot, *SIZE)
            await settle(app, pilot, *keys)
            screens[name] = text_of_dialog(app)
            for width, height in OTHER_SIZES[:2]:
                await resize(app, pilot, width, height)
                wrong[f"{name} {width}x{height}"] = [*mistakes(app)]
            await pilot.press("escape", "escape")
        assert [f"{place}: {mistake}" for place, found in wrong.items() for mistake in found] == []
    compare(f"dialogs_{scenario}", screens)


@pytest.mark.parametrize(("name", "scenario", "keys"), [("running", "running", ()), ("faulty", "faulty", "4"),
                                                        ("help", "running", ("question_mark",))])  # fmt: skip
async def test_colours_are_as_accepted(name, scenario, keys, scenarios, open_app) -> None:
    app = open_app(shown(scenarios, scenario))
    async with app.run_test(size=SIZE) as pilot:
        await settle(app, pilot, *keys)
        taken = re.sub(r"terminal-\d+", "terminal", app.export_screenshot())
    path = PICTURES / f"{name}.svg"
    if REWRITES:
        path.write_text(taken, encoding="utf-8")
    assert taken == path.read_text(encoding="utf-8"), "REWRITE_SCREENS=1 accepts it"


# --- Nothing is cut, and nothing overlaps ----------------------------------------------------------------------------


def mistakes(app: HeteroApp) -> Iterator[str]:
    """What is wrong with the screen that is shown."""
    screen, size = app.screen, app.size
    for parent in displayed(screen):
        children = parts(parent)
        scrolls = isinstance(parent, (VerticalScroll, ScrollView))
        for child in children:
            if not child.region or (not parent.region.contains_region(child.region) and not scrolls):
                yield f"{child!r} at {child.region} is not inside {parent!r} at {parent.region}"
        for one, other in combinations(children, 2):
            if one.region.overlaps(other.region):
                yield f"{one!r} at {one.region} overlaps {other!r} at {other.region}"
        yield from cut(parent)
    if screen is not app.main:
        return
    lines = seen(app).split("\n")
    status, keys = app.main.query_one("#status", Lines).text, app.main.query_one("#keys", Lines).text
    if not (lines[0] == status and status.endswith("14:21") and lines[size.height - 1] == keys):
        yield "the header or the line of keys is not whole"
    if not keys.endswith(("detach", "quit")):
        yield f"how to leave is not said: {keys}"


def parts(parent: Widget) -> list[Widget]:
    return [child for child in parent.children if child.display and not child.has_class("-textual-system")]


def displayed(widget: Widget) -> Iterator[Widget]:
    """A widget and all that is shown of it."""
    yield widget
    for part in parts(widget):
        yield from displayed(part)


def cut(widget: Widget) -> Iterator[str]:
    """What a widget holds and has no room for."""
    room = widget.content_region
    if isinstance(widget, Lines):
        lines = widget.text.split("\n")
        width, scrolls = widget.size.width, widget.scrolls or widget.virtual_size.height > room.height
    elif isinstance(widget, Static):  # which wraps its text
        lines, width, scrolls = [], room.width, False
        if widget.get_content_height(widget.app.size, widget.app.size, width) > room.height:
            yield f"{widget!r} has more lines than {room.height}: {widget.content}"
    elif isinstance(widget, Button):
        lines, width, scrolls = [str(widget.label)], room.width, False
    else:
        lines, width, scrolls = [], room.width, True
    yield from (f"cut off in {widget!r} of {width} cells: {line}" for line in lines if cell_len(line) > width)
    if not scrolls and len(lines) > room.height and any(lines[room.height :]):
        yield f"below the end of {widget!r}: {lines[room.height :]}"
    for title in (widget.border_title, widget.border_subtitle):
        if title and Text.from_markup(title).cell_len > widget.region.width - 4:
            yield f"the title of {widget!r} is cut: {title}"


def words(text: str) -> set[str]:
    return {*re.findall(r"[^\W\d_]{3,}", text)}


def cut_words(text: str, known: set[str]) -> list[str]:
    """Beginnings of words that stand on larger screens, without an ellipsis and not words themselves."""
    said = {*re.findall(r"[^\W\d_]{3,}(?![\w….])", text)}
    return sorted(word for word in said - known - {"stall"} if any(other.startswith(word) for other in known))


async def test_what_is_cut_or_overlaps_is_found(scenarios: Any, open_app) -> None:
    """The check can fail: each of these is planted, and named."""
    app = open_app(shown(scenarios, "running"))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        assert [*mistakes(app)] == []
        rows, keys = app.main.hosts.rows, app.main.query_one("#keys")
        planted = {
            "overlaps": lambda: setattr(keys.styles, "offset", (0, -1)),
            "is not inside": lambda: setattr(rows.styles, "offset", (60, 0)),
            "is cut: ": lambda: setattr(app.main.hosts, "border_title", "x" * 77),
            "cut off in Rows": lambda: setattr(rows, "_lines", (*rows.lines, rows.lines[0] + "x" * 80)),
        }
        for said, plant in planted.items():
            plant()
            app.main.refresh(layout=True)
            await pilot.pause()
            assert said in "\n".join(mistakes(app))
            rows.styles.offset = (0, 0)
    assert cut_words("unreachab 2 min, unreach… trai. training", {"unreachable", "training"}) == ["unreachab"]
