"""The stages of torch.distributed.pipelining that ours are measured beside train as one process does."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from benchmarks.peers.task import Settings
from benchmarks.sized_text import Deep
from tests.training import plain

DEADLINE = 200.0


@pytest.mark.long
@pytest.mark.parametrize(("schedule", "bounds"), [("1f1b", (0, 1, 9, 12)), ("one", (0, 4, 8, 12))])
def test_torchs_stages_give_the_weights_of_one_process(tmp_path: Path, schedule: str, bounds: tuple[int, ...]) -> None:
    from benchmarks.peers.pipelining import WEIGHTS  # it takes seconds, also where this test is left out

    hosts = len(bounds) - 1
    settings = Settings(
        job="benchmarks.sized_text:Deep",
        variant=f"{schedule}:{','.join(map(str, bounds))}",
        rank=0,
        addresses=("127.0.0.1",) * hosts,
        speeds=(1.0,) * hosts,
        reference_speed=1e9,
        reference_overhead_s=0.0,
        batch=16,
        seed=3,
        steps=3,
        seconds=DEADLINE,
        snapshot_every=0,
        round_steps=0,
    )
    running = []
    for rank in range(hosts):
        home = tmp_path / str(rank)
        home.mkdir()
        own = dataclasses.replace(settings, rank=rank).encode()
        variables = os.environ | {"HOME": str(home), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "benchmarks.peers.pipelining", own]
        running.append(subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    try:
        for process in running:
            _, said = process.communicate(timeout=DEADLINE)
            assert process.returncode == 0, said.decode()
    finally:
        for process in running:
            process.kill()
    weights = {
        name: value for rank in range(hosts) for name, value in load_file(tmp_path / str(rank) / WEIGHTS).items()
    }
    config = dataclasses.replace(Deep.config, batch_size=16, seed=3, num_iterations=3)
    plain.assert_equal(weights, plain.train(Deep(), config))
