"""The screens as pictures. After a change that is meant: pytest tests/ui/test_snapshots.py --snapshot-update."""

from __future__ import annotations

import pytest

SIZES = [(80, 24), (120, 40), (200, 60)]
SCREENS = {
    "empty_inventory": ("empty", ()),
    "probed_fleet": ("probed", ()),
    "training": ("training", ()),
    "finished_run": ("finished", ()),
    "teardown_question": ("training", ("D",)),
    "help": ("training", ("question_mark",)),
}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", SCREENS)
def test_the_screen_looks_as_it_was_accepted(screen, size, scenarios, open_app, snap_compare) -> None:
    state, keys = SCREENS[screen]
    assert snap_compare(open_app(getattr(scenarios, state)()), press=keys, terminal_size=size)
