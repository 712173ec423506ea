"""What commands print of a run that they follow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hetero_tui import commanding
from hetero_tui.launcher import FAILED
from hetero_tui.narration import Output
from hetero_tui.session import Session
from remote_agent.protocol import RunFailed
from remote_agent.states import RunState


class Ended:
    """A session whose sweep failed."""

    async def find(self, run: str) -> tuple[str, Any]:
        return "mercer", SimpleNamespace(id=run)

    async def logs_of(self, *_: object, **__: object) -> AsyncIterator[Any]:
        for line in ():
            yield line

    async def history_of(self, run: str) -> tuple[Any, tuple[RunFailed, ...]]:
        failed = RunFailed(seq=2, time=1.0, step=0, host="nas", cause="no figure 'f1'", hint="this job has: loss")
        return SimpleNamespace(id=run, state=RunState.FAILED), (failed,)


async def test_what_to_do_about_a_failed_sweep_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert await commanding.follow_script(cast("Session", Ended()), Output(), "digits-1") == FAILED
    assert capsys.readouterr().err == "hetero-tui: nas: no figure 'f1' -> this job has: loss\n"
