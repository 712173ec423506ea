"""``train()`` of a script that ``hetero-tui train`` runs: it trains nothing, so that one file serves both ways.

A script ends with ``result = job.train()`` and what it does with the result. The coordinator imports the same file to
find ``job``: there the call ends the import as soon as the job is defined, and the lines after it are the script's own.
Where the job is not defined yet, the import goes on with a :class:`NoResult`, which says so when it is used.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from remote_agent.training.errors import JobError


class Enough(BaseException):
    """The file has defined its job: nothing more of it has to run. No error, so no ``except Exception`` takes it."""


class UsedResult(JobError):
    """The file uses the result of a ``train()`` that trained nothing."""


class NoResult:
    """Stands for a ``TrainingResult``; ``place`` is the line of the call."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __repr__(self) -> str:
        return f"<no result: train() at {self._place} trains nothing under `hetero-tui train`>"

    def _refuse(self, *_: object) -> NoReturn:
        raise UsedResult(
            f"the result of train() at {self._place} is used, and train() trains nothing under `hetero-tui train`",
            hint='define the job before that call, or move what uses its result under `if __name__ == "__main__":`',
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    __getitem__ = __iter__ = __len__ = __bool__ = __float__ = _refuse


_is_defined: Callable[[], bool] | None = None
_always = False


@contextlib.contextmanager
def importing(is_defined: Callable[[], bool]) -> Iterator[None]:
    """Within the block ``train()`` is inert; ``is_defined`` tells whether the job is there."""
    global _is_defined
    before, _is_defined = _is_defined, is_defined
    try:
        yield
    finally:
        _is_defined = before


def from_now_on() -> None:
    """``train()`` is inert in this process: it carries out a run of ``hetero-tui train``, and trains already."""
    global _always
    _always = True


def applies() -> bool:
    """Whether ``train()`` is to do nothing."""
    return _always or _is_defined is not None


def instead_of_training() -> NoResult:
    """What ``train()`` does then: it raises Enough, since the job is defined."""
    caller = sys._getframe(2)  # noqa: SLF001 - the frame that called train()
    place = f"{caller.f_code.co_filename.rpartition('/')[2]}:{caller.f_lineno}"
    print(f"{place}: train() is left out: hetero-tui train trains this job itself", file=sys.stderr, flush=True)
    if _is_defined is not None and _is_defined():
        raise Enough
    return NoResult(place)
