"""Whoever is lost before the first step: nothing is trained yet, so the run starts over, without it if need be.

A worker or server that ends while the run is being made ready leaves nobody to take its place: shares, shards and the
way of the gradients are being decided with it. What has been done until then takes seconds, so all actors end, and the
run is made ready once more, with the hosts that have a living node; without one that is lost a second time, too. Who is
left out because its host has no node now takes part once it has one (``Request.away``). So it is for a run that goes on
from a checkpoint while one of its hosts is away.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence

from remote_agent.protocol import DeviceSpec
from remote_agent.training.actors import Request

MOST_STARTS = 3
"""Times that a run is made ready."""

MOST_OF_A_HOST = 2
"""Times that an actor on the same host may be lost, until the run goes on without that host."""


def without_lost(request: Request, lost: Sequence[str], living: Collection[str]) -> Request | None:
    """The run with the devices that another start is made with; None: there is no other start. Pure.

    Args:
        request: the run as it was started.
        lost: for each start that failed, the host that lost an actor; empty where that is not known.
        living: hosts that have a living node.
    """
    times = Counter(lost)

    def is_fit(host: str) -> bool:
        return host in living and times[host] < MOST_OF_A_HOST

    fleet = (*request.devices, *request.away)
    devices = tuple(spec for spec in fleet if is_fit(spec.host))
    away = tuple(spec for spec in fleet if spec.host not in living and times[spec.host] < MOST_OF_A_HOST)
    if not devices or len(lost) >= MOST_STARTS:
        return None
    hosts = (request.server_host, request.host, *(spec.host for spec in devices))
    server = next(host for host in hosts if is_fit(host))
    return dataclasses.replace(request, devices=devices, away=away, server_host=server)


def missed(request: Request, onward: Request, lost: str) -> tuple[DeviceSpec, ...]:
    """Devices that the user is told about: those of the host that lost an actor, and those that are left out now."""
    return tuple(spec for spec in request.devices if spec.host == lost or spec not in onward.devices)
