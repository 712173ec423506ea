"""Lists the platforms for which Ray has wheels, and their names in uv, pip and wheels."""

from __future__ import annotations

from dataclasses import dataclass

_MANYLINUX = ("_2_28", "_2_27", "_2_26", "_2_24", "_2_17", "2014", "_2_12", "2010", "_2_5", "1")


@dataclass(frozen=True, slots=True)
class Platform:
    """``uname`` is the output of ``uname -sm``, ``triple`` uv's name, ``tags`` those of fitting wheels, best first."""

    uname: str
    triple: str
    tags: tuple[str, ...]


def _linux(machine: str) -> Platform:
    tags = (*(f"manylinux{version}_{machine}" for version in _MANYLINUX), f"linux_{machine}")
    return Platform(f"Linux {machine}", f"{machine}-unknown-linux-gnu", tags)


PLATFORMS = (
    _linux("x86_64"),
    _linux("aarch64"),
    Platform("Darwin arm64", "aarch64-apple-darwin", ("macosx_14_0_arm64",)),  # pip takes older systems' wheels too
)


def platform_of(uname: str) -> Platform | None:
    """The platform of that ``uname -sm``; None: Ray has no wheels for it."""
    return next((platform for platform in PLATFORMS if platform.uname == uname), None)
