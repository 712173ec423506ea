"""A sweep over three hosts, one of which loses its power, as a user meets it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.lab.lab import Lab
from tests.lab.product import HeteroTui

pytestmark = [pytest.mark.lab, pytest.mark.ray, pytest.mark.long]

TRIALS, OPTIMUM = 20, 0.35

JOB = f"""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Mine:
    place: float = 0.0


class Job:
    settings = Mine()

    def create_model(self):
        return nn.Linear(1, 1)

    def create_data(self):
        return torch.zeros(36, 1), torch.zeros(36, 1)

    def loss(self, model, batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean() * 0 + abs(self.settings.place - {OPTIMUM})
"""

SETTINGS = {"num_iterations": 6, "batch_size": 4, "measure_seconds": 0.1}

BEGUN = re.compile(r"trial (\d+) on (\w+)/cpu: place=\S+")
OVER = re.compile(r"trial (\d+) on (\w+)/cpu: (done|stopped)")
ROW = re.compile(r"(\d+) +(\w+)/cpu +(\d+) +(\S+) +(\S+)( +stopped early)?")
"""A line of the table: trial, host, steps, loss, place."""


@pytest.fixture(scope="module")
def product(fleet: Lab) -> Iterator[HeteroTui]:
    product = HeteroTui(fleet.laptop, fleet.inventory())
    assert product.document("up")["cluster"]["state"] == "up"
    yield product
    product.run("down", "--yes", "--json")


def test_a_sweep_uses_all_hosts_finds_the_optimum_and_outlives_one_of_them(product: HeteroTui, fleet: Lab) -> None:
    head = product.document("status")["cluster"]["head"]
    victim = next(host for host in fleet.hosts if host.name != head)
    (fleet.laptop.home / "planted.py").write_text(JOB)
    words = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    job, lines = str(fleet.laptop.home / "planted.py:Job"), list[str]()
    with product.start("sweep", job, "--param", "place=0..1", "--trials", str(TRIALS), *words) as sweep:
        assert sweep.stdout is not None
        was_there = False
        for line in sweep.stdout:
            lines.append(line.strip())
            was_there = was_there or ((found := OVER.match(line)) is not None and found[2] == victim.name)
            if was_there and victim.is_on and (found := BEGUN.match(line)) is not None and found[2] == victim.name:
                victim.pull_plug()
        assert sweep.stderr is not None
        said = sweep.stderr.read()
    assert sweep.returncode == 0, "\n".join([*lines, said])
    assert not victim.is_on, lines
    assert any("it is made again elsewhere" in line for line in lines)
    over = [found for line in lines if (found := OVER.match(line))]
    assert {found[2] for found in over} == {host.name for host in fleet.hosts}
    rows = [found for line in lines if (found := ROW.fullmatch(line))]
    assert sorted(int(row[1]) for row in rows) == list(range(TRIALS)), "each trial came to its end, once"
    best, *others = ((float(row[4]), float(row[5])) for row in rows)
    assert best[0] == pytest.approx(abs(best[1] - OPTIMUM), abs=1e-3)
    assert best[0] == min(loss for loss, _ in (best, *others)) <= 1 / TRIALS
    assert rows[0][3] == str(SETTINGS["num_iterations"])
