"""The product as a user of the lab's laptop meets it: its command line, and nothing else of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remote_agent import protocol
from tests.lab.machines import PROGRAM_DEADLINE, Laptop

COMMAND = str(Path(sys.executable).with_name("hetero-tui"))


def setting(chosen: Mapping[str, object]) -> list[str]:
    """The words of a command line that set fields of a run's configuration."""
    return [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]


class HeteroTui:
    """``hetero-tui --inventory FILE`` on the laptop."""

    def __init__(self, laptop: Laptop, inventory: Path, **environment: str) -> None:
        self.laptop = laptop
        self.inventory = inventory
        self._environment = environment

    def run(self, *arguments: str, deadline: float = PROGRAM_DEADLINE) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; the exit code is not checked, a traceback is never accepted."""
        done = self.laptop.run(self.command(*arguments), deadline=deadline, **self._environment)
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start one command, with further variables in its environment; its standard output is a pipe of text."""
        return self.laptop.popen(self.command(*arguments), **environment)

    def document(self, *arguments: str, exit_code: int = 0, deadline: float = PROGRAM_DEADLINE) -> dict[str, Any]:
        """Run a command with ``--json``: the one document that it prints, after checking its exit code."""
        done = self.run(*arguments, "--json", deadline=deadline)
        assert done.returncode == exit_code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document

    def events(self, *arguments: str, deadline: float = PROGRAM_DEADLINE) -> list[protocol.Event]:
        """Run ``train`` or ``attach`` with ``--json`` to a good end: its events."""
        done = self.run(*arguments, "--json", deadline=deadline)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr}"
        return [event(line) for line in done.stdout.splitlines()]

    def command(self, *arguments: str) -> list[str]:
        """The words of one command; without arguments, the app."""
        return [COMMAND, "--inventory", str(self.inventory), *arguments]


def event(line: str) -> protocol.Event:
    """One line of ``train --json`` as the event that it is."""
    found = protocol.decode_event(line)
    assert found is not None, line
    return found


def steps(events: list[protocol.Event]) -> list[protocol.Step]:
    """The steps among the events, in order."""
    return [one for one in events if isinstance(one, protocol.Step)]


def only(events: list[protocol.Event], kind: type[protocol.T]) -> protocol.T:
    """The one event of that kind."""
    (found,) = [one for one in events if isinstance(one, kind)]
    return found
