"""Defines an environment's contents: exact versions, equal on every host, and the build of torch for each host.

The versions are those of ``constraints.txt``, which hetero-tui is tested with.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from hetero_tui.planning.builds import Build

NODE_PACKAGES = ("numpy", "nvidia-ml-py", "psutil", "ray", "safetensors", "scikit-learn", "torch")
"""Packages that every host needs, as in pyproject.toml's ``node``."""

PYTHONS = ("3.11", "3.12", "3.13")
"""The Pythons that an environment may have, the oldest first."""

_NAME = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Environment:
    """One host's environment: a Python, a build of torch, and additional requirements of jobs (``extras``)."""

    python: str
    build: Build
    extras: tuple[str, ...] = ()

    @property
    def requirements(self) -> str:
        """The text of a requirements file with exact versions."""
        pinned = dict(pins())
        if self.build.local_version:
            pinned["torch"] += f"+{self.build.local_version}"
        lines = [f"{name}=={pinned[name]}" for name in NODE_PACKAGES]
        return "\n".join([*lines, *(_pinned(extra) for extra in self.extras)]) + "\n"

    @property
    def digest(self) -> str:
        """A digest that is equal for equal environments."""
        whole = f"{self.python}\0{self.requirements}\0{constraints()}"
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


@cache
def constraints() -> str:
    """The text of ``constraints.txt``."""
    return resources.files("hetero_tui").joinpath("constraints.txt").read_text(encoding="utf-8")


@cache
def pins() -> Mapping[str, str]:
    """The version of each package, by its name in lower case with dashes."""
    found: dict[str, str] = {}
    for line in constraints().splitlines():
        name, is_pin, version = line.partition("#")[0].strip().partition("==")
        if is_pin:
            found[_canonical(name)] = version
    return found


def choose_python(fixed: Sequence[str], available: Mapping[str, Collection[str]], own: str) -> tuple[str, str]:
    """Choose the minor version of Python for all environments; returns it with the reason.

    Args:
        fixed: version of each host whose environment stays; the running head's first.
        available: for each of the other hosts, the versions that it already has.
        own: the laptop's version, which is preferred among equally good ones.
    """
    if fixed:
        most = Counter(fixed).most_common(1)[0][0]
        return most, f"Python {most}, as in the environments that are there"
    counts = {python: sum(python in versions for versions in available.values()) for python in PYTHONS}
    best = max(PYTHONS, key=lambda python: (counts[python], python == own, python == "3.12"))
    if not counts[best]:
        return best, f"Python {best}, since no host has a fit one"
    hosts = f"{counts[best]} of {len(available)} host{'s' if len(available) != 1 else ''}"
    return best, f"Python {best}, which {hosts} already {'has' if counts[best] == 1 else 'have'}"


def mistakes_in(extras: Sequence[str]) -> tuple[str, ...]:
    """Sentences about invalid requirements."""
    return tuple(
        f"{extra!r} is not a package's name, with or without a version"
        for extra in extras
        if not _is_requirement(extra)
    )


def _is_requirement(text: str) -> bool:
    found = _NAME.match(text)
    return found is not None and bool(
        re.fullmatch(r"(\[[\w,. -]+\])?\s*(([=<>!~]=|[<>])\s*[\w.*+!-]+\s*,?\s*)*", found[2])
    )


def _pinned(extra: str) -> str:
    """A requirement, with the version with which hetero-tui is tested if it names none."""
    found = _NAME.match(extra)
    version = pins().get(_canonical(found[1])) if found is not None else None
    return f"{extra}=={version}" if found is not None and version is not None and not found[2] else extra


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
