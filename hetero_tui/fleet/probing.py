"""Probes all hosts in parallel; each has its own deadline and its own outcome."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hetero_tui import answers, deadlines, events
from hetero_tui.errors import (
    AuthenticationFailed,
    CommandFailed,
    DeadlineExceeded,
    HostError,
    HostKeyChanged,
    HostKeyUnknown,
    PythonMissing,
    RequirementMissing,
    Unreachable,
)
from hetero_tui.events import Emit, HostState
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import agent
from hetero_tui.inventory import Host, Inventory
from hetero_tui.text import HostText, last_lines
from hetero_tui.transport import Transport
from remote_agent.protocol import ProtocolError

STEP = "probe"
_SHELLS_PREFIX = re.compile(r"^\S+: (?:line )?\d+: exec: ")
"""Prefix of a shell's error about a Python that can't run: the shell's name and a line number of our script."""
_EXHAUSTED = re.compile(
    r"can't start new thread|[Cc](?:an't|annot) (?:fork|allocate memory)|[Rr]esource temporarily unavailable"
    r"|MemoryError|failed to map segment|bad_alloc|[Tt]oo many open files|File size limit"
)
"""Errors of programs that reach a limit of their user."""

BOOTSTRAP_BRINGS = "run `hetero-tui bootstrap`, which brings one, or name a Python 3.11 or newer there as `python:`"
"""The hint for a host without a Python that the probe can use."""

_WSL_HINT = "install WSL2 and an SSH server in it, and name its address and port in the inventory"


@dataclass(frozen=True, slots=True)
class Probed:
    """The outcome for one host: facts or the error, and the seconds that it took."""

    host: str
    facts: HostFacts | None = None
    error: HostError | None = None
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """The value of ``status`` in ``probe --json``."""
        return "ok" if self.error is None else self.error.status


async def probe_fleet(inventory: Inventory, transports: Mapping[str, Transport], emit: Emit) -> tuple[Probed, ...]:
    """Probe every host of ``transports`` in parallel; returns the inventory's order, and raises no error of a host."""
    hosts = [host for host in inventory.hosts if host.name in transports]
    return tuple(
        await asyncio.gather(*(_probe(inventory.cluster, host, transports[host.name], emit) for host in hosts))
    )


async def _probe(cluster: str, host: Host, transport: Transport, emit: Emit) -> Probed:
    emit(events.HostChanged(host=host.name, state=HostState.CONNECTING))
    began = time.monotonic()
    try:
        async with asyncio.timeout(deadlines.PROBE):
            await transport.connect()
        facts = await probe_host(cluster, host, transport, deadlines.PROBE - (time.monotonic() - began))
    except TimeoutError:
        cause = f"no connection within {deadlines.PROBE:g} s"
        hint = "is the machine asleep or very busy?"
        error: HostError = DeadlineExceeded(host.name, cause, step=STEP, hint=hint)
    except HostError as raised:
        error = raised
    else:
        emit(events.HostProbed(host=host.name, facts=facts))
        return Probed(host.name, facts=facts, seconds=time.monotonic() - began)
    if isinstance(error, HostKeyUnknown):
        emit(events.HostKeyOffered(host=host.name, fingerprint=error.fingerprint, endpoint=error.endpoint))
    emit(changed_by(error, host.name))
    return Probed(host.name, error=error, seconds=time.monotonic() - began)


async def probe_host(cluster: str, host: Host, transport: Transport, deadline: float = deadlines.PROBE) -> HostFacts:
    """Get the facts of one connected host, within ``deadline`` seconds.

    Raises:
        PythonMissing: the host has no usable Python.
        CommandFailed: the probe failed, or printed something else.
    """
    candidates = agent.python_candidates(cluster, host)
    # -I: ignore Python's variables from .bashrc, and user files with names of standard modules.
    began, ends = time.time(), time.monotonic() + deadline
    wanted = f'-I - --folder "$0" --deadline {deadlines.PROBE_ON_HOST:g}'
    done = await transport.run(
        agent.with_python(wanted, candidates, agent.home_folder(cluster)),
        step=STEP,
        deadline=deadline,
        stdin=agent.source("probe.py"),
    )
    if done.exit_status == agent.NO_PYTHON:
        raise PythonMissing(
            host.name,
            f"no Python there that runs (looked for {', '.join(candidates)})",
            step=STEP,
            hint=_python_hint(host),
        )
    line = done.stdout.last('{"probe":')
    if line is None:
        tail = last_lines(done.stderr) or last_lines(done.stdout)
        if is_windows(done.stderr.raw) or is_windows(done.stdout.raw):
            raise RequirementMissing(host.name, "it runs Windows, which Ray can't train on", step=STEP, hint=_WSL_HINT)
        version = await _version(transport, candidates, ends - time.monotonic())
        if re.match(r"Python (2|3\.[0-7])\b", version):
            raise PythonMissing(
                host.name,
                f"{version} is too old even for the probe, which needs 3.8 ({_used(candidates)})",
                step=STEP,
                hint=_python_hint(host),
            )
        status = done.exit_status
        ended = f"its Python was ended by signal {-status}" if status < 0 else f"the probe ended with status {status}"
        if _EXHAUSTED.search(tail):
            hint = "its user may have too few processes, files or too little memory: `ulimit -a` there says how many"
        else:
            hint = f"try `python3 --version` there; {_used(candidates)}"
        raise CommandFailed(
            host.name,
            _SHELLS_PREFIX.sub("", last_lines(tail, 1)) or f"{ended} and no answer",
            step=STEP,
            hint=hint,
            output=tail,
        )
    try:
        facts = answers.facts(HostText(line))
    except ProtocolError as error:
        raise agent.refused(host.name, error, STEP) from None
    # The clock was read between these two moments, so only a difference beyond them is an error of the clock.
    ahead = max(0.0, facts.clock - time.time()) or min(0.0, facts.clock - began)
    return facts.model_copy(update={"clock_ahead": round(ahead, 1), "reached": transport.address})


def is_windows(said: str) -> bool:
    """Whether this is the error of cmd.exe or PowerShell, which OpenSSH for Windows starts, for a POSIX command.

    https://learn.microsoft.com/windows-server/administration/openssh/openssh-server-configuration
    """
    return (
        re.search(r"is not recognized as (an internal or external command|(the|a) name of a cmdlet)", said) is not None
    )


async def _version(transport: Transport, candidates: list[str], deadline: float) -> str:
    """The version of the Python that was used; before 3.4 it is printed on stderr."""
    done = await transport.run(agent.with_python("-V", candidates), step=STEP, deadline=max(1.0, deadline))
    return last_lines(done.stdout, 1) or last_lines(done.stderr, 1)


def _used(candidates: list[str]) -> str:
    return f"{'used' if len(candidates) == 1 else 'used the first that runs of'}: {', '.join(candidates)}"


def _python_hint(host: Host) -> str:
    if host.python is not None:
        return "correct `python:` of this host, or take it out and run `hetero-tui bootstrap`"
    return BOOTSTRAP_BRINGS


def changed_by(error: HostError, host: str) -> events.HostChanged:
    """What a failed step says of a host."""
    return events.HostChanged(host=host, state=state_after(error), detail=error.cause, hint=error.hint)


def state_after(error: HostError) -> HostState:
    """The state of a host after a failed step."""
    match error:
        case AuthenticationFailed() | HostKeyUnknown() | HostKeyChanged():
            return HostState.REFUSED
        case Unreachable() | DeadlineExceeded():
            return HostState.UNREACHABLE
        case PythonMissing():
            return HostState.UNFIT
        case _:
            return HostState.FAILED
