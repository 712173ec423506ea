"""From what was measured of devices and links to a survey, and from the planner's choice to settings. Pure."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent import tls
from remote_agent.planning import choice, media, verdicts
from remote_agent.planning.choice import Choice, limits_of
from remote_agent.planning.simulator import tried
from remote_agent.planning.sites import DoesNotFit, NoRoom
from remote_agent.planning.survey import Device, Host, Survey, Work
from remote_agent.planning.ways import Prediction, Way
from remote_agent.protocol import DeviceSpec
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan.measurements import Measurements
from remote_agent.training.coordinator.plan.siting import Computer, ShardHosts
from remote_agent.training.errors import CUT_HINT, TooLarge, TrainingError

FIT_HINT = "lower batch_size, or raise the hosts' max_batch"


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The devices that were measured, and where they are.

    Attributes:
        there: the computers, and their links.
        numel: trained numbers of the job's model.
        relative: time of the job's optimizer over AdamW's.
        notes: what is to be said of them in a plan.
    """

    job: str
    names: Sequence[str]
    specs: Sequence[DeviceSpec]
    simulated: Sequence[float | None]
    there: ShardHosts
    numel: int
    relative: float = 1.0
    notes: tuple[str, ...] = ()


def survey_of(
    fleet: Fleet, found: Measurements, config: TrainingConfig, *, streamable: bool = True, least: int = 1
) -> Survey:
    """What the planner works with.

    Args:
        streamable: parameter servers can hold the model.
        least: samples of a slice that is not empty.
    """
    hosts: list[Host] = []
    shared = _shared(fleet.there.computers)
    for number, computer in enumerate(fleet.there.computers):
        for name in computer.hosts:
            mine = [position for position, spec in enumerate(fleet.specs) if spec.host == name]
            host = _host(fleet, found, name, mine, computer, f"computer {number}")
            hosts.append(media.on(host, shared.both[number], shared.medium))
    slowest = max(range(len(found.profiles)), key=lambda position: 1 / found.profiles[position].speed)
    work = Work(
        parameters=fleet.numel,
        batch=config.batch_size,
        least=least,
        ready=_ready(found.costs[slowest].ready, fleet.simulated[slowest]) if found.costs else (),
        streamable=streamable,
        clipped=config.clip_norm > 0,
        unit=config.unit,
        encrypted=tls.enabled(),
    )
    codec_s: dict[str, float] = {}
    for costs in found.costs:
        codec_s |= {name: max(each, codec_s.get(name, 0.0)) for name, each in costs.codec_s.items()}
    return Survey(
        job=fleet.job,
        work=work,
        hosts=tuple(hosts),
        media={media.SHARED: shared.medium} if shared.medium else {},
        call_s=max(found.calls_s, default=0.0),
        codec_s=codec_s,
        time=time.time(),
        notes=fleet.notes,
    )


def _shared(computers: Sequence[Computer]) -> media.Found:
    """What the computers' links share."""
    rates = [computer.rates for computer in computers]
    at_once = [each.at_once if each is not None else (0.0, 0.0) for each in rates]
    return media.found(at_once, [each.alone if each is not None else 0.0 for each in rates])


def _ready(curve: Sequence[float], simulated: float | None) -> tuple[float, ...]:
    """When gradients are there; a simulated device gives the last one when its time is over."""
    last = max(curve, default=0.0)
    return tuple(each / last for each in curve) if simulated is not None and last else tuple(curve)


def _host(fleet: Fleet, found: Measurements, name: str, mine: Sequence[int], computer: Computer, label: str) -> Host:
    rates = computer.rates
    costs = [found.costs[position] for position in mine if found.costs]
    every = [each.update_s for each in found.costs]
    devices = tuple(
        Device(
            name=fleet.names[position],
            speed=found.profiles[position].speed,
            overhead_s=found.profiles[position].overhead_s,
            max_batch=found.profiles[position].max_batch,
            step_s=found.costs[position].step_s * fleet.relative if found.costs else 0.0,
            product=fleet.specs[position].name,
        )
        for position in mine
    )
    update = max((each.update_s for each in costs), default=max(every, default=0.0))
    handling = costs or found.costs  # a host without a device is taken for the slowest that has one
    return Host(
        name=name,
        devices=devices,
        up=rates.up if rates is not None else 0.0,
        down=rates.down if rates is not None else 0.0,
        memory=rates.memory if rates is not None else None,
        reachable=rates.reachable if rates is not None else True,
        latency_s=rates.latency_s if rates is not None else 0.0,
        update_s=update * fleet.relative,
        turn_s=max((each.turn_s for each in handling), default=0.0),
        touch_s=max((each.touch_s for each in handling), default=0.0),
        computer=label,
    )


def with_known(survey: Survey, before: Survey) -> Survey:
    """With what an earlier plan or run found out that was not measured anew: links, and what predictions are off by."""
    known = {host.name: host for host in before.hosts if host.up}
    hosts = tuple(
        host if host.up or (old := known.get(host.name)) is None else _linked_as(host, old) for host in survey.hosts
    )
    is_old = hosts != survey.hosts
    when = before.time if is_old else survey.time  # the links are as old as they are
    return dataclasses.replace(
        survey,
        hosts=hosts,
        media=before.media if is_old else survey.media,
        ratios=before.ratios,
        other_s=before.other_s,
        time=when,
    )


def _linked_as(host: Host, old: Host) -> Host:
    return dataclasses.replace(
        host,
        up=old.up,
        down=old.down,
        both=old.both,
        medium=old.medium,
        latency_s=old.latency_s,
        reachable=old.reachable,
    )


# --- From settings to what the planner may choose, and back -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What the planner chose.

    Attributes:
        config: the settings with a way in the place of ``auto``.
        left_out: the other hosts, and why.
    """

    config: TrainingConfig
    hosts: tuple[str, ...]
    reasons: tuple[str, ...]
    left_out: dict[str, str]


def chosen(config: TrainingConfig, survey: Survey) -> Chosen:
    """What ``auto`` is for these devices and links.

    Raises:
        TooLarge: the model fits into no set of hosts.
        TrainingError: the batch fits into no set of hosts.
    """
    limits = limits_of(config)
    try:
        found = choice.choose(survey, limits)
    except NoRoom as error:
        raise TooLarge(f"the model does not fit: {error}", hint=CUT_HINT) from None
    except DoesNotFit as error:
        raise TrainingError(f"the job does not fit: {error}", hint=FIT_HINT) from None
    return Chosen(
        config=into(config, found),
        hosts=found.best.way.hosts,
        reasons=verdicts.verdicts(survey, found),
        left_out=verdicts.left_out(found),
    )


def refuse_too_large(config: TrainingConfig, survey: Survey) -> None:
    """Raise TooLarge if ``auto`` finds no way, before a plan is told."""
    if predicted(dataclasses.replace(config, strategy="sync"), survey) is not None:
        return
    try:
        chosen(config, survey)
    except TooLarge:
        raise
    except TrainingError:  # the batch does not fit, as the plan will say
        return


def into(config: TrainingConfig, found: Choice) -> TrainingConfig:
    """The settings of the chosen way."""
    way = found.best.way
    return dataclasses.replace(
        config,
        strategy=way.strategy,
        codec=way.codec,
        local_steps=way.local_steps if way.strategy == "local_sgd" else config.local_steps,
        overlap=way.overlap and way.strategy == "local_sgd",
    )


def way_of(config: TrainingConfig, survey: Survey) -> Way:
    """The way that settled settings say, with all of the survey's hosts."""
    return Way(
        strategy=config.strategy,
        hosts=survey.names,
        codec=config.codec,
        shards=config.shards,
        local_steps=config.local_steps,
        local_batch=config.local_batch,
        overlap=config.overlap,
    )


def predicted(config: TrainingConfig, survey: Survey) -> Prediction | None:
    """A step of the run as it is carried out; None: it does not fit, by what is known."""
    return tried(survey, way_of(config, survey))


def about(config: TrainingConfig, survey: Survey) -> tuple[str, ...]:
    """For the plan of a run whose way the user named: what each host adds, and whether fewer would be faster."""
    if len({host.computer for host in survey.hosts}) < 2 or not any(host.up for host in survey.hosts):
        return ()  # nothing is known of links
    limits = dataclasses.replace(limits_of(config), all_hosts=False)
    try:
        found = choice.choose(survey, limits)
    except DoesNotFit:
        return ()
    return verdicts.verdicts(survey, found)
