"""Tests whether a host's Python can train: imports, versions, and a matrix product on each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hetero_tui import answers, deadlines
from hetero_tui.errors import CommandFailed
from hetero_tui.fleet import agent
from hetero_tui.text import HostText, last_lines
from hetero_tui.transport import Transport
from remote_agent.protocol import ProtocolError

STEP = "verify"


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

    def problems(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """A sentence for each problem; ``wanted`` are the devices that should work."""
        failed = [f"{trial.device}: {trial.error}" for trial in self.devices if trial.error]
        tried = {trial.device for trial in self.devices}
        absent = [device for device in wanted if device not in tried] if self.devices else []
        build = self.versions.get("torch", "")
        missing = [f"torch {build} does not find {', '.join(absent)}"] if absent else []
        return (*(f"can't import {error}" for error in self.errors), *failed, *missing)


async def verify(transport: Transport, pythons: Sequence[str], *, leaves_no_trace: bool = False) -> Verification:
    """Run the test with the first existing one of ``pythons``.

    Python writes compiled files, so that the next start is fast; with ``leaves_no_trace`` it writes nothing.

    Raises:
        HostError: the test did not end, or its answer is invalid.
    """
    command = agent.with_python(agent.inline("host/verify.py", *(["no-trace"] if leaves_no_trace else [])), pythons)
    done = await transport.run(command, step=STEP, deadline=deadlines.VERIFY)
    line = done.stdout.last('{"verified"')
    if line is None:
        said = last_lines(done.stderr, 1) or f"it printed nothing and ended with status {done.exit_status}"
        hint = "run `hetero-tui bootstrap` again"
        raise CommandFailed(transport.host, said, step=STEP, hint=hint, output=last_lines(done.stderr))
    try:
        return answers.value(Verification, HostText(line))
    except ProtocolError as error:
        raise agent.refused(transport.host, error, STEP) from None
