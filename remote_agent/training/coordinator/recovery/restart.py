"""What makes a run start over: an actor that is lost before the first step; a model that can't be streamed after all.

A worker or server that ends while the run is being made ready leaves none to take its place: shares, shards and the
way of the gradients are being decided with it. What has been done until then takes seconds, so all actors end, and the
run is made ready once more, with the hosts that have a living node; without one that is lost a second time, too. A
device that is left out is tried again while the run is on, once its host has a node (``Request.away``). So it is for a
run that goes on from a checkpoint while one of its hosts is away.

A model may leave out a parameter in the measurement and use it later (a branch, an expert). Such a step can't be
streamed: the run goes back to its newest checkpoint, or to its beginning, and reduces gradients among the workers from
then on, which say for each parameter whether there is a gradient. The run goes back as well when all workers were lost
that had the weights.

A device that has no room for the model is left out. Where none has, and the user left the way to train open, the model
is cut by its layers over all of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence

from remote_agent.protocol import DeviceSpec
from remote_agent.strategies import AUTO, SPECS, spec_of
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.coordinator.plan.run_plan import without_servers
from remote_agent.training.coordinator.request import Request
from remote_agent.training.errors import CUT_HINT, ConfigError, TooLarge

CUTS = next(spec.name for spec in SPECS.values() if spec.split)
"""The strategy for models that fit on no device."""

MAX_STARTS = 3
"""Times that a run is made ready."""

MAX_OF_A_HOST = 2
"""Times that an actor on the same host may be lost, until the run begins without that host."""

MAX_STAGES_IN_A_ROW = 5
"""Times in a row that stages of a pipeline may be lost before the run has come as far as it was."""


def without_lost(request: Request, lost: Sequence[str], living: Collection[str]) -> Request | None:
    """The run with the devices that another start is made with; None: there is no other start. Pure.

    Args:
        request: the run as it was started.
        lost: for each start that failed, the host that lost an actor; empty where that is not known.
        living: hosts that have a living node.
    """
    times = Counter(lost)

    def is_fit(host: str) -> bool:
        return host in living and times[host] < MAX_OF_A_HOST

    fleet = (*request.devices, *request.away)
    devices = tuple(spec for spec in fleet if is_fit(spec.host))
    away = tuple(spec for spec in fleet if not is_fit(spec.host))
    if not devices or len(lost) >= MAX_STARTS:
        return None
    hosts = (request.server_host, request.host, *(spec.host for spec in devices))
    server = next(host for host in hosts if is_fit(host))
    return dataclasses.replace(request, devices=devices, away=away, server_host=server)


def missed(request: Request, onward: Request, lost: str) -> tuple[DeviceSpec, ...]:
    """Devices that the user is told about: those of the host that lost an actor, and those that are left out now."""
    return tuple(spec for spec in request.devices if spec.host == lost or spec not in onward.devices)


def unstreamed(request: Request) -> Request | None:
    """The run as it is started over when its model turned out to be none that can be streamed; None: it can't be."""
    if not spec_of(request.config.strategy).otherwise:
        return None
    return from_newest(dataclasses.replace(request, config=without_servers(request.config)))


def without_small(request: Request, error: TooLarge) -> Request | None:
    """The run with the devices that have room for its model; None: none has. Pure."""
    small = (*request.small, *((spec, error.cause) for spec in error.specs))
    devices = tuple(spec for spec in request.devices if spec not in error.specs)
    if not error.specs or not devices:
        return None
    return dataclasses.replace(request, devices=devices, small=small)


def cut(request: Request, error: TooLarge) -> Request:
    """The run with its model cut by its layers over all devices, those that have no room for all of it, too. Pure.

    Raises:
        TooLarge: it can't be cut.
    """
    if request.config.strategy != AUTO:
        raise error
    devices = (*request.devices, *(spec for spec, _ in request.small))
    if len(devices) < 2:
        raise TooLarge(error.cause, hint=f"add a machine, over which the model can be cut; {CUT_HINT}") from error
    try:
        config = dataclasses.replace(request.config, strategy=CUTS, shards=0)
    except ConfigError as wrong:
        cause = f"{error.cause}; it can't be cut by its layers: {'; '.join(wrong.mistakes)}"
        raise TooLarge(cause, hint=wrong.hint) from error
    note = f"the model is cut by its layers, as it fits on no device: {error.cause}"
    return dataclasses.replace(request, config=config, devices=devices, small=(), notes=(*request.notes, note))


def from_newest(request: Request) -> Request:
    """The run as it goes on from its newest checkpoint; without one, as it began."""
    saved = any((request.folder / checkpoint.FOLDER).glob("step-*.json"))
    return dataclasses.replace(request, resume=request.folder if saved else request.resume)
