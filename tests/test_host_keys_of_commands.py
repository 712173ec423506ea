"""A host whose key is another than it was is refused by every command that connects, an unknown one unless told to."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import asyncssh
import pytest
import typer

from hetero_tui.cli import application
from hetero_tui.demo.machines import EmbeddedMachines

AT_ONCE = 3
WITHIN = 100.0
GOES_ON_FOR = 20.0
"""Seconds after which ``metrics`` is ended, which goes on until then."""

WORDS = {
    "probe": (),
    "up": (),
    "plan": ("digits",),
    "status": (),
    "down": ("--yes",),
    "bootstrap": (),
    "check": (),
    "train": ("digits",),
    "attach": ("run-1",),
    "logs": ("run-1",),
    "stop": ("run-1",),
    "resume": ("run-1",),
    "drain": ("fast",),
    "undrain": ("fast",),
    "runs": (),
    "report": ("run-1", "--output", "report.html"),
    "export": ("run-1",),
    "serve": ("run-1",),
    "metrics": ("--port", "0"),
    "sweep": ("digits", "--param", "learning_rate=1e-4..1e-2:log", "--trials", "2"),
    "run": ("script.py",),
    "ray": ("status",),
}
SUCCEED = {"metrics", "down"}
"""``metrics`` goes on and says that the host is missing, ``down`` has never done anything there; both say why."""

CONNECT_TO_NO_HOST_OF_THE_INVENTORY = {"demo", "replay", "remove", "add", "web"}
"""``add`` looks at the host that it names, ``web`` shows the app: both by the same transport."""


def test_each_command_is_tried_or_connects_to_nothing() -> None:
    command = typer.main.get_command(application)
    assert isinstance(command, typer.core.TyperGroup)
    assert command.commands.keys() == WORDS.keys() | CONNECT_TO_NO_HOST_OF_THE_INVENTORY


async def run(machines: EmbeddedMachines, name: str, *more: str) -> tuple[int, str]:
    folder = machines.folder / f"laptop-{name}"
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text("")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "XDG_"))}
    inventory = ("--inventory", str(machines.folder / "inventory.yaml"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hetero_tui", *inventory, name, *more, *WORDS[name]),
        env=environment | {"HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = asyncio.create_task(process.communicate())
    if not (await asyncio.wait([said], timeout=GOES_ON_FOR if name == "metrics" else WITHIN))[0]:
        process.kill()
    output, _ = await said
    return process.returncode or 0, output.decode()


async def all_of_them(machines: EmbeddedMachines, *more: str) -> dict[str, tuple[int, str]]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> tuple[int, str]:
        async with limit:
            return await run(machines, name, *(() if name == "ray" else more))

    return dict(zip(WORDS, await asyncio.gather(*map(one, WORDS)), strict=True))


@pytest.mark.long
async def test_a_changed_host_key_is_refused_and_an_unknown_one_named_with_the_flag(short_folder: Path) -> None:
    async with EmbeddedMachines(short_folder, speeds=(1.0,)) as machines:
        machines.write_inventory()
        (machine,) = machines.machines
        another = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
        for known, more, said in (
            (f"[{machine.address}]:{machine.port} {another}\n", ("--accept-new-host-keys",), "shows another key than"),
            ("", (), "--accept-new-host-keys"),
        ):
            machines.known_hosts.write_text(known)
            outcomes = await all_of_them(machines, *more)
            wrong = {
                name: (code, output[-300:])
                for name, (code, output) in outcomes.items()
                if (code <= 0 and name not in SUCCEED) or said not in output or "Traceback" in output
            }
            assert wrong == {}
            assert machines.known_hosts.read_text() == known
            assert list(machine.home.iterdir()) == []
