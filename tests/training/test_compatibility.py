"""The scripts of ``benchmarks.compatibility``, on two unequal workers beside plain torch; with a worker killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compatible import scripts  # noqa: F401 - fills the table
from benchmarks.compatible.running import Lab, Outcome, Way
from benchmarks.compatible.table import SCRIPTS, Script
from tests.training.coordinators import Coordinators
from tests.training.loopback import Cluster

ALL = [
    pytest.param(script, id=name, marks=() if script.quick else pytest.mark.long) for name, script in SCRIPTS.items()
]
KILLED = [
    pytest.param(script, id=name, marks=() if name == "NanoGpt" else pytest.mark.long)
    for name, script in SCRIPTS.items()
    if script.quick and not script.refused
]


@pytest.fixture
def lab(cluster: Cluster, coordinators: Coordinators) -> Lab:
    return Lab(cluster, coordinators)


@pytest.mark.parametrize("script", ALL)
def test_a_script_trains_as_in_plain_torch_or_is_refused_with_a_way_out(
    script: Script, lab: Lab, tmp_path: Path
) -> None:
    row = lab.carry_out(script, Way(), tmp_path / "run")
    assert row.outcome is (Outcome.REFUSED if script.refused else Outcome.EQUAL), row.says


@pytest.mark.parametrize("script", KILLED)
def test_a_killed_worker_changes_no_weight(script: Script, lab: Lab, tmp_path: Path) -> None:
    row = lab.carry_out(script, Way(workers=3, killed=True), tmp_path / "run")
    assert row.outcome is Outcome.EQUAL, row.says
