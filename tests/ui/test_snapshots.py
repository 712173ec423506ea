"""The screens as pictures. After a change that is meant: pytest tests/ui/test_snapshots.py --snapshot-update.

Each view is taken in four conditions (a run goes on, there is nothing, there is trouble, the cluster was taken down in
mid-run) and at three sizes. An app is
started once for a condition and a size, and goes through its views: starting takes most of the time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

SIZES = [(80, 24), (120, 40), (200, 60)]
CONDITIONS = {"running": "training", "empty": "empty", "faulty": "faulty", "torn_down": "torn_down"}
VIEWS = {"1": "fleet", "2": "run", "3": "plan", "4": "faults", "5": "runs", "6": "logs"}
DIALOGS = {
    "probed_fleet": ("probed", ()),
    "starting": ("starting", ()),
    "pipeline": ("pipeline", ("2",)),
    "finished_run": ("finished", ()),
    "teardown_question": ("training", ("D",)),
    "train_form": ("up", ("t", "tab", *"batch_size=x")),
    "help": ("training", ("question_mark",)),
}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("condition", CONDITIONS)
async def test_the_views_look_as_they_were_accepted(condition, size, scenarios, open_app, snapshot_of) -> None:
    state = getattr(scenarios, CONDITIONS[condition])()
    app = open_app(scenarios.listed(state) if condition == "running" else state)
    async with app.run_test(size=size) as pilot:
        for key, view in VIEWS.items():
            await pilot.press(key)
            await app.workers.wait_for_complete()
            app.redraw()
            await pilot.pause()
            snapshot_of(app, f"{view}-{condition}-{size[0]}x{size[1]}")
            assert not cut_lines(app) or condition == "empty"


def cut_lines(app) -> list[str]:
    return [line.text for line in app.main._compositor.render_strips() if "…" in line.text]


@pytest.mark.parametrize(
    ("condition", "size"),
    [
        *((condition, (60, 15)) for condition in ("training", "faulty", "torn_down")),
        *((condition, size) for condition in ("starting", "pipeline") for size in ((60, 15), *SIZES)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}x{value[1]}",
)
async def test_no_word_of_a_view_is_cut(condition, size, scenarios, open_app) -> None:
    app = open_app(scenarios.listed(getattr(scenarios, condition)()))
    async with app.run_test(size=size) as pilot:
        for key in VIEWS:
            await pilot.press(key)
            await app.workers.wait_for_complete()
            app.redraw()
            await pilot.pause()
            assert not cut_lines(app)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", DIALOGS)
async def test_the_screen_looks_as_it_was_accepted(screen, size, scenarios, open_app, snapshot_of) -> None:
    state, keys = DIALOGS[screen]
    app = open_app(getattr(scenarios, state)())
    async with app.run_test(size=size) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        snapshot_of(app, f"{screen}-{size[0]}x{size[1]}")


def test_no_picture_is_left_of_a_screen_that_is_gone() -> None:
    taken = {f"{view}-{condition}" for view in VIEWS.values() for condition in CONDITIONS} | {*DIALOGS}
    names = {f"{name}-{width}x{height}.svg" for name in taken for width, height in SIZES}
    assert {path.name for path in (Path(__file__).parent / "__snapshots__").glob("**/*.svg")} == names
