"""Tests whether a host's Python can train: imports, versions, and a matrix product on each device that trains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from hetero_tui import answers, deadlines
from hetero_tui.errors import CommandFailed
from hetero_tui.fleet import agent
from hetero_tui.text import HostText, last_lines, one_line
from hetero_tui.transport import Transport
from remote_agent.protocol import ProtocolError

STEP = "verify"


_IN_THE_WAY = re.compile(r"file too short|invalid ELF header|undefined symbol|version `[^']+' not found")
_LIBRARIES = (
    "a library of another program is loaded in its place: take LD_LIBRARY_PATH and LD_PRELOAD out of that user's"
    " start-up files there (~/.bashrc), then check again"
)


def mend_for(problem: str, otherwise: str) -> str:
    """What to do about a package that can't be loaded: a new environment does not help against the user's libraries."""
    return _LIBRARIES if _IN_THE_WAY.search(problem) else otherwise


@dataclass(frozen=True)
class DeviceTrial:
    """The result of the product on one device; ``error`` is empty if it was correct."""

    device: str
    seconds: float
    error: str


@dataclass(frozen=True)
class Verification:
    """The result for an environment; ``errors`` are packages that can't be imported, with the reasons."""

    python: str
    versions: dict[str, str] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    devices: tuple[DeviceTrial, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each problem."""
        failed = [f"{trial.device}: {trial.error}" for trial in self.devices if trial.error]
        return (*(f"can't import {error}" for error in self.errors), *failed)


async def verify(
    transport: Transport, pythons: Sequence[str], devices: Sequence[str], *, leaves_no_trace: bool = False
) -> Verification:
    """Run the test with the first existing one of ``pythons``, on the CPU and on ``devices``.

    Others are left alone: torch may crash at the first operation on one that it has no kernels for. Python writes
    compiled files, so that the next start is fast; with ``leaves_no_trace`` it writes nothing.

    Raises:
        HostError: the test did not end, or its answer is invalid.
    """
    trace = "no-trace" if leaves_no_trace else "traces"
    command = agent.with_python(agent.inline("host/verify.py", trace, *devices), pythons)
    done = await transport.run(command, step=STEP, deadline=deadlines.VERIFY)
    line = done.stdout.last('{"verified"')
    if line is None:
        said = last_lines(done.stderr, 1) or f"it printed nothing and ended with status {done.exit_status}"
        hint = "run `hetero-tui bootstrap` again"
        if tried := one_line((done.stdout.last("trying ") or "").removeprefix("trying "), 20):
            ended = f"by signal {-done.exit_status}" if done.exit_status < 0 else f"with status {done.exit_status}"
            said = f"its Python ended {ended} at the first operation on {tried}: {said}"
            hint = f"leave {tried} out with `devices:` of this host, or mend its driver; then bootstrap again"
        raise CommandFailed(transport.host, said, step=STEP, hint=mend_for(said, hint), output=last_lines(done.stderr))
    try:
        return answers.value(Verification, HostText(line))
    except ProtocolError as error:
        raise agent.refused(transport.host, error, STEP) from None
