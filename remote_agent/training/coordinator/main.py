"""The coordinator's process, a Ray driver on the head: ``python -m remote_agent.coordinate RUN_DIR`` starts it.

It reads ``run.json`` (:class:`~remote_agent.protocol.RunSpec`) from the run's folder and writes ``events.jsonl``,
``slices.jsonl`` and ``checkpoints/`` there. With ``resume`` in ``run.json``, the run continues from a checkpoint.
SIGTERM or SIGINT ends the run after the current step, with a checkpoint. Exit code 0: the run finished or was stopped;
1: it failed, and ``run_failed`` says why; 2: called wrongly. Ray's token comes from the environment.

A child of this process does the work (``overseer``). If it is killed or stopped, the next child takes over workers and
servers (``takeover.takeover``), or starts over from the newest checkpoint: before the first step, and with strategies
whose workers end with their coordinator.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from remote_agent.protocol import CoordinatorLost, ProtocolError, RunFinished, RunSpec, decode
from remote_agent.training.coordinator.overseer import SIGNALS, Overseer, leave, stop_on_signals

if TYPE_CHECKING:
    from remote_agent.training.coordinator.journal import Journal

COORDINATOR = "coordinator"
"""Name of the page with the coordinator's current call; see :mod:`remote_agent.current_call`."""

RUN_FILE, EVENTS_FILE = "run.json", "events.jsonl"


def main(arguments: list[str]) -> int:
    """Carry out the run in the folder that the only argument names; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m remote_agent.training.coordinator.main RUN_DIR", file=sys.stderr)
        return 2
    folder = Path(arguments[0]).resolve()
    # Set this first, so that a run that is stopped while torch loads ends too.
    overseer = Overseer(coordinate, folder, _Progress(folder), lambda: _report_lost(folder))
    from remote_agent.training.coordinator import (
        engine,  # noqa: F401 - each child has what is loaded now
        history,  # noqa: F401
    )
    from remote_agent.training.shared import without_compiler

    without_compiler.install()
    code = overseer.oversee()
    if code:
        _blame(folder)
    return code


def _blame(folder: Path) -> None:
    """Write that the run failed because the user's own code ended the coordinator's process."""
    from remote_agent.current_call import last_call
    from remote_agent.training.coordinator import engine
    from remote_agent.training.coordinator.processes.crashes import of_coordinator

    words = last_call(folder, COORDINATOR)
    error = of_coordinator(words) if words is not None else None
    if error is None:
        return
    print(f"the run failed: {error}", file=sys.stderr)
    _write(folder, lambda journal, host: engine.fail(journal, error, host, journal.step))


def _report_lost(folder: Path) -> None:
    """Write that the coordinator was lost: until the next one goes on, nothing else says so."""

    def write(journal: Journal, host: str) -> None:
        if journal.continued:  # otherwise the run has not begun
            journal.write(CoordinatorLost, host=host, step=journal.step)

    _write(folder, write)


def _write(folder: Path, write: Callable[[Journal, str], object]) -> None:
    """Call ``write`` with the run's events and host; events that can't be written keep nothing from going on."""
    from remote_agent.training.coordinator.journal import Journal
    from remote_agent.training.errors import TrainingError

    with contextlib.suppress(TrainingError, OSError, ProtocolError):
        spec = decode(RunSpec, (folder / RUN_FILE).read_text())
        with contextlib.closing(Journal(folder / EVENTS_FILE)) as journal:
            write(journal, spec.host)


MAX_WITHOUT_PROGRESS = 2
"""Number of coordinators in a row that may be killed without recording a step; then no other one follows."""


class _Progress:
    """Decides whether another coordinator may follow: not if several in a row made no progress.

    A single one may have been killed just after it took over.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._size, self._without = folder, 0, 0

    def __call__(self) -> bool:
        from remote_agent.tail import size_of
        from remote_agent.training.data import record

        size = size_of(self._folder / record.FILE)
        self._without = 0 if size > self._size else self._without + 1
        self._size = size
        return self._without < MAX_WITHOUT_PROGRESS


def coordinate(folder: Path, stop: threading.Event) -> int:
    """Carry out the run in ``folder``; returns the exit code."""
    from remote_agent.training.errors import TrainingError

    try:
        return attempt(folder, stop)
    except TrainingError as error:
        print(f"the run failed: {error}", file=sys.stderr)
        return 1


def attempt(folder: Path, stop: threading.Event, *, sweep: Path | None = None) -> int:
    """As :func:`coordinate`, and also for a trial of a ``sweep``, whose folder has the job's files.

    A trial has no copies of checkpoints and writes no logs on other hosts, and its workers end with its process.

    Raises:
        TrainingError: the run failed, and its events say so.
    """
    from remote_agent.current_call import HERE
    from remote_agent.strategies import spec_of
    from remote_agent.training import job
    from remote_agent.training.coordinator import cluster, engine
    from remote_agent.training.coordinator.history import History
    from remote_agent.training.coordinator.journal import Journal
    from remote_agent.training.coordinator.request import Request
    from remote_agent.training.errors import JobError, TrainingError
    from remote_agent.training.shared.output import OUTPUT

    journal = Journal(folder / EVENTS_FILE)
    host = ""
    HERE.open(folder, COORDINATOR)
    OUTPUT.install(folder / f"{COORDINATOR}.log")
    try:
        try:
            spec = decode(RunSpec, (folder / RUN_FILE).read_text())
        except (OSError, ProtocolError) as error:
            raise JobError(f"can't read {RUN_FILE}: {error}", hint="start the run again") from error
        host = spec.host
        journal.ended = journal.ended or spec.ended
        loaded = job.load(spec.job, sweep or folder)
        config = job.configured(loaded, spec.config)
        job.check(loaded, config)
        # Connecting installs Ray's own handlers, so signals are blocked until ours are back.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            cluster.connect(spec.ray_address, spec.node_address)
        finally:
            stop_on_signals(stop)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    except TrainingError as error:
        engine.fail(journal, error, host, 0)
        raise
    if stop.is_set() and not journal.continued:
        _end_unbegun(journal)
        cluster.disconnect()
        return 0
    request = Request.of(
        spec,
        loaded,
        config,
        folder,
        resume=Path(spec.resume) if spec.resume else None,
        follows=journal.continued and sweep is None,
        logs=sweep is None,
        commands=spec.commands,
        swept=_swept(sweep) if sweep is not None else (),
        lasting=spec_of(config.strategy).servers and not config.overlap and sweep is None,
    )
    try:
        copies = History(spec.run, folder, spec.host, config.keep_checkpoints, journal)
        with contextlib.nullcontext() if sweep is not None else copies:
            engine.run(request, journal, stop.is_set)
    except TrainingError:
        raise
    except Exception as error:
        # No error of the user or of a machine should arrive here; the run has to end with its event all the same.
        lines = "".join(traceback.format_exception(error)).splitlines()
        unexpected = TrainingError(
            f"the engine failed: {type(error).__name__}: {error}",
            hint="please report this with the detail of this event",
            detail="\n".join(lines[-job.DETAIL_LINES :]),
        )
        engine.fail(journal, unexpected, spec.host, 0)
        raise unexpected from error
    finally:
        journal.close()
        cluster.disconnect()
    return 0


def _swept(sweep: Path) -> tuple[str, ...]:
    """The settings in which the trials of the sweep in this folder differ."""
    search = decode(RunSpec, (sweep / RUN_FILE).read_text()).search
    return tuple(parameter.name for parameter in search.parameters) if search is not None else ()


def _end_unbegun(journal: Journal) -> None:
    """Write the last event of a run that was stopped before its setup."""
    fields = {"steps": 0, "samples": 0, "final_loss": None, "samples_per_second": 0.0, "checkpoint": ""}
    journal.write(RunFinished, **fields, stopped=True, reason="it was stopped before its first step")
    journal.close()


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
