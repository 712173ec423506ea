"""A reader of README and docs/, who types their commands as they stand there, with names of the lab in them."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.documents import NAMED
from tests.lab.machines import PROGRAM_DEADLINE
from tests.lab.product import HeteroTui


class Reader:
    """Types commands on the lab's laptop.

    Attributes:
        names: what stands in the documents, and what to type in its place; the first that fits is replaced first.
    """

    def __init__(self, product: HeteroTui, names: Mapping[str, str]) -> None:
        self.names = dict(names)
        self._product = product

    def words(self, shown: str, *more: str) -> list[str]:
        """The words after ``hetero-tui``; ``more`` are those without which it would take long, or ask."""
        assert shown in NAMED, f"no document shows {shown!r}"
        typed = shown
        for theirs, ours in self.names.items():
            typed = typed.replace(theirs, ours)
        return [*shlex.split(typed)[1:], *more]

    def run(self, shown: str, *more: str, code: int = 0) -> str:
        """Run a command to its end, which comes with that exit code; what it printed."""
        (said,) = self.at_once([shown], *more, code=code).values()
        return said

    def at_once(self, commands: Sequence[str], *more: str, code: int = 0) -> dict[str, str]:
        """Run several at the same time, each to its end with that exit code; what each printed."""
        began, said = time.monotonic(), dict[str, str]()
        started = {shown: self._product.start(*self.words(shown, *more)) for shown in commands}
        try:
            for shown, process in started.items():
                output, errors = process.communicate(timeout=PROGRAM_DEADLINE)
                assert process.returncode == code, f"{shown}: exit code {process.returncode}\n{output}\n{errors}"
                assert "Traceback" not in output + errors, f"{shown}: {errors}"
                said[shown] = output + errors
                print(f"{time.monotonic() - began:6.1f} s  {shown}")
        finally:
            for process in started.values():
                process.kill()
        return said

    @contextmanager
    def staying(self, shown: str, *more: str, code: int = 130) -> Iterator[subprocess.Popen[str]]:
        """A command that stays until Ctrl-C, which is pressed at the end; one with another exit code ends by itself."""
        with self._product.start(*self.words(shown, *more)) as process:
            try:
                yield process
                if code == 130:
                    process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=PROGRAM_DEADLINE)
            finally:
                process.kill()
        assert process.returncode == code, f"{shown}: exit code {process.returncode}\n{errors}"
        assert "Traceback" not in errors, f"{shown}: {errors}"
