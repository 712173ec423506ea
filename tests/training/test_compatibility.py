"""A part of ``benchmarks.compatibility``: each mechanism once, two unequal workers, beside a plain torch loop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compatibility import CASES
from tests.training.loopback import ROOT

QUICK = [name for name, case in CASES.items() if case.quick]

MATRIX_S = 300.0


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All cases in one process, on one Ray of its own."""
    folder = tmp_path_factory.mktemp("matrix")
    subprocess.run(
        [sys.executable, "-m", "benchmarks.compatibility", "--quick", "--workers", "2", "--json", folder / "rows"],
        cwd=ROOT,
        capture_output=True,
        timeout=MATRIX_S,
        check=False,
    )
    lines = Path(folder / "rows").read_text().splitlines()
    return {row["case"]: row for row in map(json.loads, lines)}


@pytest.mark.ray
@pytest.mark.parametrize("name", QUICK)
def test_a_job_of_a_user_s_trains_as_in_plain_torch_or_is_refused(rows: dict[str, dict[str, Any]], name: str) -> None:
    assert rows[name]["outcome"] == CASES[name].expect, rows[name]
