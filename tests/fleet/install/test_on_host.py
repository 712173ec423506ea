"""What uv prints while it installs becomes lines for people, and its failure one sentence with what to do."""

from hetero_tui.fleet.install.on_host import Telling, cause_in
from hetero_tui.fleet.install.pace import Pace
from hetero_tui.text import HostText


def test_lines_of_an_installation():
    tell = Telling()
    lines = [
        ("ht:size 1000", ""),
        ("Resolved 36 packages in 1.2s", "36 packages to install"),
        ("Downloading torch (182.9MiB)", ""),
        ("Downloading ray (75.6MiB)", ""),
        ("ht:size 103400", "fetching torch (182.9MiB), ray (75.6MiB); 100 MiB so far"),
        (" Downloaded torch", "has fetched torch: 183 of 258 MiB of 36 packages"),
        ("ht:size 205800", "fetching ray (75.6MiB); 200 MiB so far"),
        ("\x1b[2Kht:size 99999999999999999999", ""),
        ("Prepared 36 packages in 18.75s", "Prepared 36 packages in 18.75s"),
    ]
    assert [tell(HostText(line)) for line, _ in lines] == [said for _, said in lines]


def test_the_time_left_follows_the_speed_so_far_and_not_what_was_there_before():
    pace = Pace()
    assert pace.left(600, 1000, 10.0) == ""
    assert pace.left(610, 1000, 11.0) == ""
    assert pace.left(700, 1000, 20.0) == ", about 30 s left"
    assert pace.left(1000, 1000, 50.0) == ""
    assert Pace().left(0, 0, 0.0) == ""


def test_why_uv_failed():
    lines = [
        "  × No solution found when resolving dependencies:",
        "  cause: Because torch==2.13.0+cu126 has no wheels with a matching platform tag,",
        "      your requirements are unsatisfiable.",
    ]
    assert cause_in(lines) == (
        "No solution found when resolving dependencies: Because torch==2.13.0+cu126 has no wheels with a matching"
        " platform tag, your requirements are unsatisfiable."
    )
    assert cause_in(["Using Python", "error: Failed to fetch: `https://x`", "  Caused by: timed out"]) == (
        "Failed to fetch: `https://x` Caused by: timed out"
    )
    assert cause_in([]) == ""
