"""Defines the results of installing and checking, which commands print and screens draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetero_tui.errors import HostError

BAD, WARNING = "bad", "warning"
FIX = "`hetero-tui check --fix`"
"""What mends an environment of ours."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A host that can train: ``python`` is its minor version, ``changed`` whether anything was done there now."""

    host: str
    python: str
    detail: str
    build: str = ""
    changed: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BootstrapReport:
    """Which hosts have an environment now, and which have not and why."""

    installed: tuple[Installed, ...]
    failed: Mapping[str, HostError]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found on ``host``, why it matters, and what mends it; a ``bad`` one keeps the host out."""

    host: str
    level: str
    what: str
    why: str
    mend: str


@dataclass(frozen=True, slots=True)
class Checked:
    """One host: how it stands. ``address`` is where the others would know it.

    ``round_trip`` is in seconds, ``sends`` and ``receives`` are bytes per second to and from other hosts, both at once.
    """

    name: str
    address: str = ""
    devices: tuple[str, ...] = ()
    round_trip: float | None = None
    sends: float | None = None
    receives: float | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was looked at, and all that was found; ``network`` is what to say of the one that the hosts are in."""

    hosts: tuple[Checked, ...]
    findings: tuple[Finding, ...] = ()
    head: str = ""
    network: str = ""

    @property
    def bad(self) -> tuple[str, ...]:
        """The hosts that can't take part."""
        bad = {finding.host for finding in self.findings if finding.level == BAD}
        return tuple(host.name for host in self.hosts if host.name in bad)

    @property
    def broken(self) -> frozenset[str]:
        """The hosts with an environment of ours that does not work: it can be made anew."""
        return frozenset(finding.host for finding in self.findings if finding.mend == FIX)
