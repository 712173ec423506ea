"""Every command that goes to a host is read by the login shell of its user first, whichever that is."""

import shutil
from pathlib import Path

import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import CommandFailed
from hetero_tui.fleet import agent
from hetero_tui.fleet.exclusion import alone
from hetero_tui.fleet.install import on_host
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.inventory.file import load
from hetero_tui.session import Session
from hetero_tui.transport import Transport
from hetero_tui.transport.processes import spawn

SHELLS = ("sh", "bash", "zsh", "fish", "csh", "tcsh")
OF_THE_USER = ("env/lib", "install/mine", "agent/mine", "profiles/mine", "agent.new.1/mine", "processes/mine", "token")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The embedded machines' login shell, as sshd starts it: with ``-c`` and the line."""
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"no {request.param} is installed here")
    monkeypatch.setattr("hetero_tui.demo.session.spawn", lambda words, **more: spawn((path, *words[1:]), **more))
    return str(request.param)


async def test_words_come_through_unchanged(shell: str, machines: EmbeddedMachines) -> None:
    words = (
        "",
        "a\nb\n",
        "!! !x ^a^b",
        "it's",
        '"$HOME" `id` $(id) ~ * {a,b}',
        "\\",
        "\\\\ \\' \\n \\0041",
        "-n",
        "Ü\t中",
    )
    path = machines.folder / "inventory.yaml"
    async with Session(load(path), path, ledger_folder=machines.folder / "l") as session:
        transport = session._fleet.transports["half"]
        command = ["sh", "-c", 'printf "<%s>" "$@"; cat', "sh", *words]
        done = await transport.run(command, step="try", deadline=30, stdin=b"in")
        assert done.stdout.raw == "".join(f"<{word}>" for word in words) + "in"
        assert done.stderr.raw == ""


async def test_what_bootstrap_up_and_down_do_works_and_touches_nothing_else_of_the_home(
    shell: str, machines: EmbeddedMachines
) -> None:
    home = machines.machine("half").home
    ours = home / agent.folder(machines.cluster)
    kept = [home / name for name in OF_THE_USER]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("the user's own")
    file = machines.folder / "inventory.yaml"
    inventory = load(file)
    async with Session(inventory, file, ledger_folder=machines.folder / "laptop") as session:
        transport = session._fleet.transports["half"]
        await _equip(transport, machines.cluster, ours)
        async with alone(inventory, {"half": transport}, "up", lambda text: pytest.fail(text)):
            await session.probe()
        assert "half" in session._fleet.facts
        report = await session.down(purge=True)
        assert not report.leftovers
        assert {removed.kind for removed in report.removed if removed.host == "half"} >= {"environment", "folder"}
    assert not ours.exists()
    assert [path.read_text() for path in kept] == ["the user's own"] * len(kept)


async def _equip(transport: Transport, cluster: str, ours: Path) -> None:
    """The agent, and an environment as bootstrap leaves it."""
    for name in ("env/lib", "env/ready", "install/uv", "processes/1.json"):
        await transport.put(b"{}", f"{agent.folder(cluster)}/{name}", step="put", deadline=30)
    assert (ours / "env/ready").read_bytes() == b"{}"
    found = await on_host.look(transport, cluster)
    assert found.system.uname
    assert found.ready is None
    with pytest.raises(CommandFailed, match=r"install/uv"):  # the one above is no program
        _ = [word async for word in on_host.make(transport, cluster, "3.99", Sources())]
    assert not (ours / "env").exists()
    assert (ours / "install/uv").exists()
    await transport.put(b"{}", f"{agent.folder(cluster)}/env/ready", step="put", deadline=30)
    probed = await transport.run(
        agent.with_python("-c 'import sys; print(sys.executable)'", ["python3"]), step="python", deadline=30
    )
    await agent.ship(transport, cluster, probed.stdout.raw.strip())
    status = await agent.call(
        transport, cluster, "host.node", "status", "--folder", agent.home_folder(cluster), step="status"
    )
    assert status is not None
    assert status.exit_status == 0, status
