"""Scripts and Ray's own command line, as a user gives them: what is taken, and what is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero_tui.errors import OrderError, UsageError
from hetero_tui.runs.order import read_script, refuse_ours


def test_a_script_and_its_arguments_are_an_order(tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("")
    order = read_script(str(tmp_path / "tune.py"), ["--trials", "20"])
    assert order.script == ("--trials", "20")
    assert (order.job.reference, order.job.slug) == ("tune.py", "tune")
    assert order.code is not None
    assert list(order.code.files) == ["tune.py", "helper.py"]


@pytest.mark.parametrize(
    ("name", "cause"),
    [("tume.py", "did you mean 'tune.py'?"), ("notes.txt", "is not a Python file"), ("bad.py", "bad.py:1")],
)
def test_what_is_no_script_is_refused_before_anything_starts(tmp_path: Path, name: str, cause: str) -> None:
    (tmp_path / "tune.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "bad.py").write_text("def")
    with pytest.raises(OrderError) as caught:
        read_script(str(tmp_path / name))
    assert cause in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [["stop"], ["--log-color=false", "stop"], ["start", "--head"], ["--logging-level", "info", "stop"], ["-v", "stop"]],
)
def test_commands_of_rays_that_would_end_other_clusters_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="not for a cluster of ours"):
        refuse_ours(words)


@pytest.mark.parametrize("words", [["job", "submit", "stop"], ["--logging-level", "info", "status"], ["list", "up"]])
def test_words_of_other_commands_are_theirs(words: list[str]) -> None:
    refuse_ours(words)
