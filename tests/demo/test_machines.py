"""Embedded machines are hosts like any other: they are reached through the product's own inventory and transport."""

import asyncio
import os
import signal
import sys

import psutil
import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import AuthenticationFailed, Unreachable
from hetero_tui.inventory.file import load
from hetero_tui.transport.ssh import SshTransport
from remote_agent.protocol import SIMULATED_SPEED
from tests.processes import ends


@pytest.fixture
async def transports(machines: EmbeddedMachines):
    inventory = load(machines.write_inventory())
    opened = {host.name: SshTransport(host, inventory, config=()) for host in inventory.hosts}
    yield opened
    for transport in opened.values():
        await transport.close()


async def test_each_machine_has_its_own_home_and_speed_and_a_clean_environment(machines, transports, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/leaked")
    for (name, transport), speed in zip(transports.items(), ("1", "0.5", "0.25"), strict=True):
        done = await transport.run(["env"], step="try", deadline=30)
        environment = dict(line.split("=", 1) for line in done.stdout.raw.splitlines())
        assert environment["HOME"] == environment["PWD"] == str(machines.machine(name).home)
        assert environment[SIMULATED_SPEED] == speed
        assert "PYTHONPATH" not in environment


async def test_only_the_generated_key_gets_in_and_it_is_private(machines, tmp_path):
    inventory = load(machines.write_inventory())
    assert machines.identity_file.stat().st_mode & 0o777 == 0o600
    assert machines.folder.stat().st_mode & 0o777 == 0o700
    async with EmbeddedMachines(tmp_path, speeds=(1.0,)) as other:
        stranger = inventory.hosts[0].model_copy(update={"identity_file": str(other.identity_file)})
        with pytest.raises(AuthenticationFailed):
            await SshTransport(stranger, inventory, config=()).connect()


async def test_forwarding_leads_to_this_computer_only(transports):
    dialled = await transports["fast"]._connected()
    with pytest.raises(Exception, match=r"prohibited|refused|[Cc]onnect"):
        await dialled.connection.open_connection("192.0.2.1", 80)


async def test_a_cut_connection_ends_the_command_and_its_group_but_not_what_made_its_own_session(machines, transports):
    script = "sleep 61 & echo $!; setsid sh -c 'echo $$; exec sleep 62' & wait"
    if sys.platform == "darwin":
        pytest.skip("macOS has no setsid command")
    async with transports["half"].stream(["sh", "-c", script], step="follow", silence=20) as lines:
        grouped, apart = int((await anext(lines)).raw), int((await anext(lines)).raw)
        await machines.unplug("half")
        with pytest.raises(Unreachable):
            await anext(lines)
    try:
        assert await asyncio.to_thread(ends, grouped)
        assert psutil.pid_exists(apart)
        await machines.plug_in("half")
        assert (await transports["half"].run(["echo", "back"], step="try", deadline=30)).stdout.raw == "back\n"
    finally:
        os.kill(apart, signal.SIGKILL)


async def test_a_background_child_that_keeps_the_pipes_does_not_hold_the_command_back(transports):
    done = await transports["fast"].run(["sh", "-c", "sleep 60 & echo $!"], step="try", deadline=30)
    os.kill(int(done.stdout.raw), signal.SIGKILL)


async def test_leaving_ends_all_commands_and_frees_the_ports(short_folder):
    async with EmbeddedMachines(short_folder, speeds=(1.0,)) as machines:
        inventory = load(machines.write_inventory())
        transport = SshTransport(inventory.hosts[0], inventory, config=())
        running = asyncio.create_task(transport.run(["sleep", "63"], step="try", deadline=60))
        async with asyncio.timeout(30):
            while not (sleeping := [child for child in psutil.Process().children() if "63" in _words(child)]):
                await asyncio.sleep(0.05)
        assert len(sleeping) == 1
    with pytest.raises(Unreachable):
        await running
    assert not sleeping[0].is_running()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection(inventory.hosts[0].address, inventory.hosts[0].port)
    await transport.close()


def _words(process: psutil.Process) -> list[str]:
    """Its command line; empty once it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
