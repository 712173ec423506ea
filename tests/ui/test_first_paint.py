"""How long it takes from starting Python to the first frame, beside an empty Textual app, in fresh processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 7
MOST = 1.5

_REPORT = """
    def on_ready(self):
        self.call_after_refresh(self._painted)
    def _painted(self):
        print(time.monotonic())
        self.exit()
app_class({arguments}).run(headless=True, size=(120, 40))
"""

EMPTY = """
import time
from textual.app import App
class app_class(App):""" + _REPORT.format(arguments="")

OURS = """
import time
from hetero_tui.ui.app import HeteroApp
from hetero_tui.state import initial
class Intents:
    state = initial("lab", tuple((f"node-{index}", f"10.0.0.{index}") for index in range(8)))
    jobs, inventory_path, busy = ("digits",), "inventory.yaml", ""
    def subscribe(self, listener):
        return lambda: None
    async def probe(self):
        pass
class app_class(HeteroApp):""" + _REPORT.format(arguments="Intents()")


def _seconds(program: str) -> float:
    started = time.monotonic()
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return float(answer.stdout.split()[0]) - started


def test_the_first_frame_comes_within_one_and_a_half_times_of_an_empty_textual_app() -> None:
    for program in (EMPTY, OURS):
        _seconds(program)  # byte code and file cache warm for both
    pairs = [(_seconds(EMPTY), _seconds(OURS)) for _ in range(ROUNDS)]
    empty, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"first paint: empty Textual app {empty * 1000:.0f} ms, ours {ours * 1000:.0f} ms, ratio {ours / empty:.2f}")
    # The median of the rounds' own ratios: both halves of a round see the same load of the computer.
    assert statistics.median(own / bare for bare, own in pairs) <= MOST


def test_the_screens_load_neither_torch_ray_asyncssh_nor_pydantic_before_the_first_frame() -> None:
    program = "import sys, hetero_tui.ui.app; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["torch", "ray", "numpy", "asyncssh", "pydantic"]
    answer = subprocess.run(
        [sys.executable, "-c", program, *heavy], check=True, capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.strip() == "[]"
