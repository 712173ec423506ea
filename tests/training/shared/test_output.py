"""What the user's code prints is kept for whoever watches the run, and never more than they can read."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path

import pytest

from remote_agent.training.coordinator.prints import AT_ONCE, PER_S, Allowance
from remote_agent.training.shared.output import MAX_KEPT, Output, Printed


def installed(monkeypatch: pytest.MonkeyPatch) -> Output:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    output = Output()
    output.install()
    return output


def test_lines_of_print_are_kept_whole_and_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    output = installed(monkeypatch)
    print("epoch", 3, end="")
    print(" \x1b[31mred\x1b[0m\x07", file=sys.stdout)
    print("of stderr", file=sys.stderr)
    print("not whole", end="")
    assert output.take() == Printed(lines=("epoch 3 red ", "of stderr"))
    assert output.take() == Printed()


def test_a_bar_of_progress_is_one_line_once_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    output = installed(monkeypatch)
    for percent in range(0, 101, 10):
        sys.stderr.write(f"\r{percent}%")
    assert output.take().lines == ()
    sys.stderr.write("\n")
    assert output.take().lines == ("100%",)


def test_more_lines_than_there_is_room_for_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    output = installed(monkeypatch)
    for number in range(MAX_KEPT + 7):
        print(number)
    taken = output.take()
    assert len(taken.lines) == MAX_KEPT
    assert taken.left_out == 7


def test_the_users_own_loggers_speak_from_info_on_and_libraries_from_warning_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = installed(monkeypatch)
    (tmp_path / "mine.py").write_text("import logging\nlogging.getLogger('mine').info('loaded')\n")
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    library = logging.LogRecord("lib", logging.INFO, logging.__file__, 1, "quiet", (), None)
    warning = logging.LogRecord("lib", logging.WARNING, logging.__file__, 1, "loud", (), None)
    for record in (library, warning):
        logging.root.handle(record)
    assert output.take().lines == ("INFO mine: loaded", "WARNING lib: loud")


def test_a_print_for_each_sample_does_not_drown_the_terminal() -> None:
    allowance, shown, told = Allowance(at=0.0), 0, 0
    for second in range(61):
        lines, left_out = allowance.take(Printed(lines=("sample",) * 100, left_out=900), float(second), second == 60)
        shown, told = shown + len(lines), told + left_out
    assert shown <= AT_ONCE + 60 * PER_S
    assert shown + told == 61_000
