"""Says what fits where in a prediction: the model on devices, and shards on hosts as the product sites them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from remote_agent.planning import sharding
from remote_agent.planning.channels import UNLIMITED
from remote_agent.planning.sharding import Site, Traffic
from remote_agent.planning.survey import Device, Host, Survey, wire_bytes

MAX_SITES = 24
"""Of more hosts than these, shards go in equal parts to the best links, at most 1 / ``MIN_PART`` of them."""

COPIES_ON_DEVICE = 5
"""A device's memory over its parameters' bytes, without activations: weights, new ones, gradients, and what is sent."""


class DoesNotFit(ValueError):
    """A way that the hosts' memory does not allow; the text says what is missing and where."""


class NoRoom(DoesNotFit):
    """It is the model that is too large, not what the user allows of a batch."""


def check_memory(survey: Survey, devices: Sequence[Device]) -> None:
    """Raise NoRoom if a device has no room for the model."""
    needed = COPIES_ON_DEVICE * 4 * survey.work.parameters
    for device in devices:
        if device.memory is not None and device.memory < needed:
            raise NoRoom(
                f"{device.name} lacks {(needed - device.memory) / 1e9:.2f} GB: weights and gradients take"
                f" {needed / 1e9:.2f} GB, {device.memory / 1e9:.2f} GB are free"
            )


def sited(survey: Survey, codec: str, shards: int) -> dict[str, float]:
    """The parts of the parameter server, as the product sites them.

    Raises:
        DoesNotFit: the hosts have not the memory.
    """
    numel = survey.work.parameters
    amount = wire_bytes(codec, numel)
    traffic = Traffic(gradient=amount, weights=amount, held=sharding.COPIES * 4 * numel)
    places: dict[str, list[Host]] = {}
    for host in survey.hosts:  # where several shards were asked for, each host counts by itself
        places.setdefault(host.name if shards > 1 else host.computer or host.name, []).append(host)
    if len(places) == 1 or shards == 1 or (not shards and numel <= sharding.CHUNK_NUMBERS):
        first = survey.hosts[0]
        if first.memory is not None and first.memory < traffic.held:
            lacking = (traffic.held - first.memory) / 1e9
            raise NoRoom(f"{first.name} lacks {lacking:.2f} GB for the parameter server")
        return {first.name: 1.0}
    sites = [_site(hosts) for hosts in places.values()]
    if len(sites) > MAX_SITES:
        return _many_sites(sites, traffic, shards)
    try:
        decision = sharding.decide(sites, traffic, min(shards, len(sites)))
    except ValueError as error:
        raise NoRoom(str(error)) from None
    return {site.host: part for site, part in zip(sites, decision.parts, strict=True) if part}


def _many_sites(sites: Sequence[Site], traffic: Traffic, shards: int) -> dict[str, float]:
    """Equal parts on the best links that have the memory."""
    count = shards or round(1 / sharding.MIN_PART)
    fit = [site for site in sites if site.most(traffic.held) >= 1 / count]
    chosen = sorted(fit, key=lambda site: -min(site.up, site.down))[:count]
    if len(chosen) < count:
        raise NoRoom(f"{count} shards need {traffic.held / count / 1e9:.2f} GB on as many hosts")
    return {site.host: 1 / count for site in chosen}


def _site(hosts: Sequence[Host]) -> Site:
    first = hosts[0]
    half = first.both / 2 if first.both else UNLIMITED
    return Site(
        host=first.name,
        workers=sum(len(host.devices) for host in hosts),
        peers=sum(min(1, len(host.devices)) for host in hosts),
        up=min(first.up or UNLIMITED, half),
        down=min(first.down or UNLIMITED, half),
        memory=first.memory,
        reachable=first.reachable,
    )
