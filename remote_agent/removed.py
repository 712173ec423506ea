"""Names that were removed, and what to use in their place.

The one table for settings, values of settings, flags and keys of the inventory. Whatever reads one of these asks here
before it calls a name unknown.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Final

REMOVED: Final[Mapping[str, str]] = types.MappingProxyType(
    {
        "strategy=ssp": "local_sgd with overlap is faster and closer",
        "strategy=async": "local_sgd with overlap is faster and closer",
        "codec=topk": "codec=int8 with local_sgd sends less and is closer",
        "staleness": "it belonged to strategy=ssp; use strategy=local_sgd",
        "keys in settings.toml": "the keys are those of the help screen",
        "ascii in settings.toml": "the app needs a terminal with UTF-8; colours go off with NO_COLOR",
        "plan --race": "train with each strategy for some steps and compare the runs' speed",
        "add --from-ssh-config": "name each machine: `hetero-tui add NAME`, where NAME may be a Host of ~/.ssh/config",
        "plan --by": "it belonged to --race",
        "watts in a fleet file": "plan predicts time only",
        "price in a fleet file": "plan predicts time only",
        "faults_per_host_day in a fleet file": "plan predicts time only",
        "topk_fraction": "it belonged to codec=topk; use codec=int8",
    }
)
"""A name, or ``name=value``, to what replaces it."""


def why_removed(name: str, value: object = None) -> str | None:
    """Return one line for a removed ``name`` or ``name=value``, or None if neither was removed."""
    for key in (name, f"{name}={value}"):
        if key in REMOVED:
            return f"{key} was removed: {REMOVED[key]}"
    return None
