"""Finds the hosts that lack packages which a job requires."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hetero_tui import deadlines
from hetero_tui.errors import ClusterError, CommandFailed
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import agent
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport

STEP = "requirements"


@dataclass(frozen=True, slots=True)
class Lack:
    """A host that lacks ``packages``; ``python`` is an environment that we must not change, or empty."""

    host: str
    packages: tuple[str, ...]
    python: str = ""


async def lacking(
    cluster: str,
    transports: Mapping[str, Transport],
    facts: Mapping[str, HostFacts],
    requirements: Sequence[str],
    *,
    of_head: Sequence[str] = (),
    head: str | None = None,
) -> tuple[Lack, ...]:
    """Ask the training Pythons of the hosts in ``facts`` which requirements they do not meet.

    Args:
        of_head: requirements for ``head`` alone; of None, any of the hosts that meets them can become the head.

    Raises:
        HostError: a host did not answer.
    """

    async def ask(host: str) -> Lack:
        python = facts[host].python.executable
        wanted = (*requirements, *(of_head if head in (None, host) else ()))
        command = agent.with_python(agent.inline("host/requirements.py", *wanted), [python])
        done = await transports[host].run(command, step=STEP, deadline=deadlines.COMMAND)
        try:
            lacks = json.loads(done.stdout.last('{"lacks"') or "")["lacks"]
        except (ValueError, KeyError, TypeError):
            said = last_lines(done.stderr, 1) or f"it ended with status {done.exit_status}"
            hint = "run `hetero-tui check`"
            raise CommandFailed(host, f"can't tell which packages are there: {said}", step=STEP, hint=hint) from None
        packages = tuple(one for one in wanted if one in lacks)
        return Lack(host, packages, "" if is_ours(cluster, facts[host]) else python)

    found = await asyncio.gather(*(ask(host) for host in facts if requirements or of_head))
    if any(head in (None, lack.host) and not {*of_head} & {*lack.packages} for lack in found):
        needless = {*of_head} - {*requirements}
        found = [replace(lack, packages=tuple(one for one in lack.packages if one not in needless)) for lack in found]
    return tuple(lack for lack in found if lack.packages)


def is_ours(cluster: str, facts: HostFacts) -> bool:
    """Whether the host trains with bootstrap's environment."""
    return facts.python.executable.endswith(f"{agent.folder(cluster)}/env/bin/python")


def words(lacks: Sequence[Lack]) -> str:
    """Describe for people which packages are missing on which hosts."""
    hosts: dict[str, list[str]] = {}
    for lack in lacks:
        hosts.setdefault(", ".join(lack.packages), []).append(lack.host)
    return "; ".join(f"{', '.join(names)}: {packages} missing" for packages, names in hosts.items())


def refuse(lacks: Sequence[Lack]) -> None:
    """Refuse to continue if packages are missing.

    Raises:
        ClusterError: says which are missing and what to do.
    """
    if not lacks:
        return
    foreign = [lack for lack in lacks if lack.python]
    packages = " ".join(dict.fromkeys(package for lack in lacks if not lack.python for package in lack.packages))
    hints = [
        f"on {lack.host}: {lack.python} -m pip install {shlex.join(lack.packages)} (--bootstrap does not: it installs "
        "only in environments that bootstrap made)"
        for lack in foreign
    ]
    if len(foreign) < len(lacks):
        hints.insert(0, f"`train --bootstrap` installs {packages} in hetero-tui's own environments")
    raise ClusterError(f"the job needs more than is there: {words(lacks)}", step=STEP, hint="; ".join(hints))
