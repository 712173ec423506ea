"""Installs an environment that can train on every host that lacks one; all hosts in parallel.

A host needs one if it has no `python:` in the inventory, and its Python can't be used, or its environment is incomplete
or not the wanted one. The order on a host is: ledger, uv, Python, packages, verification, and ``env/ready``. After a
crash between any two steps, the next bootstrap continues there, and ``down --purge`` removes everything.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from hetero_tui import events
from hetero_tui.errors import CommandFailed, HeteroTuiError, HostError, PythonMissing, RequirementMissing
from hetero_tui.events import Emit, HostState, Level
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import agent
from hetero_tui.fleet.findings import idle_devices, of_room
from hetero_tui.fleet.install import on_host
from hetero_tui.fleet.install.lock import Environment, choose_python
from hetero_tui.fleet.install.platforms import Platform, platform_of, why_unfit
from hetero_tui.fleet.install.sending import send_file
from hetero_tui.fleet.install.sources import Sources, collect, sha256_of, uv_for
from hetero_tui.fleet.install.verification import Verification, mend_for, verify
from hetero_tui.fleet.ledger import Ledger, place_of
from hetero_tui.fleet.preflight import NEEDED_PACKAGES, Problem, judge_fleet, training_devices
from hetero_tui.fleet.probing import Probed, probe_host, state_after
from hetero_tui.inventory import Host, Inventory
from hetero_tui.outcomes import BootstrapReport, Installed
from hetero_tui.planning.builds import torch_build
from hetero_tui.transport import Transport

T = TypeVar("T")
STEP = "bootstrap"
TELL_EVERY = 5.0
"""Seconds between two log lines about the progress of one host."""


@dataclass(frozen=True, slots=True)
class _Needs:
    """A host that gets an environment, with its present state; ``ready``: the present environment can stay."""

    host: Host
    transport: Transport
    platform: Platform
    found: on_host.Found
    facts: HostFacts | None
    ready: on_host.Ready | None


async def bootstrap(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    probed: Sequence[Probed],
    sources: Sources,
    extras: Sequence[str],
    ledger: Ledger,
    emit: Emit,
    in_use: frozenset[str] = frozenset(),
    anew: frozenset[str] | None = None,
) -> BootstrapReport:
    """Make or complete the environments of the hosts that were probed.

    Args:
        inventory: the hosts; one with ``python:`` keeps that Python.
        extras: additional requirements of jobs, which are remembered.
        ledger: records that a host has an environment, for ``down --purge``.
        in_use: hosts on which Ray runs, so that their environments can't be changed now.
        anew: only these hosts get an environment, made from scratch even if it looks complete; None: all that need one.
    """
    work = _Bootstrap(inventory, transports, sources, tuple(extras), ledger, emit, in_use, anew)
    return await work.run(probed)


class _Bootstrap:
    def __init__(
        self,
        inventory: Inventory,
        transports: Mapping[str, Transport],
        sources: Sources,
        extras: tuple[str, ...],
        ledger: Ledger,
        emit: Emit,
        in_use: frozenset[str],
        anew: frozenset[str] | None,
    ) -> None:
        self._inventory = inventory
        self._transports = transports
        self._sources = sources
        self._extras = extras
        self._ledger = ledger
        self._emit = emit
        self._in_use = in_use
        self._only = anew
        self._anew = (anew or frozenset()) - in_use
        self._fetching = {name: asyncio.Lock() for name in ("uv", "wheels")}
        self._with_uv: set[str] = set()
        self._installed: dict[str, Installed] = {}
        self._failed: dict[str, HostError] = {}

    async def run(self, probed: Sequence[Probed]) -> BootstrapReport:
        judged = judge_fleet(self._inventory, {entry.host: entry.facts for entry in probed if entry.facts is not None})
        looked = [need for need in await asyncio.gather(*(self._look(entry, judged) for entry in probed)) if need]
        needs = self._without_twins(looked)
        fixed = [
            self._installed[name].python for name in sorted(self._installed, key=lambda name: name not in self._in_use)
        ]
        fixed += [need.ready.python for need in needs if need.ready is not None]
        needs = [need for need in needs if self._only is None or need.host.name in self._only]
        bare = {need.host.name: need for need in needs if need.ready is None}
        versions = await asyncio.gather(*(self._guard(self._pythons(need)) for need in bare.values()))
        there = {name: found for name, found in zip(bare, versions, strict=True) if found is not None}
        python, why = choose_python(fixed, there, ".".join(platform.python_version_tuple()[:2]))
        if there:
            self._say(None, why)
        await asyncio.gather(
            *(self._guard(self._equip(need, python)) for need in needs if need.host.name not in self._failed)
        )
        names = [host.name for host in self._inventory.hosts]
        installed = tuple(self._installed[name] for name in names if name in self._installed)
        return BootstrapReport(installed, {name: self._failed[name] for name in names if name in self._failed})

    def _without_twins(self, looked: Sequence[_Needs]) -> list[_Needs]:
        """Those that are machines of their own; of hosts without a Python, preflight could not tell."""
        used: dict[str, str] = {}
        needs: list[_Needs] = []
        for need in looked:
            name, place = need.host.name, need.found.place
            if place and used.setdefault(place, name) != name:
                cause = f"is the same machine as {used[place]}, which gets the environment"
                self._fail(RequirementMissing(name, cause, step=STEP, hint=f"`hetero-tui remove {name}`, or the other"))
            else:
                needs.append(need)
        return needs

    async def _look(self, entry: Probed, judged: Mapping[str, Sequence[Problem]]) -> _Needs | None:
        """What a host needs; None: nothing, or an environment is not possible, which is then reported."""
        name, host = entry.host, self._inventory.host(entry.host)
        if entry.error is not None and not isinstance(entry.error, PythonMissing):
            self._failed[name] = entry.error
            return None
        assert host is not None
        twin = next((problem for problem in judged.get(name, ()) if problem.instead), None)
        if twin is not None:
            self._fail(RequirementMissing(name, twin.cause, step=STEP, hint=twin.hint))
            return None
        if host.python is not None:
            self._keep(host, entry, judged)
            return None
        transport = self._transports[name]
        found = await self._guard(on_host.look(transport, self._inventory.cluster))
        if found is None:
            return None
        facts = entry.facts
        own = facts is not None and facts.environment_python is None and name not in self._anew
        if own and facts is not None and not judged.get(name) and not idle_devices(host, facts):
            detail = f"{facts.python.executable} has what is needed"
            self._installed[name] = Installed(name, _minor(facts), detail, facts.torch_build or "")
            return None
        if (unfit := why_unfit(found.system)) is not None:
            self._fail(RequirementMissing(name, unfit[0], step=STEP, hint=unfit[1]))
            return None
        kind = platform_of(found.system.uname)
        assert kind is not None, "such a system is unfit"
        whole = facts is not None and name not in self._anew and _is_whole(facts, self._inventory.cluster)
        ready = found.ready if whole else None
        return _Needs(host, transport, kind, found, facts, ready)

    def _keep(self, host: Host, entry: Probed, judged: Mapping[str, Sequence[Problem]]) -> None:
        if entry.error is not None:
            self._failed[host.name] = entry.error
        elif judged.get(host.name):
            cause = f"its own Python, {host.python}, can't be used: {judged[host.name][0].cause}"
            hint = "take `python:` out of the inventory, and bootstrap makes an environment; or mend that one"
            self._fail(RequirementMissing(host.name, cause, step=STEP, hint=hint))
        elif entry.facts is not None:
            detail = f"the inventory's Python, {host.python}, has what is needed"
            self._installed[host.name] = Installed(
                host.name, _minor(entry.facts), detail, entry.facts.torch_build or ""
            )

    async def _pythons(self, need: _Needs) -> frozenset[str]:
        """The available Pythons of a host that gets an environment, after it got uv."""
        self._ledger.intend(need.host, "environment")
        await self._send_uv(need)
        return await on_host.pythons(need.transport, self._inventory.cluster)

    async def _equip(self, need: _Needs, python: str) -> None:
        """Make or complete one host's environment, unless it is already the wanted one."""
        name, began, cluster = need.host.name, time.monotonic(), self._inventory.cluster
        extras = tuple(dict.fromkeys((*need.found.extras, *self._extras)))
        before = need.found.ready.build if need.found.ready is not None else None
        if need.ready is not None and need.facts is not None:
            wanted = Environment(python, torch_build(need.facts, need.host.devices, before), extras)
            self._warn_of_unread(name, need.facts)
            if wanted.digest == need.ready.digest:
                if place_of(need.host) not in {place_of(entry.host) for entry in self._ledger.entries()}:
                    self._ledger.intend(need.host, "environment")  # another laptop made it, or its address is new
                detail = f"Python {need.facts.python.version}, torch {wanted.build.name}: nothing to do"
                self._installed[name] = Installed(name, python, detail, wanted.build.name)
                return
        if name in self._in_use:
            cause = "its environment has to change, and Ray runs from it"
            raise RequirementMissing(name, cause, step=STEP, hint="run `hetero-tui down` first, then bootstrap again")
        self._ledger.intend(need.host, "environment")
        await on_host.remember(need.transport, cluster, extras)  # whatever interrupts what follows
        if need.ready is None:  # what a killed installation leaves of a package keeps uv from installing it
            await on_host.discard(need.transport, cluster)
        await self._send_uv(need)
        await self._tell(name, on_host.make(need.transport, cluster, python, self._sources))
        facts = await probe_host(cluster, need.host, need.transport)
        if facts.unread and need.facts is not None and not need.facts.unread:
            # A GPU's tool failed only now.
            facts = need.facts.model_copy(update={"torch_build": facts.torch_build, "disk": facts.disk})
        build = torch_build(facts, need.host.devices, before)
        wanted = Environment(python, build, extras)
        self._say(name, f"torch {wanted.build.name}: {wanted.build.why}")
        if wanted.build.concern:
            self._say(name, f"{wanted.build.concern} -> {wanted.build.mend}", Level.WARNING)
        if need.ready is None:
            self._warn_of_unread(name, facts)
        for finding in of_room(name, facts, build.name):
            self._say(name, f"{finding.what}; {finding.why}", Level.WARNING)
        await on_host.prepare(need.transport, cluster, wanted)
        try:
            wheels = await self._send_wheels(need, wanted) if self._sources.from_laptop else ""
            await self._tell(name, on_host.install(need.transport, cluster, wanted, self._sources, wheels))
        except (CommandFailed, RequirementMissing):
            # A package that can't be installed must not be in the way of the next bootstrap.
            await on_host.remember(need.transport, cluster, need.found.extras)
            raise
        self._say(name, "installed; trying it out")
        devices = training_devices(need.host, facts.with_build(wanted.build.name))
        shown = await verify(need.transport, [f"{agent.folder(cluster)}/env/bin/python"], devices)
        self._refuse_broken(name, shown, wanted)
        await on_host.mark_ready(need.transport, cluster, wanted)
        seconds = time.monotonic() - began
        works = ", ".join(trial.device for trial in shown.devices)
        detail = f"Python {shown.python}, torch {shown.versions.get('torch', '?')}, works on {works}"
        self._installed[name] = Installed(name, python, detail, wanted.build.name, changed=True, seconds=seconds)
        self._emit(events.HostChanged(host=name, state=HostState.READY, detail=detail))
        self._say(name, f"{detail}; took {seconds:.0f} s", Level.GOOD)

    def _warn_of_unread(self, name: str, facts: HostFacts) -> None:
        for problem in facts.problems if facts.unread else ():
            self._say(name, f"{problem}; so its build of torch may not be for what is there", Level.WARNING)

    def _refuse_broken(self, name: str, shown: Verification, wanted: Environment) -> None:
        """Raise an error for what does not work, of the devices that train."""
        if shown.problems:
            hint = "is the accelerator's driver loaded (`nvidia-smi`, `rocm-smi`)? `devices: [cpu]` does without it"
            if wanted.build.concern:
                hint = f"{wanted.build.concern} -> {wanted.build.mend}"
            cause = "; ".join(shown.problems)
            raise CommandFailed(name, cause, step="verify", hint=mend_for(cause, hint))

    async def _send_uv(self, need: _Needs) -> None:
        if need.host.name in self._with_uv:
            return
        async with self._fetching["uv"]:
            packed = await self._of_laptop(need, uv_for(need.platform, self._sources))
        if need.found.uv_digest != packed.digest:
            folder = f"{agent.folder(self._inventory.cluster)}/install"
            digest = await asyncio.to_thread(sha256_of, packed.path)
            told = partial(self._sent, need.host.name, "uv", packed.path.stat().st_size, 0)
            await send_file(need.transport, packed.path, folder, digest, told)
            await on_host.unpack_uv(need.transport, self._inventory.cluster, packed.path.name, packed.digest)
        self._with_uv.add(need.host.name)

    async def _send_wheels(self, need: _Needs, environment: Environment) -> str:
        """Send the packages; returns their folder on the host."""
        async with self._fetching["wheels"]:  # the second host of a kind finds what the first has fetched
            self._say(need.host.name, f"collecting packages for {need.platform.uname} on this laptop")
            wheels = await self._of_laptop(need, collect(environment, need.platform, self._sources))
        folder = f"{agent.folder(self._inventory.cluster)}/install/wheels/{environment.digest}"
        sizes = [wheel.stat().st_size for wheel in wheels]
        for number, wheel in enumerate(wheels):
            told = partial(self._sent, need.host.name, wheel.name.partition("-")[0], sum(sizes), sum(sizes[:number]))
            digest = await asyncio.to_thread(sha256_of, wheel)
            await send_file(need.transport, wheel, folder, digest, told)
        self._say(need.host.name, f"{len(wheels)} packages sent, {sum(sizes) / 1e6:,.0f} MB")
        return f"install/wheels/{environment.digest}"

    async def _of_laptop(self, need: _Needs, fetched: Awaitable[T]) -> T:
        """Fetch packages for a host on the laptop; a failure becomes the host's error."""
        try:
            return await fetched
        except HostError:
            raise
        except HeteroTuiError as error:
            raise RequirementMissing(need.host.name, error.cause, step=error.step, hint=error.hint) from None
        except OSError as error:
            cause = f"this laptop can't keep packages in {error.filename or 'its cache'}: {error.strerror}"
            hint = "free some space, or give yourself the right to write there"
            raise RequirementMissing(need.host.name, cause, step=STEP, hint=hint) from None

    async def _guard(self, work: Awaitable[T]) -> T | None:
        """The outcome of one host's part; None: it failed, which is then reported."""
        try:
            return await work
        except HostError as error:
            self._fail(error)
            return None

    def _fail(self, error: HostError) -> None:
        self._failed[error.host] = error
        self._emit(events.HostChanged(host=error.host, state=state_after(error), detail=error.cause))

    async def _tell(self, host: str, words: AsyncIterator[str]) -> None:
        """Report the progress of an installation: at once in the host's line, from time to time in the log."""
        said, last = 0.0, ""
        async for word in words:
            self._show(host, word)
            if time.monotonic() - said >= TELL_EVERY and word != last:
                self._say(host, word)
                said, last = time.monotonic(), word

    def _sent(self, host: str, what: str, total: int, before: int, now: int) -> None:
        self._show(host, f"sending {what}: {(before + now) / 1e6:,.0f} of {total / 1e6:,.0f} MB")

    def _show(self, host: str, detail: str) -> None:
        self._emit(events.HostChanged(host=host, state=HostState.INSTALLING, detail=detail))

    def _say(self, host: str | None, text: str, level: Level = Level.INFO) -> None:
        self._emit(events.Notice(level=level, text=text, host=host))


def _is_whole(facts: HostFacts, cluster: str) -> bool:
    """Whether the probe ran in the host's own environment, and all required packages are there."""
    own = facts.python.executable.endswith(f"{agent.folder(cluster)}/env/bin/python")
    return own and all(facts.packages.get(package) is not None for package in NEEDED_PACKAGES)


def _minor(facts: HostFacts) -> str:
    return ".".join(map(str, facts.python.minor))
