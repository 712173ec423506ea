"""Finds problems that may prevent good training, on each machine and between them; changes nothing.

It tries in advance what a later command needs: each accelerator with a small matrix product, and the ports between
hosts in both directions.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hetero_tui import deadlines
from hetero_tui.errors import ClusterError, HostError
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import findings, mesh
from hetero_tui.fleet.findings import Surroundings
from hetero_tui.fleet.install import on_host
from hetero_tui.fleet.install.platforms import why_unfit
from hetero_tui.fleet.install.verification import verify
from hetero_tui.fleet.preflight import BOOTSTRAP_MENDS, judge_fleet, training_devices
from hetero_tui.fleet.probing import BOOTSTRAP_BRINGS, Probed
from hetero_tui.fleet.reach import measure
from hetero_tui.inventory import Host, Inventory
from hetero_tui.outcomes import BAD, Checked, CheckReport, Finding
from hetero_tui.planning.cluster import Candidate, plan_cluster
from hetero_tui.planning.reach import addresses_to_try, best_addresses, closed
from hetero_tui.transport import Transport

STEP = "check"

_LOOK = """echo "ht:clock $(date +%s)"; echo "ht:files $(ulimit -Hn)"
if command -v pmset >/dev/null 2>&1; then
  echo "ht:sleep $(pmset -g | awk '$1 == "sleep" {print $2; exit}')"
  pmset -g batt | grep -q "'Battery Power'" && echo "ht:battery 1"
elif command -v gsettings >/dev/null 2>&1; then
  place=org.gnome.settings-daemon.plugins.power
  [ "$(gsettings get $place sleep-inactive-ac-type 2>/dev/null)" = "'suspend'" ] &&
    echo "ht:seconds $(gsettings get $place sleep-inactive-ac-timeout 2>/dev/null)"
fi
cat /sys/class/power_supply/*/status 2>/dev/null | grep -q '^Discharging' && echo "ht:battery 1"
login=org.freedesktop.login1
[ "$(id -u)" -ne 0 ] && # of root it kills nothing
  busctl --timeout=2 get-property $login /org/freedesktop/login1 $login.Manager KillUserProcesses 2>/dev/null |
  grep -q true && echo "ht:logout 1"
exit 0
"""


async def check(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    probed: Sequence[Probed],
    head: str | None,
    members: frozenset[str],
) -> CheckReport:
    """Check every host that was probed; ``head`` and ``members`` belong to a cluster that already runs."""
    facts = {entry.host: entry.facts for entry in probed if entry.facts is not None}
    found = [findings.of_error(entry.error) for entry in probed if entry.error is not None]
    judged = judge_fleet(inventory, facts, head)
    fit = {name: facts[name] for name, problems in judged.items() if not problems}
    found += [findings.of_problem(name, problem) for name, problems in judged.items() for problem in problems]
    hosts = {host.name: host for host in inventory.hosts if host.name in facts}
    looked = await asyncio.gather(
        *(_look(host, facts[name], transports[name], tries=name in fit) for name, host in hosts.items())
    )
    for name, host in hosts.items():
        found += findings.of_facts(host, facts[name])
    found = await _without_vain_hints(inventory, transports, found)
    checked = {entry.host: Checked(entry.host) for entry in probed}
    for one, of_one in looked:
        checked[one.name] = one
        found += of_one
    candidates = {name: Candidate(hosts[name], facts[name], transports[name].address) for name in fit}
    between = await _between(inventory, transports, candidates, head, members)
    found += between.found
    for name, (sends, receives) in between.rates.items():
        checked[name] = replace(checked[name], sends=sends, receives=receives)
    whole = tuple(replace(one, address=between.addresses.get(name, "")) for name, one in checked.items())
    network = findings.of_network((one.address for one in whole if one.address), inventory)
    order = {host.name: number for number, host in enumerate(inventory.hosts)}
    return CheckReport(
        whole, tuple(sorted(found, key=lambda finding: order.get(finding.host, len(order)))), between.head, network
    )


async def _without_vain_hints(
    inventory: Inventory, transports: Mapping[str, Transport], found: Sequence[Finding]
) -> list[Finding]:
    """The findings, but not that bootstrap mends it where it can't make an environment: there stands why."""
    bare = {finding.host for finding in found if finding.mend in (BOOTSTRAP_MENDS, BOOTSTRAP_BRINGS)}
    vain: dict[str, Finding] = {}

    async def ask(host: str) -> None:
        with suppress(HostError):  # it answered before; what is found already stays
            unfit = why_unfit((await on_host.look(transports[host], inventory.cluster)).system)
            if unfit is not None:
                vain[host] = Finding(host, BAD, unfit[0], "`hetero-tui bootstrap` can't make an environment", unfit[1])

    await asyncio.gather(*map(ask, bare))
    return [*(finding for finding in found if finding.host not in vain), *vain.values()]


async def _look(
    host: Host, facts: HostFacts, transport: Transport, *, tries: bool
) -> tuple[Checked, tuple[Finding, ...]]:
    found: list[Finding] = []
    one = Checked(host.name)
    try:
        before = time.time()
        done = await transport.run(["sh", "-c", _LOOK], step=STEP, deadline=deadlines.COMMAND)
        words = dict(re.findall(r"^ht:(\w+) (\d{1,12})\b", done.stdout.raw, re.MULTILINE))
        found += findings.of_surroundings(host.name, facts, _surroundings(words, before, time.time()))
        one = replace(one, round_trip=await transport.round_trip())
        if tries:
            shown = await verify(
                transport, [facts.python.executable], training_devices(host, facts), leaves_no_trace=True
            )
            found += findings.of_trial(host, facts, shown)
            one = replace(one, devices=tuple(trial.device for trial in shown.devices if not trial.error))
    except HostError as error:
        found.append(findings.of_error(error))
    return one, tuple(found)


def _surroundings(words: Mapping[str, str], before: float, after: float) -> Surroundings:
    clock = int(words["clock"]) if "clock" in words else None
    skew = None
    if clock is not None:  # it counts whole seconds, between the question and the answer
        skew = min(0.0, clock + 1 - before) if clock + 1 < before else max(0.0, clock - after)
    minutes = int(words.get("sleep", 0)) or int(words.get("seconds", 0)) // 60
    files = int(words["files"]) if "files" in words else None
    return Surroundings(skew, files, minutes, "battery" in words, "logout" in words)


@dataclass(frozen=True, slots=True)
class _Between:
    """Findings between hosts that may join, with their addresses and link speeds, and the head."""

    found: tuple[Finding, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    head: str = ""


async def _between(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    candidates: Mapping[str, Candidate],
    head: str | None,
    members: frozenset[str],
) -> _Between:
    if not candidates:
        return _Between()
    rates: Mapping[str, tuple[float, float]] = {}
    found: list[Finding] = []
    addresses: dict[str, tuple[str, ...]]
    if inventory.meshed:
        hosts = {name: candidate.host for name, candidate in candidates.items()}
        reports, errors = await mesh.look(inventory, transports, hosts)
        why = "it can't be in the cluster's WireGuard network, so it can't join"
        found += [Finding(error.host, BAD, error.cause, why, error.hint) for error in errors.values()]
        candidates = {name: candidate for name, candidate in candidates.items() if name in reports}
        up = {name: report.spec for name, report in reports.items() if report.spec is not None and report.is_up}
        addresses = {name: (spec.address,) for name, spec in up.items()}  # before `up` there is no such network
    else:
        addresses = addresses_to_try(candidates)
    if len(addresses) > 1:
        measured = await measure(inventory, transports, addresses, with_rates=True)
        best = best_addresses(measured, addresses)
        for shut in closed(measured, best, {*members, head or inventory.head or ""}):
            why = "Ray and training connect every host to every other"
            hint = mesh.CLOSED_HINT if inventory.meshed else shut.hint
            found.append(Finding(shut.host, BAD, shut.cause, why, hint))
        candidates = {name: replace(one, measured=best.get(name)) for name, one in candidates.items()}
        rates = measured.rates
        for name, (sends, receives) in rates.items():
            found += findings.of_link(name, sends, receives)
    try:
        plan = plan_cluster(inventory, candidates, head=head)
    except ClusterError as error:
        found.append(Finding(head or inventory.head or "", BAD, error.cause, "no cluster is possible", error.hint))
        return _Between(tuple(found), rates=rates)
    return _Between(tuple(found), {node.host: node.address for node in plan.nodes}, rates, plan.head)
