"""Shards of the parameter server are killed: the run goes on by itself, and exactly as if they had not been."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from remote_agent.training.coordinator.recovery import rollback
from remote_agent.training.data import record
from tests.training.conftest import RUN_S
from tests.training.coordinator.recovery.test_faults import opening
from tests.training.coordinator.test_resume import plain_loop, trained, worst_error

STEPS, BATCH = 60, 12
LONG = 260
"""Steps of a run that is long enough for copies, and for a spare process to be there."""

COPIED = 150
"""Steps after which a run whose workers have to come together for it has been copied: that is to cost 1 % at most."""

BUDGET_S = 3.0
"""From the last step before the loss to the first new one, with detection and the steps that are made again."""

SPARE_S = 7.5
"""Until a spare process is there."""

JOB = """
import os
import time
from pathlib import Path

import torch
from torch import nn

FOLDER = Path(PLACE)


def note(role):
    '''Let the test know the process that has this role on this host.'''
    host = os.environ.get("TEST_HOST")
    if host:  # the coordinator looks at the optimizer, too
        (FOLDER / f"{role}-{host}-{os.getpid()}").touch()


class Job:
    def create_model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def create_optimizer(self, model, config):
        note("optimizer")
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.005, 0.02, step_size_up=7)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(50, 6, generator=generator)
        return x, x[:, :3].argmax(1)

    def loss(self, model, batch):
        note("worker")
        time.sleep(0.04)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""

SETTINGS: dict[str, Any] = {
    "batch_size": BATCH,
    "num_iterations": STEPS,
    "measure_seconds": 0.1,
    "stream": "network",
}


def job(folder: Path) -> str:
    return JOB.replace("PLACE", repr(str(folder)))


def processes(folder: Path, role: str) -> dict[str, int]:
    """Living process of each host's worker, or server, by host: the links decide where the shards are."""
    noted = {
        kind: {int(path.name.split("-")[2]): path.name.split("-")[1] for path in folder.glob(f"{kind}-*")}
        for kind in ("worker", "optimizer")
    }
    pids = noted["worker"].keys() if role == "worker" else noted["optimizer"].keys() - noted["worker"].keys()
    return {(noted["worker"] | noted["optimizer"])[pid]: pid for pid in pids if psutil.pid_exists(pid)}


def server(folder: Path) -> tuple[str, int]:
    """Host and process of the one shard."""
    ((host, pid),) = processes(folder, "optimizer").items()
    return host, pid


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def until_copied(run: Any) -> None:
    """Wait until the first copies are there, and time for a spare process to start."""
    run.until("step")
    begun = time.monotonic()
    while time.monotonic() - begun < SPARE_S:
        run.until("step", len(run.of_kind("step")) + 1)


def recovery_s(run: Any) -> tuple[float, float]:
    """Seconds from the last step before the first loss to the first one that had not been made before.

    And the longest that a step took before, without any fault, on a computer that others use too.
    """
    steps: list[tuple[int, float]] = []
    lost = False
    for event in run.events():
        lost = lost or event["kind"] in ("server_lost", "worker_lost")
        if event["kind"] == "step":
            if lost and event["step"] > steps[-1][0]:
                noise = max(after - before for (_, before), (_, after) in itertools.pairwise(steps))
                return float(event["time"]) - steps[-1][1], noise
            if not lost:
                steps.append((event["step"], event["time"]))
    raise AssertionError("no step was made after the loss")


def check_whole(run: Any, samples: int, *, spare: bool = False) -> None:
    """Every sample was counted once, and the events tell of a run that went on in time.

    Args:
        run: one that has ended.
        samples: that it used.
        spare: a spare process was there. Otherwise one starts with its libraries, on a computer on which all hosts are.
    """
    events = run.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    kinds = [event["kind"] for event in events]
    assert kinds.count("server_lost") == kinds.count("run_resumed") >= 1
    slices = [span for spans in record.read(run.folder / record.FILE).values() for span in spans]
    assert record.gaps_and_overlaps(slices, samples) == ()
    seconds, noise = recovery_s(run)
    print(f"recovered in {seconds:.2f} s (noise {noise:.2f}); {run.of_kind('run_resumed')[0]['notes']}")
    assert seconds < BUDGET_S + noise + (0.0 if spare else 2 * opening(run))


@pytest.mark.long
@pytest.mark.ray
def test_a_killed_shard_is_restored_and_the_weights_are_those_without_the_fault(launch: Any, tmp_path: Path) -> None:
    run = launch(job(tmp_path), "abc", server="c", shards=2, **(SETTINGS | {"num_iterations": LONG}))
    until_copied(run)
    servers = processes(tmp_path, "optimizer")
    assert len(servers) == 2
    plan = run.of_kind("plan")[0]
    (exchange,) = re.findall(r"exchange of a step: ([\d.e-]+) s", " ".join(plan["reasons"]))
    assert plan["predicted_step_s"] > float(exchange), "the exchange is a part of a step"
    host = next(host for host in servers if host != "a")  # where the coordinator and the spare process are
    kill(servers[host])
    weights = trained(run)
    (lost,) = run.of_kind("server_lost")
    assert lost["host"] == host
    (resumed,) = run.of_kind("run_resumed")
    assert 0 < resumed["step"] < lost["step"]
    assert resumed["samples"] == resumed["step"] * BATCH
    check_whole(run, LONG * BATCH, spare=True)
    assert worst_error(weights, plain_loop(run.folder, LONG)) < 1e-5


@pytest.mark.long
@pytest.mark.ray
def test_shards_that_die_again_and_again_end_the_run_with_a_clear_event(launch: Any, tmp_path: Path) -> None:
    # Devices measure the step of an AdamW of their own, with torch's learning rate.
    dies = "torch.optim.AdamW.step = lambda self, *_: self.defaults['lr'] == 0.01 and os._exit(1)"
    dying = job(tmp_path).replace('note("optimizer")', dies)
    run = launch(dying, "a", server="a", **SETTINGS)
    _, errors = run.process.communicate(timeout=2 * RUN_S)  # a process is started for each attempt
    assert run.process.returncode == 1
    assert len(errors.splitlines()) == 1, errors
    (failed,) = run.of_kind("run_failed")
    assert "parameter server" in failed["cause"]
    assert failed["hint"]
    assert len(run.of_kind("run_resumed")) == rollback.MAX_RESTORES
    assert not run.of_kind("step")
