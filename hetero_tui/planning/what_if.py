"""A fleet as it would be: with another device, another link, or without a host. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from hetero_tui.errors import PlanError
from hetero_tui.planning.catalogue import DEVICES, WIFI_BYTES, estimate, link_rate
from hetero_tui.text import meant
from remote_agent.planning import verdicts
from remote_agent.planning.survey import Device, Host, Survey, Work

USABLE = 0.9
"""Part of an added device's memory that a stage of a cut model may take."""

HINT = "for example add=rtx4070@1gbit, link=wifi, link=nas:100mbit or without=nas"


def changed(survey: Survey, changes: Sequence[str]) -> Survey:
    """The fleet after these changes, one after the other.

    Raises:
        PlanError: with every one that can't be made.
    """
    mistakes: list[str] = []
    for text in changes:
        kind, _, value = text.partition("=")
        try:
            if kind == "add":
                survey = _added(survey, value)
            elif kind == "link":
                survey = _linked(survey, value)
            elif kind == "without":
                survey = _without(survey, value)
            else:
                raise ValueError(f"expected add=, link= or without={meant(kind, ('add', 'link', 'without'))}")
        except ValueError as error:
            mistakes.append(f"--what-if {text}: {error}")
    if mistakes:
        raise PlanError(tuple(mistakes), hint=HINT)
    return survey


def check(hosts: Sequence[str], changes: Sequence[str]) -> None:
    """See what is wrong with changes of a fleet of these hosts before they are measured, which takes a while.

    Raises:
        PlanError: with every one that can't be made, whatever is measured.
    """
    devices = {name: Device(name=f"{name}/any", speed=1.0) for name in hosts}
    fleet = tuple(Host(name=name, devices=(device,)) for name, device in devices.items())
    changed(Survey(job="", work=Work(parameters=1, batch=1), hosts=fleet), changes)


def _added(survey: Survey, value: str) -> Survey:
    device, at, link = value.partition("@")
    if device not in DEVICES:
        raise ValueError(f"no device {device!r}{meant(device, DEVICES)}; the catalogue has {', '.join(DEVICES)}")
    measured = [each for host in survey.hosts for each in host.devices if not each.estimate]
    if not measured:
        raise ValueError("no device was measured that it could be compared with; with --fleet, write it into the file")
    free = (device if number == 1 else f"{device}-{number}" for number in itertools.count(1))
    name = next(each for each in free if each not in survey.names)
    anchor = max(measured, key=lambda each: each.speed)
    new = estimate(f"{name}/{device}", device, anchor)
    if anchor.blocks is not None and new.memory is not None:
        blocks = anchor.blocks.slower(anchor.speed / new.speed)
        blocks = dataclasses.replace(blocks, host=name, room=USABLE * new.memory)
        new = dataclasses.replace(new, blocks=blocks)
    host = Host(
        name=name,
        devices=(new,),
        update_s=max(each.update_s for each in survey.hosts),
        turn_s=max(each.turn_s for each in survey.hosts),
        touch_s=max(each.touch_s for each in survey.hosts),
        computer=f"what if {name}",
    )
    return _on_link(dataclasses.replace(survey, hosts=(*survey.hosts, host)), [name], link if at else "1gbit")


def _linked(survey: Survey, value: str) -> Survey:
    host, colon, link = value.rpartition(":")
    if colon:
        _check(survey, host)
    return _on_link(survey, [host] if colon else survey.names, link)


def _without(survey: Survey, host: str) -> Survey:
    _check(survey, host)
    if len(survey.hosts) == 1:
        raise ValueError("no host would be left")
    return survey.of([name for name in survey.names if name != host])


def _on_link(survey: Survey, names: Collection[str], link: str) -> Survey:
    if link == "wifi":
        survey = dataclasses.replace(survey, media={**survey.media, "wifi": WIFI_BYTES})
        rate, both, medium = WIFI_BYTES, WIFI_BYTES, "wifi"
    else:
        wired = link_rate(link)
        if wired is None:
            raise ValueError(f"no link {link!r}: expected wifi, 100mbit, 1gbit, 2.5gbit ...")
        rate, both, medium = wired, 0.0, ""
    new = {host.name: dataclasses.replace(host, up=rate, down=rate, both=both, medium=medium) for host in survey.hosts}
    hosts = tuple(new[host.name] if host.name in names else host for host in survey.hosts)
    return dataclasses.replace(survey, hosts=hosts)


def _check(survey: Survey, host: str) -> None:
    if host not in survey.names:
        raise ValueError(f"no host {host!r}{meant(host, survey.names)}; there are {verdicts.names(survey.names)}")
