"""What a user is told when hosts can't be reached or used: one clear line for each, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hetero_tui import deadlines
from tests.lab.lab import NOBODY, Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui

pytestmark = [pytest.mark.lab]

STATUSES = {
    "mercer": "ok",
    "absent": "unreachable",  # an address that nobody has
    "dark": "unreachable",  # its plug is pulled
    "closed": "unreachable",  # it is there, but no SSH server listens on that port
    "stranger": "auth_failed",
    "unseen": "host_key_unknown",
    "swapped": "host_key_changed",
    "bare": "error",  # no Python anywhere
    "moved": "error",  # not where the inventory says
    "crosby": "ok",
}
NOT_THERE: dict[str, dict[str, object]] = {"absent": {"address": NOBODY}, "closed": {"port": 2222}}
WRONG: dict[str, dict[str, object]] = {
    "stranger": {"user": "nobody-here"},
    "moved": {"python": "/nonexistent/bin/python"},
}


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    with Lab([HostSpec(name=name, has_python=name != "bare") for name in STATUSES]) as lab:
        lab.host("dark").pull_plug()
        yield lab


@pytest.fixture(scope="module")
def product(lab: Lab) -> HeteroTui:
    inventory = lab.inventory(NOT_THERE | WRONG, unknown_key=["unseen"], changed_key=["swapped"])
    return HeteroTui(lab.laptop, inventory)


def test_each_fault_has_its_status_cause_and_hint_and_the_others_are_probed_in_time(product: HeteroTui) -> None:
    begin = time.monotonic()
    hosts = product.document("probe", exit_code=3)["hosts"]
    assert time.monotonic() - begin <= deadlines.PROBE + 1
    assert {host["name"]: host["status"] for host in hosts} == STATUSES
    for host in hosts:
        if host["status"] == "ok":
            assert host["error"] is None
            assert host["facts"]["hostname"] == host["name"]
        else:
            assert set(host["error"]) >= {"step", "cause", "hint"}
            for part in ("step", "cause", "hint"):
                assert host["error"][part].strip(), host
                assert "\n" not in host["error"][part]
    causes = {host["name"]: f"{host['error']['cause']} {host['error']['hint']}" for host in hosts if host["error"]}
    assert "SHA256:" in causes["unseen"]
    assert "ython" in causes["bare"]
    assert "/nonexistent/bin/python" in causes["moved"]
    assert "2222" in causes["closed"]


def test_people_read_exactly_one_line_for_each_host(lab: Lab) -> None:
    # Those that are waited for in vain are left out: `closed` is unreachable, too, and known to be at once.
    names = [name for name in STATUSES if name not in ("absent", "dark")]
    inventory = lab.inventory(NOT_THERE | WRONG, hosts=names, unknown_key=["unseen"], changed_key=["swapped"])
    done = HeteroTui(lab.laptop, inventory).run("probe", "--plain")
    assert done.returncode == 3
    lines = (done.stdout + done.stderr).splitlines()
    for name in names:
        assert sum(line.split()[:1] == [name] or f" {name}:" in line for line in lines) == 1, "\n".join(lines)
