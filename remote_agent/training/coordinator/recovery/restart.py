"""Decides how a run starts over: after a loss before the first step, or with another strategy or other devices.

Loss before the first step. Shares, shards and the exchange are decided with all workers and servers, so none of them
can be replaced during the setup. The setup takes seconds, so all actors end, and it is repeated with the hosts that
have a living node. A host whose actor is lost a second time is left out. A device that is left out is tried again
during the run, once its host has a node (``Request.away``). The same holds for a run that resumes from a checkpoint
while one of its hosts is away.

Parameters without a gradient. A model may leave out a parameter in the measurement and use it later (a branch, an
expert). Such a step can't be streamed. The run returns to its newest checkpoint, or to its beginning, and then reduces
gradients among the workers, which say for each parameter whether it has a gradient. The run also starts over when all
workers with the weights were lost.

State that begins to change. What is not trained (buffers, a frozen teacher) travels with the weights if the measurement
saw it change. If it changes later, the run returns as well, and then all such state travels.

Memory. A device without room for the model is left out. If no device has room, and the user left the strategy open, the
model is cut by layers over all of them. A device that is not there when its worker starts is left out as well.
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
from remote_agent.training.errors import CUT_HINT, ConfigError, DeviceUnfit, StateChanged, TooLarge

CUTS = next(spec.name for spec in SPECS.values() if spec.split)
"""The strategy for models that fit on no device."""

MAX_STARTS = 3
"""How often the setup of a run is tried."""

MAX_OF_A_HOST = 2
"""How many actors on the same host may be lost until the run starts without this host."""

MAX_STAGES_IN_A_ROW = 5
"""How often in a row stages of a pipeline may be lost without new progress of the run."""


def without_lost(request: Request, lost: Sequence[str], living: Collection[str]) -> Request | None:
    """The request for another start after a loss; None: no other start is made. Pure.

    Args:
        request: the request of the last start.
        lost: for each failed start, the host that lost an actor; empty: unknown.
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
    """Devices to report to the user: those of the host that lost an actor, and those that are left out now."""
    return tuple(spec for spec in request.devices if spec.host == lost or spec not in onward.devices)


def unstreamed(request: Request) -> Request | None:
    """The request for a start without streaming; None: the strategy has no alternative."""
    if not spec_of(request.config.strategy).otherwise:
        return None
    return from_newest(dataclasses.replace(request, config=without_servers(request.config)))


def moving(request: Request, error: StateChanged) -> Request:
    """The request for a start in which all that is not trained is taken for state that the model's code changes.

    Raises:
        StateChanged: the strategy can't train such a model.
    """
    if request.moving or spec_of(request.config.strategy).rounds:
        raise error
    return from_newest(dataclasses.replace(request, moving=True))


def without_unfit(request: Request, error: DeviceUnfit) -> Request | None:
    """The request with the devices that are there and have room for the model; None: none is left. Pure."""
    devices = tuple(spec for spec in request.devices if spec not in error.specs)
    if not error.specs or not devices:
        return None
    if isinstance(error, TooLarge):
        small = (*request.small, *((spec, error.cause) for spec in error.specs))
        return dataclasses.replace(request, devices=devices, small=small)
    names = ", ".join(f"{spec.host} ({spec.device})" for spec in error.specs)
    note = f"{names}: left out: {error.cause}; {error.hint}"
    return dataclasses.replace(request, devices=devices, notes=(*request.notes, note))


def cut(request: Request, error: DeviceUnfit) -> Request:
    """The request with the model cut by layers over all devices, including those without room for all of it. Pure.

    Raises:
        DeviceUnfit: the model can't be cut, or its size is not the reason.
    """
    if request.config.strategy != AUTO or not isinstance(error, TooLarge):
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


def with_fewer_shards(request: Request) -> Request:
    """The request with no more shards than hosts, if it goes on without some that the run had. Pure."""
    hosts = tuple(dict.fromkeys((request.server_host, *(spec.host for spec in request.devices))))
    goes_on = request.resume is not None or bool(request.away)
    if not goes_on or request.config.shards <= len(hosts):
        return request
    note = f"shards={request.config.shards}, but the run has only {', '.join(hosts)} now: it goes on with {len(hosts)}"
    config = dataclasses.replace(request.config, shards=len(hosts))
    return dataclasses.replace(request, config=config, notes=(*request.notes, note))


def from_newest(request: Request) -> Request:
    """The request to continue from the newest checkpoint, or from the beginning if there is none."""
    saved = any((request.folder / checkpoint.FOLDER).glob("step-*.json"))
    return dataclasses.replace(request, resume=request.folder, same_job=True) if saved else request
