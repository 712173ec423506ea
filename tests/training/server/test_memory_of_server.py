"""A run's parameter server needs four times its parameters' memory at most, beside the optimizer's.

That this does not depend on the number of workers shows with five: a copy for each would be more.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.memory import MAX
from tests.training.loopback import Cluster

PARAMETERS, RUN_S = 8_000_000, 200.0


@pytest.mark.ray
def test_the_servers_peak_is_four_times_its_parameters_at_most(unforked: Cluster, tmp_path: Path) -> None:
    table = tmp_path / "memory.csv"
    command = [sys.executable, "-m", "benchmarks.memory", "--cluster", unforked.address, "--csv", str(table)]
    command += ["--ways", "network", "--workers", "5", "--parameters", str(PARAMETERS)]
    done = subprocess.run(command, env=unforked.environment, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode in (0, 1), done.stderr
    (row,) = csv.DictReader(table.open())
    assert float(row["ratio"]) <= MAX, done.stdout
    # The optimizer's state and the weights are in it: less would mean that something else was measured.
    assert float(row["peak"]) > float(row["parameter_bytes"]) + float(row["state_bytes"])
