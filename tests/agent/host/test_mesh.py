"""This machine's end of a WireGuard network, as far as it goes without one: see ``tests/lab/test_wireguard.py``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remote_agent.host import layout, mesh
from remote_agent.protocol import MESH_INTERFACE, MeshPeer, MeshSpec, encode


def spec(folder: Path, private_key: str = "private") -> MeshSpec:
    peer = MeshPeer(host="nas", public_key="key of nas", address="10.7.0.2", endpoint="192.0.2.7:51871")
    return MeshSpec(
        folder=str(folder),
        public_key="public",
        private_key=private_key,
        address="10.7.0.1",
        network="10.7.0.0/20",
        port=51871,
        peers=(peer,),
    )


def test_an_interfaces_name_follows_from_the_folder_and_fits_the_kernel() -> None:
    names = [mesh.interface(Path(f"/home/{user}/.hetero-tui/a-very-long-cluster-name")) for user in ("a", "b")]
    assert len({*names}) == 2
    assert all(len(name) <= 15 and name.startswith(MESH_INTERFACE) for name in names)


def test_without_its_private_key_a_machine_says_so_and_changes_nothing(tmp_path: Path) -> None:
    assert "private key is gone" in mesh.up(spec(tmp_path, private_key="")).cause
    assert not layout.mesh_path(tmp_path).exists()


def test_a_user_who_may_not_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("ip", "wg", "wireguard-go", "modprobe"):
        (tmp_path / program).write_text("#!/bin/sh\n")
    (tmp_path / "sudo").write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    monkeypatch.setattr(mesh, "_PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    report = mesh.look(tmp_path / "lab")
    assert report.cause.startswith("WireGuard needs root, or sudo without a password for ")
    assert report.cause.endswith("ip -V: sudo: a password is required")
    assert "NOPASSWD" in report.hint
    (tmp_path / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    assert mesh.look(tmp_path / "lab").cause == ""
    (tmp_path / "wg").unlink()
    report = mesh.look(tmp_path / "lab")
    assert (report.cause, report.hint[:16]) == ("has no `ip` or no `wg` program", "sudo apt install")


def test_taking_away_what_never_was_is_nothing(tmp_path: Path) -> None:
    assert mesh.down(tmp_path) == ((), ())
    layout.mesh_path(tmp_path).write_text(encode(spec(tmp_path)))
    assert mesh.down(tmp_path) == ((str(layout.mesh_path(tmp_path)),), ())
