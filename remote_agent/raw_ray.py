"""Ray itself, for a user who wants more than to train: a script of theirs on the cluster, and Ray's own command line.

::

    python -m remote_agent.raw_ray script RUN_DIR                          as the process of the run
    python -m remote_agent.raw_ray command --folder FOLDER -- ARGUMENT...  becomes ``ray ARGUMENT...``

A script is a run without steps: ``run.json`` with ``script`` set, the files of ``job.zip`` in ``code/``, an
``events.jsonl`` of two events, and its output in ``script.log``. SIGTERM ends it early. Both get the cluster's address
and token by their environment; a script also :data:`DEVICES`, and Ray is told to give its files to the workers of
all hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from remote_agent import deadlines, protocol
from remote_agent.host import layout, ray_command
from remote_agent.host.processes import absolute_path
from remote_agent.protocol import Event, RunFailed, RunFinished, RunSpec, RunStarted, decode, encode

DEVICES = "HETERO_TUI_DEVICES"
"""Environment variable of a script: a JSON list of what the fleet can train on, each entry with ``host``, ``device``,
``name`` and the ``label_selector`` that places an actor or a task on its host."""

OUTPUT = f"{protocol.SCRIPT}.log"
DETAIL_LINES = 12
"""Of the end of a failed script's output that go into its last event."""


class NoCluster(Exception):
    """This machine has no node of a cluster that runs; the text says so."""


def environment(folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Ray finds the cluster of ``folder``; raises NoCluster if no node is up here."""
    spec = layout.read_spec(folder)
    if spec is None or not layout.token_path(folder).exists():
        raise NoCluster("the cluster is not up on this machine")
    address = protocol.join_address(spec.head_address, spec.gcs_port)
    own = {"RAY_ADDRESS": address, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
    secrets = layout.token_path(folder), layout.tls_path(folder)
    return ray_command.environment(base, *secrets, encrypted=spec.encrypted) | own


def scripts_environment(spec: RunSpec, place: Path, base: Mapping[str, str]) -> dict[str, str]:
    """As :func:`environment`, with the devices, and an order to Ray to send a script's folder to workers."""
    devices = [
        {
            "host": entry.host,
            "device": entry.device,
            "name": entry.name,
            "label_selector": {protocol.HOST_LABEL: entry.host},
        }
        for entry in spec.devices
    ]
    # Ray's own way to give a driver a working directory from outside, as its job server does.
    job = {"runtime_env": {"working_dir": str(place / protocol.JOB_CODE)}}
    return environment(place.parents[1], base) | {
        DEVICES: json.dumps(devices),
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job),
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",  # a script may name packages or variables of its own in ray.init
    }


class _Child:
    """The script's process and those that it starts, which SIGTERM and SIGINT of this one end, also before."""

    def __init__(self) -> None:
        self.stopped = False
        self._kill_at = math.inf
        self._process: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def run(self, words: Sequence[str], place: Path, variables: Mapping[str, str], output: Path) -> int:
        """Start it and wait for its end; its exit status."""
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                words, cwd=place, env=variables, stdout=file, stderr=file, start_new_session=True
            )
        if self.stopped:  # meanwhile
            self._signal(signal.SIGTERM)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(deadlines.WATCH_SECONDS)
                break
            if time.monotonic() > self._kill_at:
                self._signal(signal.SIGKILL)
        while self.stopped and time.monotonic() < self._kill_at + deadlines.KILL_SECONDS:
            if not self._signal(0 if time.monotonic() < self._kill_at else signal.SIGKILL):
                break
            time.sleep(deadlines.POLL_SECONDS)
        return code

    def _stop(self, *_: int | FrameType | None) -> None:
        if not self.stopped:
            self.stopped, self._kill_at = True, time.monotonic() + deadlines.STOP_SECONDS
        if self._process is not None:
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> bool:
        """Send it to the script's whole group; whether there is one."""
        assert self._process is not None, "it was started"
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS refuses it where all have ended
            return False
        return True


def run_script(place: Path) -> int:
    """Carry out the script of a run's folder; returns the exit code."""
    spec = decode(RunSpec, (place / "run.json").read_text(encoding="utf-8"))
    journal, child = place / "events.jsonl", _Child()
    about: dict[str, Any] = {"run": spec.run, "job": spec.job, "host": spec.host}
    append_event(journal, RunStarted(seq=1, time=time.time(), **about, iterations=0, batch_size=0, parameters=0))
    code = 1
    try:
        with zipfile.ZipFile(place / protocol.JOB_ARCHIVE) as files:
            files.extractall(place)  # the user's own files, as their laptop packed them
        variables = scripts_environment(spec, place, os.environ)
        words = [sys.executable, spec.job, *spec.arguments]
        code = 0 if child.stopped else child.run(words, place / protocol.JOB_CODE, variables, place / OUTPUT)
        cause = f"{spec.job} ended with exit status {code}" if code >= 0 else f"signal {-code} ended {spec.job}"
    except (OSError, zipfile.BadZipFile, NoCluster) as error:
        cause = f"{spec.job} could not be started: {error}"
    if child.stopped or code == 0:
        figures: dict[str, Any] = {"steps": 0, "samples": 0, "final_loss": None, "samples_per_second": 0.0}
        append_event(journal, RunFinished(seq=2, time=time.time(), **figures, checkpoint="", stopped=child.stopped))
        return 0
    detail = _last_lines(place / OUTPUT)
    hint = f"`hetero-tui logs {spec.run}` has all of its output"
    failed = RunFailed(seq=2, time=time.time(), step=0, host=spec.host, cause=cause, hint=hint, detail=detail)
    append_event(journal, failed)
    return 1


def _last_lines(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return "".join(deque(file, DETAIL_LINES)).rstrip()
    except OSError:
        return ""


def append_event(path: Path, event: Event) -> None:
    """Write one event into a run's ``events.jsonl``."""
    with path.open("a", encoding="utf-8") as file:
        file.write(encode(event) + "\n")


def become_ray(folder: Path, words: Sequence[str]) -> NoReturn:
    """Become Ray's command line; raises NoCluster where no node is up on this machine."""
    variables = environment(folder, os.environ)
    os.execve(sys.executable, [sys.executable, "-m", "ray.scripts.scripts", *words], variables)  # noqa: S606 - meant


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m remote_agent.raw_ray")
    commands = parser.add_subparsers(dest="command", required=True)
    script = commands.add_parser("script")
    script.add_argument("place", type=absolute_path)
    command = commands.add_parser("command")
    command.add_argument("--folder", required=True, type=absolute_path)
    command.add_argument("argv", nargs="*")
    options = parser.parse_args(arguments)
    if options.command == "script":
        return run_script(options.place)
    try:
        become_ray(options.folder, options.argv)
    except NoCluster as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
