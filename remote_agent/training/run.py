"""The coordinator: ``python -m remote_agent.training.run RUN_DIR``, a Ray driver on the head host.

Reads ``run.json`` (:class:`~remote_agent.protocol.RunSpec`) from the run's folder and writes ``events.jsonl``,
``slices.jsonl`` and ``checkpoints/`` there; with ``resume`` in it, the run goes on from a checkpoint. SIGTERM (or
SIGINT) ends the run early: the step is finished and a checkpoint saved. Exit code 0: the run finished or was stopped;
1: it failed, and ``run_failed`` says why; 2: called wrongly. Ray's token comes from the environment.

What coordinates is a child of this process (``overseer``). If it is killed, the next one takes over workers and servers
(``faults.succession``).
"""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path

from remote_agent.protocol import ProtocolError, RunSpec, decode
from remote_agent.training.overseer import Overseer, stop_on_signals

RUN_FILE, EVENTS_FILE = "run.json", "events.jsonl"


def main(arguments: list[str]) -> int:
    """Carry out the run in the folder named by the one argument; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m remote_agent.training.run RUN_DIR", file=sys.stderr)
        return 2
    folder = Path(arguments[0]).resolve()
    # From the first moment: a run that is stopped while torch loads must end, too.
    overseer = Overseer(coordinate, folder, _Progress(folder))
    from remote_agent.training import engine  # noqa: F401 - each child has what is loaded now
    from remote_agent.training.saving import history  # noqa: F401

    return overseer.oversee()


class _Progress:
    """Whether a run has come further since it was asked before: else the next coordinator would fare no better."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._size = folder, -1

    def __call__(self) -> bool:
        from remote_agent.training.data import record
        from remote_agent.training.faults import estate

        try:
            size = (self._folder / record.FILE).stat().st_size
        except OSError:
            return False
        further, self._size = size > self._size, size
        return further and (self._folder / estate.FILE).exists()


def coordinate(folder: Path, stop: threading.Event) -> int:
    """Carry out the run in ``folder``; returns the exit code."""
    from remote_agent.training.errors import TrainingError

    try:
        return _coordinate(folder, stop)
    except TrainingError as error:
        print(f"the run failed: {error}", file=sys.stderr)
        return 1


def _coordinate(folder: Path, stop: threading.Event) -> int:
    from remote_agent.training import actors, cluster, engine, job
    from remote_agent.training.config import WHOLE_STRATEGIES, TrainingConfig
    from remote_agent.training.errors import JobError, TrainingError
    from remote_agent.training.journal import Journal
    from remote_agent.training.saving.history import History

    journal = Journal(folder / EVENTS_FILE)
    host = ""
    try:
        try:
            spec = decode(RunSpec, (folder / RUN_FILE).read_text())
        except (OSError, ProtocolError) as error:
            raise JobError(f"can't read {RUN_FILE}: {error}", hint="start the run again") from error
        host = spec.host
        journal.ended = journal.ended or spec.ended
        loaded = job.load(spec.job, folder)
        config = TrainingConfig.from_settings(spec.config, loaded.config)
        cluster.connect(spec.ray_address, spec.node_address)
    except TrainingError as error:
        engine.fail(journal, error, host, 0)
        raise
    stop_on_signals(stop)  # connecting to Ray put its own handler in place
    request = actors.Request(
        run=spec.run,
        job=loaded,
        config=config,
        devices=spec.devices,
        server_host=spec.server_host,
        host=spec.host,
        folder=folder,
        resume=Path(spec.resume) if spec.resume else None,
        lasting=config.strategy in WHOLE_STRATEGIES and not config.overlap,
    )
    try:
        with History(spec.run, folder, spec.host, config.keep_checkpoints, journal):
            engine.run(request, journal, stop.is_set)
    except TrainingError:
        raise
    except Exception as error:
        # Nothing of the user's or the machines' making ends here; even so the run must end with its event.
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
