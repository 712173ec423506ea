"""A machine behind a jump host, both new: each key is asked about, and the question says whose it is."""

from __future__ import annotations

from pathlib import Path

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import HostKeyUnknown
from hetero_tui.machines import Machines
from tests.transport.conftest import USER, OpenSsh


async def test_both_keys_are_asked_about_with_whose_they_are(
    openssh: OpenSsh, machines: EmbeddedMachines, tmp_path: Path
) -> None:
    half, known = machines.machine("half"), str(tmp_path / "new")
    path = tmp_path / "inventory.yaml"
    path.write_text(
        f"hosts:\n  gate: {{address: 127.0.0.1, port: {openssh.port}, user: {USER},"
        f" identity_file: {tmp_path}/client_key, known_hosts: {known}}}\n"
    )
    fields: dict[str, object] = {
        "address": half.address,
        "port": half.port,
        "user": machines.user,
        "identity_file": str(machines.identity_file),
        "known_hosts": known,
        "proxy_jump": "gate",
    }
    asked: list[tuple[str, str]] = []

    async def trusts(name: str, error: HostKeyUnknown) -> bool:
        asked.append((name, error.endpoint))
        return True

    found = await Machines(path).look("far", fields, trusts)
    assert found.error is None
    assert asked == [
        ("far", f"127.0.0.1 port {openssh.port} (on the way)"),
        ("far", f"{half.address} port {half.port}"),
    ]
