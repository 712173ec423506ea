"""A machine with an empty home becomes one that can train, also when the command is killed again and again on the way.

uv, the environment, the installation and the verification are real. The wheels are thin (``tests/wheels.py``).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import CommandFailed
from hetero_tui.fleet.install import on_host
from hetero_tui.fleet.install.bootstrap import _Bootstrap
from hetero_tui.fleet.install.lock import pins
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.fleet.install.verification import verify
from hetero_tui.fleet.probing import Probed
from hetero_tui.inventory.file import load
from hetero_tui.session import Session
from remote_agent.host import process_table
from tests.conftest import MakeFacts
from tests.wheels import thin_wheel, thin_wheels

SEEN_WITHIN = 120.0


class Fleet:
    """One embedded machine without anything, and the command line of a laptop with a home of its own."""

    def __init__(self, folder: Path, machines: EmbeddedMachines) -> None:
        self.home = machines.machines[0].home
        self.cluster = self.home / ".hetero-tui" / machines.cluster
        self.inventory = machines.write_inventory()
        kept = [line for line in self.inventory.read_text().splitlines() if "python:" not in line]
        self.inventory.write_text("\n".join(kept) + "\n")
        self.wheels = thin_wheels(folder / "wheelhouse")
        self.laptop = folder / "laptop"
        self.laptop.mkdir()

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "XDG_"))}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hetero_tui", "--inventory", str(self.inventory), *words),
            env=environment | {"HOME": str(self.laptop)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def document(self, *words: str) -> dict[str, object]:
        command = await self.start(*words, "--json")
        stdout, stderr = await asyncio.wait_for(command.communicate(), SEEN_WITHIN)
        assert command.returncode == 0, stderr.decode()
        return json.loads(stdout)

    async def kill_when(self, seen: Callable[[], object], *options: str) -> None:
        command = await self.start(*self.bootstrap(), *options)
        assert command.stderr is not None
        ends = time.monotonic() + SEEN_WITHIN
        while not seen():
            assert time.monotonic() < ends, "the moment did not come"
            assert command.returncode is None, (await command.stderr.read()).decode()
            await asyncio.sleep(0.005)
        command.send_signal(signal.SIGKILL)
        await command.communicate()
        assert command.returncode == -signal.SIGKILL
        while process_table.find_marked(self.cluster):  # what it had ordered there ends with it
            assert time.monotonic() < ends, process_table.find_marked(self.cluster)
            await asyncio.sleep(0.02)

    def bootstrap(self) -> tuple[str, ...]:
        return ("bootstrap", "--from-laptop", "--wheels", str(self.wheels))


@pytest.fixture
async def fleet(short_folder: Path) -> AsyncIterator[Fleet]:
    path = f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin"
    async with EmbeddedMachines(short_folder, speeds=(1.0,), search_path=path) as machines:
        yield Fleet(short_folder, machines)


@pytest.mark.long
async def test_a_killed_bootstrap_is_gone_on_with_and_the_machine_is_fit_then(fleet: Fleet) -> None:
    there = fleet.cluster
    half_made = there / "env/bin/python"  # of an environment that says that it is whole, and does not start
    half_made.parent.mkdir(parents=True)
    half_made.write_text("#!/bin/sh\nexit 1\n")
    half_made.chmod(0o755)
    (there / "env/ready").write_text('{"digest": "x", "python": "3.11", "build": "cpu", "extras": []}')
    await fleet.kill_when(lambda: list(there.glob("install/*.gz.part")))
    thin_wheel(fleet.wheels, "einops", "0.8.2")
    await fleet.kill_when(lambda: (there / "env/pyvenv.cfg").exists(), "--with", "einops")
    await fleet.kill_when(lambda: list(there.glob("env/lib/*/site-packages/*.dist-info")))
    assert not (there / "env/ready").exists()

    (done,) = (await fleet.document(*fleet.bootstrap()))["hosts"]
    assert (done["changed"], done["torch_build"], done["error"]) == (True, "cpu", None)

    (host,) = (await fleet.document("probe"))["hosts"]
    assert host["problems"] == []
    assert host["facts"]["python"]["executable"] == str(there / "env/bin/python")
    assert host["facts"]["packages"]["torch"] == pins()["torch"] + "+cpu"
    assert list(there.glob("env/lib/*/site-packages/einops-*")), "it was named once, to a bootstrap that was killed"
    assert sorted(path.name for path in fleet.home.iterdir()) == [".hetero-tui"], "nothing outside is touched"

    (ledger,) = fleet.laptop.rglob("environments.jsonl")
    ledger.unlink()  # as on another laptop, or where the machine's address is new
    (again,) = (await fleet.document("bootstrap"))["hosts"]
    assert again["changed"] is False
    assert ledger.exists(), "`down --purge` has to know of it"

    (packages,) = there.glob("env/lib/*/site-packages")
    (packages / "safetensors.py").write_text("raise ImportError('broken')")  # it looks whole, and is not
    fixed = await fleet.document("check", "--fix", *fleet.bootstrap()[1:])
    assert [finding["what"] for finding in fixed["findings"] if finding["level"] == "bad"] == []
    assert not (packages / "safetensors.py").exists()


@pytest.mark.parametrize(
    ("build", "devices", "anew", "stays"),
    [
        ("cu126", None, False, True),
        ("cpu", ("cpu",), False, True),
        ("cpu", None, False, False),
        ("cu130", None, False, False),
        ("cu126", None, True, False),
    ],
)
async def test_a_python_of_the_machines_own_stays_where_its_torch_is_built_for_the_devices_that_train(
    fleet: Fleet, make_facts: MakeFacts, build: str, devices: tuple[str, ...] | None, anew: bool, stays: bool
) -> None:
    card = {"kind": "cuda", "index": 0, "name": "TITAN", "driver": "580.65", "capability": "6.1"}
    facts = make_facts(accelerators=[card], torch_build=build)
    inventory = load(fleet.inventory)
    (host,) = inventory.hosts
    inventory = inventory.model_copy(update={"hosts": (host.model_copy(update={"devices": devices}),)})
    async with Session(inventory, fleet.inventory, ledger_folder=fleet.laptop) as session:
        work = _Bootstrap(
            *(inventory, session._fleet.transports, Sources(), (), session._fleet.environments, lambda event: None),
            *(frozenset(), frozenset([host.name] if anew else [])),
        )
        needs = await work._look(Probed(host.name, facts), {})
    assert (needs is None) == stays
    assert (host.name in work._installed) == stays


async def test_a_device_that_ends_the_test_of_an_environment_is_named(machines: EmbeddedMachines) -> None:
    python = machines.machine("half").home / "python"
    python.write_text("#!/bin/sh\necho trying cpu; echo trying cuda:1; echo 'a fault' >&2; kill -SEGV $$\n")
    python.chmod(0o755)
    path = machines.folder / "inventory.yaml"
    async with Session(load(path), path, ledger_folder=machines.folder / "laptop") as session:
        with pytest.raises(CommandFailed, match=r"at the first operation on cuda:1") as caught:
            await verify(session._fleet.transports["half"], [str(python)], ["cuda:0", "cuda:1"])
    assert "leave cuda:1 out with `devices:`" in caught.value.hint


async def test_packages_of_jobs_outlive_a_bootstrap_that_fails_and_those_that_made_it_fail_do_not(fleet: Fleet) -> None:
    (fleet.cluster / "env").mkdir(parents=True)
    (fleet.cluster / "env/ready").write_text('{"digest": "x", "python": "3.11", "build": "cpu", "extras": ["einops"]}')
    for wheel in fleet.wheels.glob("torch-*"):
        wheel.unlink()
    async with Session(load(fleet.inventory), fleet.inventory, ledger_folder=fleet.laptop) as session:
        report = await session.bootstrap(Sources(from_laptop=True, wheels=fleet.wheels), ["no-such-package"])
        assert len(report.failed) == 1
        (transport,) = session._fleet.transports.values()
        found = await on_host.look(transport, session.inventory.cluster)
    assert found.ready is None
    assert found.extras == ("einops",)
