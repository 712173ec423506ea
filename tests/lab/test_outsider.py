"""A stranger on the network gets no data from a cluster that trains, and ends no process of it.

It tries every port, every gRPC method of this Ray, our own frames, TLS without a certificate, noise, and thousands of
silent connections.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import outsider
from tests.lab.following import Following
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.mounts import REPOSITORY
from tests.lab.product import HeteroTui

pytestmark = [pytest.mark.long, pytest.mark.lab, pytest.mark.ray]

MEMBERS = ("mercer", "crosby")
SILENT_SECONDS = 6.0


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    with Lab([HostSpec(name=name, cpus=1) for name in (*MEMBERS, "stranger")], rate_mbit=1000) as lab:
        yield lab


@pytest.fixture(scope="module")
def product(lab: Lab) -> Iterator[HeteroTui]:
    product = HeteroTui(lab.laptop, lab.inventory(hosts=MEMBERS))
    assert product.document("up")["cluster"]["state"] == "up"
    yield product
    assert product.document("down", "--yes")["leftovers"] == []


def ours(lab: Lab) -> dict[tuple[str, int], str]:
    """Ray's processes and the run's, on all members, by host and PID."""
    words = ("gcs_server", "raylet", "ray::", "coordinator", "supervisor")
    return {
        (name, one.pid): one.argv[0]
        for name in MEMBERS
        for one in lab.host(name).processes()
        if any(word in " ".join(one.argv) for word in words)
    }


def ended(lab: Lab, processes: dict[tuple[str, int], str]) -> list[str]:
    """Those that are no more. A worker's title changes with what it does, so PIDs are asked for."""
    return [
        title for (name, pid), title in processes.items() if lab.host(name).exec(["kill", "-0", str(pid)]).returncode
    ]


def doors(lab: Lab) -> list[tuple[str, int]]:
    return [(lab.host(name).address, port) for name in MEMBERS for port in sorted(lab.host(name).listening_ports())]


def attack(lab: Lab, methods: list[str], seconds: float) -> dict[str, Any]:
    asked = {"doors": doors(lab), "methods": methods, "seconds": seconds}
    script = str(REPOSITORY / "tests/lab/outsider.py")
    done = lab.host("stranger").exec([sys.executable, script], stdin=json.dumps(asked))
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_a_stranger_gets_nothing_and_ends_nothing(lab: Lab, product: HeteroTui, strategy: str) -> None:
    # The methods are the same with every strategy; the ports that know none of them are ours.
    methods = outsider.methods() if strategy == "sync" else [outsider.KILLS]
    secret = (lab.host("mercer").home / ".hetero-tui/lab/token").read_text().strip()
    with Following.train(product, strategy=strategy) as run:
        run.until_step(3, 120)
        before = ours(lab)
        found = attack(lab, methods, SILENT_SECONDS)
        began, step = time.monotonic(), run.step
        run.until_step(step + 3, 60)
        run.check()
        assert ended(lab, before) == []
        run.stop()
    print(found["calls"], "calls", found["silent"], "silent", found["seconds"], "s", time.monotonic() - began)
    assert found["silent"] > outsider.SILENT / 2
    assert outsider.KILLS in methods
    assert found["calls"] == 0, "no port of Ray's lets a stranger in as far as to a call"
    assert [said for _, _, what, said in found["answers"] if what == outsider.UNDER_TLS and said] == []
    assert [what for _, _, what, said in found["answers"] if secret in said or "200 OK" in said] == []
