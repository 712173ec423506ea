"""A run's parameter server needs four times its parameters' memory at most, beside the optimizer's, for any workers."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.memory import MOST
from tests.training.loopback import Cluster

PARAMETERS, RUN_S = 8_000_000, 200.0


@pytest.mark.ray
@pytest.mark.parametrize(("way", "workers"), [("network", 2), ("network", 8)])
def test_the_servers_peak_is_four_times_its_parameters_at_most(
    cluster: Cluster, tmp_path: Path, way: str, workers: int
) -> None:
    table = tmp_path / "memory.csv"
    command = [sys.executable, "-m", "benchmarks.memory", "--cluster", cluster.address, "--csv", str(table)]
    command += ["--ways", way, "--workers", str(workers), "--parameters", str(PARAMETERS)]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode in (0, 1), done.stderr
    (row,) = csv.DictReader(table.open())
    assert float(row["ratio"]) <= MOST, done.stdout
    # The optimizer's state and the weights are in it: less would mean that something else was measured.
    assert float(row["peak"]) > float(row["parameter_bytes"]) + float(row["state_bytes"])
