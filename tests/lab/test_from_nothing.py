"""The page about hosts takes a reader from nothing to a trained model on two machines: its commands, as they stand.

Added is only what a script has to say, and where packages come from: the lab has no internet.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.machines import HostSpec, login
from tests.lab.product import COMMAND
from tests.wheels import thin_wheels

pytestmark = [pytest.mark.long, pytest.mark.lab, pytest.mark.ray]

PAGE = Path(__file__).parents[2] / "docs/hosts.md"


@pytest.fixture
def lab(possible: None) -> Iterator[Lab]:
    with Lab([HostSpec(name="mercer"), HostSpec(name="crosby")], rate_mbit=1000) as lab:
        lab.known_hosts()
        yield lab


def commands(lab: Lab) -> list[list[str]]:
    """Those of the page's blocks, with the lab's addresses."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
    text = "\n".join(lines).replace("me@", f"{login().pw_name}@")
    for number, host in enumerate(lab.hosts, start=11):
        text = text.replace(f"192.168.1.{number}", host.address)
    return [words[1:] for words in map(shlex.split, text.splitlines()) if words]


def test_each_command_of_the_page_works_on_machines_with_nothing_and_nothing_is_left(lab: Lab) -> None:
    folder = lab.laptop.home / "fleet"
    folder.mkdir()
    wheels = ["--from-laptop", "--wheels", str(thin_wheels(lab.laptop.home / "wheelhouse"))]
    more = {"bootstrap": wheels, "down": ["--yes"]}
    told = commands(lab)
    assert [words[0] for words in told] == ["add", "add", "check", "bootstrap", "up", "train", "export", "down"]

    def run(words: list[str]) -> str:
        script = 'cd "$0" && exec "$@"'
        began = time.monotonic()
        done = lab.laptop.run(["sh", "-c", script, str(folder), COMMAND, *words], deadline=400)
        print(f"{time.monotonic() - began:6.1f} s  hetero-tui {' '.join(words)}")
        assert "Traceback" not in done.stderr
        if words[0] == "check":  # before `bootstrap` there are no packages, which it says
            assert done.returncode == 1
            assert "`hetero-tui bootstrap` makes an environment there" in done.stdout
        else:
            assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    for words in told:
        run([*words, *more.get(words[0], [])])
        if words[0] == "bootstrap":
            again = json.loads(run([*words, "--json"]))
            assert [host["changed"] for host in again["hosts"]] == [False, False]
            found = json.loads(run(["probe", "--json"]))
            assert all("/.hetero-tui/" in host["facts"]["python"]["executable"] for host in found["hosts"])
    assert (folder / "digits.safetensors").stat().st_size > 1000
    for host in lab.hosts:
        assert [process.argv for process in host.processes()] == []
        stays = {path.name for path in host.home.glob(".hetero-tui/*/*")}
        assert stays <= {"agent", "runs"}, "the run, and what reads it"
