"""An installation on a host keeps to our settings, and passwords stay off command lines."""

import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from hetero_tui.fleet.install import on_host, sources
from hetero_tui.fleet.install.lock import Environment
from hetero_tui.fleet.install.platforms import PLATFORMS
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.inventory import Host
from hetero_tui.planning.builds import Build
from hetero_tui.transport.commands import Running
from hetero_tui.transport.local import LocalTransport
from tests.wheels import thin_wheels

SETTINGS = {
    "UV_OVERRIDE": "/nonexistent",
    "UV_CONFIG_FILE": "/nonexistent",
    "UV_WORKING_DIRECTORY": "/nonexistent",
    "UV_REQUIRE_HASHES": "1",
    "UV_OFFLINE": "nonsense",
    "UV_DEFAULT_INDEX": "http://127.0.0.1:9/",
    "UV_PYTHON_PREFERENCE": "only-managed",
    "PIP_INDEX_URL": "http://127.0.0.1:9/",
    "PIP_REQUIRE_VIRTUALENV": "1",
    "CONDA_PREFIX": "/nonexistent",
    "VIRTUAL_ENV": "/nonexistent",
    "PYTHONHOME": "/nonexistent",
    "https_proxy": "http://127.0.0.1:9",
}
"""What a user may have in a start-up file; each would break an installation, or lead it elsewhere."""


async def test_a_users_own_settings_for_uv_and_pip_do_not_reach_an_installation_from_the_laptop(tmp_path, monkeypatch):
    place = tmp_path / ".hetero-tui/lab/install"
    place.mkdir(parents=True)
    (place / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    thin_wheels(place / "wheels")
    for name in ("uv/uv.toml", "pip/pip.conf"):
        (tmp_path / ".config" / name).parent.mkdir(parents=True)
        (tmp_path / ".config" / name).write_text("nonsense = [\n")
    for name, value in {**SETTINGS, "HOME": str(tmp_path), "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin"}.items():
        monkeypatch.setenv(name, value)
    transport, python = (
        LocalTransport(Host(name="nas", connection="local")),
        f"{sys.version_info[0]}.{sys.version_info[1]}",
    )
    assert python in await on_host.pythons(transport, "lab")
    offline = Sources(from_laptop=True)
    environment = Environment(python, Build("cpu", ""), ())
    _ = [word async for word in on_host.make(transport, "lab", python, offline)]
    await on_host.prepare(transport, "lab", environment)
    _ = [word async for word in on_host.install(transport, "lab", environment, offline, "install/wheels")]
    (packages,) = place.parent.glob("env/lib/*/site-packages")
    assert list(packages.glob("torch-*.dist-info"))


async def test_a_python_is_found_where_users_install_them_though_a_command_over_ssh_has_no_such_path(
    tmp_path, monkeypatch
):
    place, tools, local = (tmp_path / name for name in (".hetero-tui/lab/install", "tools", ".local/bin"))
    for folder in (place, tools, local):
        folder.mkdir(parents=True)
    (place / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    for name in ("sh", "env", "sed"):
        (tools / name).symlink_to(shutil.which(name))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (local / f"python{version}").symlink_to(f"{sys.base_prefix}/bin/python{version}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tools))
    assert version in await on_host.pythons(LocalTransport(Host(name="nas", connection="local")), "lab")


SECRETS = Sources("https://me:secret@one/simple", "https://me:secret@two/whl", "https://me:secret@three/pythons")
_RECORDS = """#!/bin/sh
echo "$@" >> "{folder}/words"; env >> "{folder}/variables"
case "$*" in *compile*) while [ "$1" != --output-file ]; do shift; done; : > "$2";; esac
"""


def recording_uv(place: Path, folder: Path) -> Path:
    """A program in uv's place that writes down what it is called with, and its variables."""
    place.mkdir(parents=True)
    (place / "uv").write_text(_RECORDS.format(folder=folder))
    (place / "uv").chmod(0o755)
    return place / "uv"


class Overheard(LocalTransport):
    """A machine of which the words of all commands are kept: its other users see them, too."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.words: list[str] = []

    def start(self, command: Sequence[str], step: str) -> AbstractAsyncContextManager[Running]:
        self.words += command
        return super().start(command, step)


async def test_passwords_of_an_index_are_on_no_command_line_of_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / ".hetero-tui/lab/install"
    recording_uv(place, tmp_path)
    machine = Overheard(Host(name="nas", connection="local"))
    environment = Environment("3.11", Build("cu126", ""))
    _ = [word async for word in on_host.make(machine, "lab", "3.11", SECRETS)]
    made = (tmp_path / "variables").read_text()
    assert "UV_PYTHON_INSTALL_MIRROR=https://me:secret@three/pythons\n" in made
    await on_host.prepare(machine, "lab", environment)
    _ = [word async for word in on_host.install(machine, "lab", environment, SECRETS, "")]
    installed = (tmp_path / "variables").read_text().removeprefix(made)
    assert "UV_DEFAULT_INDEX=https://me:secret@one/simple\n" in installed
    assert "UV_INDEX=https://me:secret@two/whl/cu126\n" in installed
    assert "secret" not in " ".join(machine.words) + (tmp_path / "words").read_text()
    assert [path for path in place.rglob("*") if path.is_file() and "secret" in path.read_text()] == []


async def test_passwords_of_an_index_are_on_no_command_line_of_the_laptop(tmp_path, monkeypatch):
    uv = recording_uv(tmp_path / "bin", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_laptop_uv", lambda: uv)
    monkeypatch.setattr(sources, "find_spec", lambda _: None)  # no pip: uv runs one
    await sources.collect(Environment("3.11", Build("cu126", "")), PLATFORMS[0], SECRETS)
    lines = (tmp_path / "words").read_text()
    assert "secret" not in lines
    assert ("pip compile" in lines, "tool run pip download" in lines) == (True, True)
    variables = (tmp_path / "variables").read_text().splitlines()
    for line in (
        "UV_DEFAULT_INDEX=https://me:secret@one/simple",
        "UV_INDEX=https://me:secret@two/whl/cu126",
        "PIP_INDEX_URL=https://me:secret@one/simple",
        "PIP_EXTRA_INDEX_URL=https://me:secret@two/whl/cu126",
    ):
        assert line in variables
