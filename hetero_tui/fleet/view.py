"""Defines the state of a fleet at one moment, which commands that change the fleet take and return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetero_tui.fleet.probing import Probed
from hetero_tui.fleet.survey import Surveyed
from hetero_tui.inventory import Inventory
from hetero_tui.transport import Transport


@dataclass(frozen=True, slots=True)
class FleetView:
    """The state of a fleet at the last probe and survey.

    Attributes:
        transports: the connection to each host, by name.
        probed: the probe's result of each machine.
        surveyed: the survey's result of each host, by name.
    """

    inventory: Inventory
    transports: Mapping[str, Transport]
    probed: tuple[Probed, ...]
    surveyed: Mapping[str, Surveyed]
