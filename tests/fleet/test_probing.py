"""The probe on a host whose shard_hosts are unusual; the host is this computer, with a home folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hetero_tui.errors import BadAnswer, CommandFailed, HostError, PythonMissing, RequirementMissing
from hetero_tui.facts import HostFacts
from hetero_tui.fleet.preflight import judge
from hetero_tui.fleet.probing import probe_host
from hetero_tui.inventory import Host
from hetero_tui.transport.local import LocalTransport
from remote_agent.probe import folder_identity, look, shared_place
from tests.garbage import REFUSED

CLUSTER = "lab"


async def probe(home: Path, python: str = sys.executable) -> HostFacts:
    host = Host(name="nas", connection="local", python=python)
    return await probe_host(CLUSTER, host, LocalTransport(host))


@pytest.fixture(params=["plain", "o'brien", "größe", "two  blanks"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / request.param
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


def program(home: Path, text: str) -> str:
    path = home / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize("others", [True, False])
async def test_a_python_that_is_there_and_does_not_run_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """As a shim of pyenv without a version, or what macOS has before its developer tools are installed."""
    stub = "cat >/dev/null; echo 'pyenv: python3: command not found' >&2; exit 127"  # it reads what is not its own
    for name in ("python3", "python3.13", "python3.12", "python3.11"):
        Path(program(tmp_path, stub)).rename(tmp_path / name)
    if others:
        (tmp_path / "python3.11").unlink()
        (tmp_path / "python3.11").symlink_to(sys.executable)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("env", "sed", "cat"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    shell = shutil.which("sh") or ""
    (tools / "sh").symlink_to(shell)
    monkeypatch.setenv("PATH", f"{tmp_path}:{tools}")
    monkeypatch.setenv("HOME", str(tmp_path))
    host = Host(name="nas", address="nas.local")
    if others:
        assert (await probe_host(CLUSTER, host, LocalTransport(host))).python.executable
        return
    with pytest.raises(PythonMissing, match="no Python there that runs") as caught:
        await probe_host(CLUSTER, host, LocalTransport(host))
    assert "hetero-tui bootstrap" in caught.value.hint


async def test_a_home_of_any_name_is_found_as_it_is(home: Path) -> None:
    facts = await probe(home)
    assert facts.home == str(home)
    assert facts.disk.unwritable == ""
    assert facts.machine


@pytest.mark.parametrize(
    ("arrange", "says"),
    [
        (lambda home: home.rmdir(), "the home folder .* is not there"),
        (lambda home: (home / ".hetero-tui").touch(), "it is no folder"),
        (lambda home: (home / ".hetero-tui").symlink_to("/nonexistent/folder"), "it is no folder"),
        pytest.param(
            lambda home: ((home / ".hetero-tui").mkdir(mode=0o777), os.chown(home / ".hetero-tui", 12345, 12345)),
            "it belongs to another user",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away"),
        ),
    ],
)
async def test_a_folder_of_ours_that_can_not_be_made_is_told_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrange: Callable[[Path], None], says: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    arrange(home)
    monkeypatch.setenv("HOME", str(home))
    host = Host(name="nas", connection="local", python=sys.executable)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)  # where the command starts, here as on a host without a home
    facts = await probe_host(CLUSTER, host, LocalTransport(host))
    assert re.match(says, facts.disk.unwritable)


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("ulimit -v 12000", "too little memory"),
        ("ulimit -n 12", "only 12 open files"),
        ("ulimit -v 300000", "only 292 MB of memory"),
        ("ulimit -f 1", "for each file"),
        ("ulimit -t 7", "only 7 s of processor time"),
    ],
)
async def test_limits_of_the_user_are_told(tmp_path: Path, limit: str, says: str) -> None:
    python = program(tmp_path, f'{limit}; exec {sys.executable} "$@"')
    try:
        said = "".join(problem.cause for problem in judge(Host(name="nas"), await probe(tmp_path, python)))
    except CommandFailed as error:
        said = str(error)
    assert says in said, said


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me", "nas:/export/home/me"),
        ("/home/me/.hetero-tui", "nas:/export/home/me/.hetero-tui"),
        ("/home", "nas:/export/home"),
        ("/homes/me", None),
        ("/home/local/me", None),
        ("/mnt/two words/x", "//box/disk/x"),
        ("/", None),
    ],
)
def test_a_folder_of_a_server_has_the_same_name_on_all_machines(path: str, expected: str | None) -> None:
    mounts = (
        "/dev/sda1 / ext4 rw 0 0\nproc /proc proc rw 0 0\nnas:/export/home /home nfs4 rw,vers=4.2 0 0\n"
        "/dev/sdb1 /home/local xfs rw 0 0\n//box/disk /mnt/two\\040words cifs rw 0 0\nbroken\n"
    )
    assert shared_place(path, mounts) == expected


def test_a_folder_has_one_identity_by_whatever_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    a, b, link, none = (folder_identity(str(tmp_path / name)) for name in ("a", "b", "link", "none"))
    assert a == link
    assert None not in (a, b)
    assert a != b
    assert none is None
    assert look(str(tmp_path / "a"), 8.0)["disk"]["identity"] == a


@pytest.mark.parametrize("version", ["Python 2.7.18", "Python 3.6.9"])
async def test_a_python_that_cannot_run_the_probe_is_named_with_its_version(home: Path, version: str) -> None:
    old = program(home, f'case "$*" in -V) echo {version} >&2;; *) echo "Unknown option: -I" >&2; exit 2;; esac')
    with pytest.raises(PythonMissing, match=f"{version} is too old even for the probe"):
        await probe(home, old)


@pytest.mark.parametrize("kind", REFUSED)
async def test_garbage_in_place_of_the_facts_is_one_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "garbage").write_bytes(REFUSED[kind]('{"probe":1,"clock":1.5,"home":"/x"}'))
    with pytest.raises(HostError) as caught:
        await probe(tmp_path, program(tmp_path, 'cat >/dev/null; case "$*" in -V) ;; *) cat "$HOME/garbage";; esac'))
    assert isinstance(caught.value, BadAnswer | CommandFailed)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "said",
    [  # of cmd.exe, OpenSSH for Windows' default shell, and of PowerShell 5.1 and 7
        "'sh' is not recognized as an internal or external command,\r\noperable program or batch file.",
        "sh : The term 'sh' is not recognized as the name of a cmdlet, function, script file, or operable program.",
        "sh: The term 'sh' is not recognized as a name of a cmdlet, function, script file, or executable program.",
    ],
    ids=["cmd", "powershell-5", "powershell-7"],
)
async def test_a_machine_that_runs_windows_itself_is_named_and_pointed_to_wsl2(tmp_path: Path, said: str) -> None:
    with pytest.raises(RequirementMissing, match="it runs Windows") as refused:
        await probe(tmp_path, program(tmp_path, f'echo "{said}" >&2; exit 1'))
    assert "WSL2" in refused.value.hint
