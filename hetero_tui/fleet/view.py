"""What is known of a fleet at one moment: commands that change it take this, and hand back what they found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetero_tui.fleet.probing import Probed
from hetero_tui.fleet.survey import Surveyed
from hetero_tui.inventory import Inventory
from hetero_tui.transport import Transport


@dataclass(frozen=True, slots=True)
class FleetView:
    """A fleet as the last look found it.

    Attributes:
        inventory: the user's.
        transports: the way to each host, by name.
        probed: what each machine is.
        surveyed: what runs on each, by name.
    """

    inventory: Inventory
    transports: Mapping[str, Transport]
    probed: tuple[Probed, ...]
    surveyed: Mapping[str, Surveyed]
