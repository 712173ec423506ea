"""``down`` ends runs before the cluster that they train on."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hetero_tui import deadlines, events
from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import HostKeyChanged
from hetero_tui.fleet import agent
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.teardown import tear_down
from hetero_tui.inventory import Host
from hetero_tui.inventory.file import load
from hetero_tui.session import Session
from hetero_tui.transport.base import Completed
from hetero_tui.transport.local import LocalTransport
from remote_agent.host import layout, processes

NAS = Host(name="nas", connection="local")

# Ends once asked to, and writes down whether the other process outlived it by a second, and whether this machine said
# by then that it is being taken down: else an app that follows the run would let it go on.
ASKED_TO_END = """
import os, pathlib, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
ends = time.monotonic() + 1
while time.monotonic() < ends and os.path.exists(f"/proc/{sys.argv[1]}"):
    time.sleep(0.02)
said = "there" if time.monotonic() >= ends else "gone"
pathlib.Path(sys.argv[2]).write_text(said + " " + ("stopping" if os.path.exists(sys.argv[3]) else "unaware"))
"""


async def test_a_run_ends_before_the_nodes_of_other_hosts_so_that_it_takes_none_for_lost(machines: EmbeddedMachines):
    path, said = machines.folder / "inventory.yaml", machines.folder / "said"
    places = {name: machines.machine(name).home / ".hetero-tui" / machines.cluster for name in ("fast", "half")}
    async with Session(load(path), path, ledger_folder=machines.folder / "laptop") as session:
        for name in places:
            await session._fleet.transports[name].connect()
            await agent.ship(session._fleet.transports[name], machines.cluster, sys.executable)
        worker = launch(places["half"], layout.RAY, "import signal; signal.pause()")
        told = (str(worker.pid), str(said), str(layout.stop_flag(places["fast"])))
        run = launch(places["fast"], f"{layout.RUN_PREFIX}text-1", ASKED_TO_END, *told)
        async with asyncio.timeout(20):
            while "ready" not in Path(run.log).read_text():
                await asyncio.sleep(0.02)
        report = await session.down()
    assert report.leftovers == ()
    assert {(removed.host, removed.detail) for removed in report.removed if removed.kind == "process"} == {
        ("fast", f"{layout.RUN_PREFIX}text-1"),
        ("half", layout.RAY),
    }
    assert said.read_text() == "there stopping"


class Hanging(LocalTransport):
    """A machine on which no command ends, as where a start-up file waits for ever."""

    asked = 0

    async def run(self, command: Sequence[str], **options: Any) -> Completed:
        self.asked += 1
        return await super().run(["sleep", "600"], **options)


async def test_a_machine_that_runs_no_command_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deadlines, "COMMAND", 0.3)
    monkeypatch.setattr(deadlines, "NODE_STOP", 5.0)
    machine = Hanging(NAS)
    nothing = Ledger("home", tmp_path)
    report = await asyncio.wait_for(
        tear_down("home", {NAS: machine}, {}, nothing, nothing, lambda _: None, purge=False), 5
    )
    assert (machine.asked, report.unseen) == (1, ("nas",))


class Reinstalled(LocalTransport):
    """A machine that shows another key than before."""

    async def connect(self) -> None:
        raise HostKeyChanged("nas", "nas shows another key", step="connect", hint="if so: `ssh-keygen -R nas`")


async def test_a_machine_that_was_set_up_anew_is_left_with_what_lets_the_next_teardown_in(tmp_path: Path):
    ledger = Ledger("home", tmp_path)
    ledger.intend(NAS, "node")
    heard: list[events.Event] = []
    report = await tear_down(
        "home", {NAS: Reinstalled(NAS)}, {}, ledger, Ledger("home", tmp_path), heard.append, purge=False
    )
    (left,) = report.leftovers
    assert [event.detail for event in heard if isinstance(event, events.ClusterChanged)] == [
        "",
        "but not on nas, where it may still run",
    ]
    assert left.detail.startswith("nas shows another key; it is cleaned by the next `hetero-tui down`, once it lets")
    assert left.detail.endswith("-> if so: `ssh-keygen -R nas`")


def launch(folder: Path, name: str, program: str, *arguments: str) -> processes.ProcessRecord:
    """Start a Python program as a process of this cluster."""
    return processes.launch(folder, name, [sys.executable, "-c", program, *arguments], folder / "logs" / f"{name}.log")
