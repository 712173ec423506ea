"""Hosts that send garbage wherever a host sends anything: the others are unchanged, and no terminal is harmed.

Each kind of garbage has a host of its own, which sends it in place of every answer: as its facts, its node's report,
its runs, its log lines and what it removed. One command meets all of them at once, beside one host that is right.
The events of a run and samples, which come from one host at a time, are in ``tests/runs/test_hostile_events.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.garbage import GARBAGE, REFUSED, harmless
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui
from tests.test_answers import LINES

pytestmark = [pytest.mark.long, pytest.mark.lab]

HOSTILE = {f"h{number:02}": kind for number, kind in enumerate(GARBAGE)}
GOOD = "mercer"
MEMORY_LIMIT = 1200 << 20
"""Bytes that the laptop's process may take: up to 8 MiB of garbage are kept of each answer, of all hosts at once."""

AGENT = """#!/bin/sh
case "$1 $2" in
"remote_agent.host.node status") cat ~/garbage/node;;
"remote_agent.host.node stop") cat ~/garbage/removed;;
"remote_agent.runs "*) cat ~/garbage/runs;;
"remote_agent.logs "*) cat ~/garbage/log;;
"remote_agent.sampling "*) cat ~/garbage/sample; sleep 60;;
esac
"""
PYTHON = """#!/bin/sh
case "$*" in
*-V*) echo Python 3.11.7;;
*) cat >/dev/null; cat ~/garbage/facts;;
esac
"""
MEASURED = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]);"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=open('/tmp/peak', 'w')); sys.exit(code)"
)


def answers_with(home: Path, kind: str | None) -> None:
    """Have the host with this home folder answer with a kind of garbage; None: as it should."""
    for folder in ("garbage", ".hetero-tui/lab/agent"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    for place, line in LINES.items():
        data = line.encode() if kind is None else GARBAGE[kind](line)
        (home / "garbage" / place).write_bytes(data + b"\n")
    for path, text in ((home / "garbage/python", PYTHON), (home / ".hetero-tui/lab/agent/run", AGENT)):
        path.write_text(text)
        path.chmod(0o700)


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    with Lab([HostSpec(name=name) for name in (GOOD, *HOSTILE)]) as lab:
        yield lab


@pytest.fixture
def product(lab: Lab) -> HeteroTui:
    answers_with(lab.host(GOOD).home, None)
    for name, kind in HOSTILE.items():
        answers_with(lab.host(name).home, kind)
    return HeteroTui(lab.laptop, lab.inventory({name: {"python": "~/garbage/python"} for name in (GOOD, *HOSTILE)}))


def command(product: HeteroTui, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command; whatever it prints is harmless, and the memory that it takes is bounded."""
    done = product.laptop.run([sys.executable, "-c", MEASURED, *product.command(*words)])
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed
    assert harmless(printed), next(line for line in printed.splitlines() if not harmless(line))
    assert int((product.laptop.folder / "tmp/peak").read_text()) * 1024 < MEMORY_LIMIT
    return done


def alone(lab: Lab, *words: str) -> Any:
    """What the command says where there is only the good host."""
    inventory = lab.inventory({GOOD: {"python": "~/garbage/python"}}, hosts=[GOOD])
    return HeteroTui(lab.laptop, inventory).document(*words)


def test_probe_has_one_line_for_each_and_the_good_hosts_facts(lab: Lab, product: HeteroTui) -> None:
    done = command(product, "probe", "--json")
    assert done.returncode == 3
    hosts = {host["name"]: host for host in json.loads(done.stdout)["hosts"]}
    expected = alone(lab, "probe")["hosts"][0]
    for entry in (hosts[GOOD], expected):
        del entry["facts"]["clock_ahead"], entry["notes"], entry["seconds"]  # what it says of its clock is of the past
    assert hosts[GOOD] == expected
    for name, kind in HOSTILE.items():
        assert hosts[name]["status"] == "error" or kind not in REFUSED, kind
        if hosts[name]["error"] is not None:
            assert sum(line.startswith(f"hetero-tui: {name}: ") for line in done.stderr.splitlines()) == 1
            assert hosts[name]["error"]["hint"]
    shown = command(product, "probe", "--plain")
    assert shown.returncode == 3
    assert sum(line.startswith(f"{GOOD} ") for line in shown.stdout.splitlines()) == 1


@pytest.mark.parametrize("word", ["status", "runs"])
def test_status_and_runs_are_those_of_the_good_host(lab: Lab, product: HeteroTui, word: str) -> None:
    done = command(product, word, "--json")
    assert done.returncode == 3
    document, expected = json.loads(done.stdout), alone(lab, word)
    good = [run for run in document["runs"] if run["host"] == GOOD]
    assert good == expected["runs"]
    if word == "status":
        states = {host["name"]: host for host in document["hosts"]}
        assert states[GOOD] == expected["hosts"][0]
        for name, kind in HOSTILE.items():
            assert states[name]["state"] in ("failed", "unreachable") or kind not in REFUSED, kind


def test_logs_are_the_good_hosts(product: HeteroTui) -> None:
    done = command(product, "logs", "text-7f3a", "--plain")
    assert done.returncode == 3
    assert sum(f"[{GOOD}/cpu] hello" in line for line in done.stdout.splitlines()) == 1


def test_down_cleans_the_good_host(product: HeteroTui) -> None:
    done = command(product, "down", "--yes", "--json")
    removed = [entry for entry in json.loads(done.stdout)["leftovers"] if entry["host"] == GOOD]
    assert [entry["detail"] for entry in removed] == ["6389"]  # as it says itself
