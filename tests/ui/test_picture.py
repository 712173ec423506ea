"""README's picture is a screen that is tested, not one that once was."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
SNAPSHOT = HERE / "__snapshots__" / "test_snapshots" / "test_the_screen_looks_as_it_was_accepted[training-120x40].svg"


def test_the_picture_in_the_documentation_is_the_accepted_training_screen() -> None:
    assert (HERE.parents[1] / "docs" / "fleet.svg").read_bytes() == SNAPSHOT.read_bytes()
