"""Lists the platforms for which torch and Ray have wheels, and their names in uv, pip and wheels."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hetero_tui.fleet.preflight import AWKWARD

OLDEST_GLIBC, OLDEST_MACOS = (2, 28), (14,)
"""What torch 2.13's wheels need (manylinux_2_28, macosx_14_0); Ray 2.60's need less (manylinux2014, macosx_12_0)."""

_MANYLINUX = ("_2_28", "_2_27", "_2_26", "_2_24", "_2_17", "2014", "_2_12", "2010", "_2_5", "1")


@dataclass(frozen=True, slots=True)
class Platform:
    """``uname`` is the output of ``uname -sm``, ``triple`` uv's name, ``tags`` those of fitting wheels, best first."""

    uname: str
    triple: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class System:
    """What a host says of its system; what it can't tell is empty.

    ``libc`` is the output of ``getconf GNU_LIBC_VERSION`` or ``ldd --version``, ``bits`` of ``getconf LONG_BIT``,
    ``macos`` of ``sw_vers -productVersion``; ``home`` is the folder below which the environment goes.
    """

    uname: str
    libc: str = ""
    bits: str = ""
    macos: str = ""
    home: str = ""


def _linux(machine: str) -> Platform:
    tags = (*(f"manylinux{version}_{machine}" for version in _MANYLINUX), f"linux_{machine}")
    return Platform(f"Linux {machine}", f"{machine}-unknown-linux-gnu", tags)


PLATFORMS = (
    _linux("x86_64"),
    _linux("aarch64"),
    Platform("Darwin arm64", "aarch64-apple-darwin", ("macosx_14_0_arm64",)),  # pip takes older systems' wheels too
)


def platform_of(uname: str) -> Platform | None:
    """The platform of that ``uname -sm``; None: there are no wheels for it."""
    return next((platform for platform in PLATFORMS if platform.uname == uname), None)


def why_unfit(system: System) -> tuple[str, str] | None:
    """Why an environment can't be made on such a system, and what to do; None: nothing speaks against it. Pure."""
    if platform_of(system.uname) is None:
        known = ", ".join(each.uname for each in PLATFORMS)
        hint = f"torch and Ray have them for {known}; on a Raspberry Pi install the 64-bit system, on Windows use WSL2"
        return f"there are no packages for {system.uname or 'this system'}", hint
    if system.bits == "32":
        return (
            f"its programs are 32-bit ones, on a 64-bit kernel ({system.uname}), and there are no packages for these",
            "install the 64-bit edition of its system",
        )
    if "musl" in system.libc.lower():
        return (
            "its C library is musl, as on Alpine, and torch has packages only for glibc",
            "use a system with glibc there, such as Debian or Ubuntu, or a container of one with an SSH server",
        )
    glibc = _numbers(system.libc) if re.search(r"glibc|GNU libc", system.libc, re.IGNORECASE) else ()
    if glibc and glibc < OLDEST_GLIBC:
        return (
            f"its C library is glibc {_shown(glibc)}, and torch 2.13 needs {_shown(OLDEST_GLIBC)} or newer",
            "upgrade its system (Debian 10, Ubuntu 20.04, RHEL 8 and newer have it)",
        )
    macos = _numbers(system.macos)
    if macos and macos < OLDEST_MACOS:
        return (
            f"it has macOS {system.macos}, and torch 2.13 needs {_shown(OLDEST_MACOS)} or newer",
            "update macOS there (System Settings, General, Software Update)",
        )
    if AWKWARD.search(system.home):
        return (
            f"Ray can't use a Python below {system.home}, since it has a blank or a quotation mark in its path",
            "install `hetero-tui[node]` in an environment with a plain path, and name its Python as `python:`",
        )
    return None


def _numbers(text: str) -> tuple[int, ...]:
    """The version that a text ends with; empty: it ends with none."""
    found = re.search(r"(\d{1,9}(?:\.\d{1,9})*)\s*$", text)
    return tuple(map(int, found[1].split("."))) if found else ()


def _shown(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
