"""A machine for which there are no packages is told so before anything is sent to it."""

from pathlib import Path

import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.fleet.install.platforms import System, why_unfit
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.inventory.file import load
from hetero_tui.session import Session


@pytest.mark.parametrize(
    ("system", "says"),
    [
        (System("Linux x86_64", "glibc 2.28", "64"), ""),
        (System("Linux aarch64", "ldd (Ubuntu GLIBC 2.35-0ubuntu3.8) 2.35", "64"), ""),
        (System("Linux x86_64", "sh: ldd: not found"), ""),  # unknown: it is tried
        (System("Linux x86_64", "glibc 2.27", "64"), "its C library is glibc 2.27, and torch 2.13 needs 2.28 or newer"),
        (System("Linux x86_64", "musl libc (x86_64)", "64"), "its C library is musl, as on Alpine"),
        (System("Linux aarch64", "glibc 2.36", "32"), "its programs are 32-bit ones, on a 64-bit kernel"),
        (System("Darwin arm64", "", "64", "14.0"), ""),
        (System("Darwin arm64", "", "64", ""), ""),
        (System("Darwin arm64", "", "64", "13.7.1"), "it has macOS 13.7.1, and torch 2.13 needs 14 or newer"),
        (System("Darwin x86_64", "", "64", "14.5"), "there are no packages for Darwin x86_64"),
        (System("Linux armv7l", "glibc 2.36", "32"), "there are no packages for Linux armv7l"),
        (System(""), "there are no packages for this system"),
        (System("Linux x86_64", "glibc 2.36", "64", "", "/home/Zoë"), ""),
        (System("Linux x86_64", "glibc 2.36", "64", "", "/home/my name"), "Ray can't use a Python below /home/my name"),
        (System("Darwin arm64", "", "64", "15.1", "/home/o'brien"), "Ray can't use a Python below /home/o'brien"),
    ],
)
def test_which_systems_have_packages(system: System, says: str) -> None:
    found = why_unfit(system)
    assert ("" if found is None else found[0]).startswith(says)
    assert (found is None) == (says == "")
    assert found is None or found[1]


async def test_a_system_without_packages_is_refused_before_anything_is_sent_and_check_says_it(
    short_folder: Path,
) -> None:
    programs = short_folder / "bin"
    programs.mkdir()
    for name, script in {"getconf": "exit 1", "ldd": "echo 'musl libc (x86_64)' >&2"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    async with EmbeddedMachines(short_folder, speeds=(1.0,), search_path=f"{programs}:/usr/bin:/bin") as machines:
        path = machines.write_inventory()
        path.write_text("".join(line for line in path.open() if "python:" not in line))
        async with Session(load(path), path, ledger_folder=short_folder / "laptop") as session:
            report = await session.bootstrap(Sources(from_laptop=True))
            (error,) = report.failed.values()
            assert error.cause.startswith("its C library is musl")
            checked = await session.check()
            assert [(finding.what, finding.mend) for finding in checked.findings] == [(error.cause, error.hint)]
        assert list(machines.machines[0].home.iterdir()) == []
