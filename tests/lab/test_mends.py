"""``check`` names the command that mends a host, and that very command does: what a user copies is run as it stands."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui
from tests.lab.test_unusual_hosts import AGENT, KINDS, Kind, account, bash
from tests.wheels import thin_wheels

pytestmark = [pytest.mark.long, pytest.mark.lab]

PASSPHRASE = "secret"
AGENTS = {"SSH_AUTH_SOCK": AGENT, "SSH_ASKPASS": f"{Path.home()}/askpass", "SSH_ASKPASS_REQUIRE": "force"}
HOME = "/tmp/nobodys"  # for itself on each host, unlike the table's /nonexistent
WITHOUT_SHM = (
    "mkdir /run/dev; for name in null zero full random urandom tty; do cp -a /dev/$name /run/dev; done;"
    " mount --bind /run/dev /dev"
)
LIMITS = "/etc/security/limits.d"
OF_THE_TABLE = ("taken", "readonly", "roshm", "noproc", "alias", "swapped", "hangs", "blankpython")
MENDED = {name: KINDS[name] for name in OF_THE_TABLE} | {
    "locked": replace(KINDS["locked"], server=("AuthorizedKeysFile .ssh/locked_keys",)),
    "homeless": replace(KINDS["homeless"], files=bash(f"export HOME={HOME}")),
    "foreign": Kind("another user's folder", "", arrange="mkdir ~/.hetero-tui; chown 1234 ~/.hetero-tui"),
    "forbidden": Kind(
        "a folder that its owner may not use",
        "",
        server=("AllowUsers *",),
        arrange=f"{account('me', uid=1500)}; mkdir ~/.hetero-tui; chown 1500 ~ ~/.hetero-tui; chmod 0 ~/.hetero-tui",
        entry={"user": "me"},
    ),
    "fewfiles": Kind(
        "a limit of open files",
        "",
        server=("UsePAM yes",),
        arrange=f"mount -t tmpfs tmpfs {LIMITS}; echo 'root - nofile 100' > {LIMITS}/few.conf",
    ),
    "noshm": Kind("no /dev/shm", "", arrange=WITHOUT_SHM),
    "bare": Kind("a Python without the packages", "", entry={"python": None}),  # last: it needs the others
}


@pytest.fixture
def lab(possible: None) -> Iterator[Lab]:
    kinds = {"plain": KINDS["plain"], **MENDED}
    specs = [
        HostSpec(name=name, server=kind.server, files=kind.files or {}, arrange=kind.arrange)
        for name, kind in kinds.items()
    ]
    with Lab(specs) as lab:
        key = f"{Path.home()}/.ssh/locked"
        lab.laptop.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", PASSPHRASE, "-f", key])
        shutil.copy(lab.laptop.home / ".ssh/locked.pub", lab.host("locked").home / ".ssh/locked_keys")
        (lab.laptop.home / "askpass").write_text(f"#!/bin/sh\necho {PASSPHRASE}\n")
        (lab.laptop.home / "askpass").chmod(0o700)
        with lab.laptop.popen(["ssh-agent", "-D", "-a", AGENT]) as agent:
            yield lab
            agent.terminate()


def run_what_is_said(lab: Lab, product: HeteroTui, name: str, mend: str) -> None:
    """On the machine that it is meant for; the lab's user is root already, and has no sudo."""
    found = re.search(r"`([^`]+)`", mend)
    assert found is not None, f"{name}: no command: {mend}"
    command = found[1].replace("sudo ", "")
    if command == "hetero-tui bootstrap":  # the lab has no internet
        wheels = str(thin_wheels(lab.laptop.home / "wheelhouse"))
        done = product.run("bootstrap", "--accept-new-host-keys", "--from-laptop", "--wheels", wheels)
    elif command.startswith("hetero-tui "):
        done = product.run(*command.split()[1:])
    elif command.startswith(("ssh-keygen ", "ssh-add ")):
        done = lab.laptop.run(["sh", "-c", command], deadline=60.0, **AGENTS)
    elif command.startswith("[ "):  # a line for the start-up file
        file = lab.host(name).home / ".bashrc"
        file.write_text(f"{command}\n{file.read_text()}")
        return
    else:
        done = lab.host(name).exec(["sh", "-c", command])
    assert done.returncode == 0, f"{name}: {command}: {done.stderr}"
    if python := re.search(r"set `python: ([^`]+)`", mend):
        text = product.inventory.read_text()
        product.inventory.write_text(
            text.replace(json.dumps((MENDED[name].entry or {})["python"]), json.dumps(python[1]))
        )


def test_the_command_that_check_names_mends_it(lab: Lab) -> None:
    entries = {name: kind.entry for name, kind in MENDED.items() if kind.entry}
    inventory = lab.inventory(entries, changed_key=["swapped"])
    product = HeteroTui(lab.laptop, inventory, SSH_AUTH_SOCK=AGENT)
    check = product.document("check", exit_code=3)
    mends: dict[str, Any] = {one["host"]: one["mend"] for one in check["findings"] if one["level"] == "bad"}
    assert mends.keys() == MENDED.keys()
    for name, mend in mends.items():
        run_what_is_said(lab, product, name, mend)
    hosts = product.document("probe", "--accept-new-host-keys")["hosts"]
    assert {host["name"] for host in hosts} == {"plain", *MENDED} - {"alias"}
    assert [host for host in hosts if host["error"] or host["problems"]] == []
