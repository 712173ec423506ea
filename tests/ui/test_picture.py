"""README's picture is of the app as it is: ``python -m benchmarks.picture`` takes it from a run of the demo."""

from __future__ import annotations

import html
import re
from pathlib import Path

from hetero_tui.ui.keys import VIEWS

PICTURE = Path(__file__).parents[2] / "docs" / "fleet.svg"


def test_the_picture_in_the_documentation_shows_what_the_app_shows_now() -> None:
    said = html.unescape("".join(re.findall(r">([^<]+)</text>", PICTURE.read_text(encoding="utf-8"))))
    said = said.replace("\xa0", " ")
    for number, word in VIEWS.items():
        assert f"{number} {word}" in said, "take it again: python -m benchmarks.picture"
    for words in ("training ", "Where a step's time goes", "last step", "chaos: "):
        assert words in said
