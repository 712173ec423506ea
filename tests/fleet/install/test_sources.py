"""Packages are collected on the laptop for as long as more of them arrives."""

import time
from pathlib import Path

import pytest

from hetero_tui import deadlines
from hetero_tui.errors import HeteroTuiError
from hetero_tui.fleet.install import sources
from hetero_tui.fleet.install.platforms import PLATFORMS
from hetero_tui.fleet.install.sources import Sources

GROWS = 'i=0; while [ "$i" -lt 12 ]; do echo more >> "$TMPDIR/torch.whl"; sleep 0.1; i=$((i + 1)); done'


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("FETCH", "FETCH_SILENCE"):
        monkeypatch.setattr(deadlines, name, 0.8, raising=False)


async def test_a_download_may_take_long_while_it_grows() -> None:
    await sources._run(["sh", "-c", GROWS], Sources(), PLATFORMS[0], {})


async def test_a_download_that_does_not_grow_is_given_up() -> None:
    began = time.monotonic()
    with pytest.raises(HeteroTuiError, match=r"nothing more arrived for 0.8 s"):
        await sources._run(["sh", "-c", "sleep 60"], Sources(), PLATFORMS[0], {})
    assert time.monotonic() - began < 10
