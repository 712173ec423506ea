"""Lists the runs in a cluster's folder with their states: ``python -m remote_agent.runs --folder FOLDER``.

With ``--reopen RUN`` one of them is made ready to go on from its newest checkpoint: its last event is taken back, and
its ``run.json`` gets the hosts and addresses of the specification in the first line on stdin; its coordinator can then
be started again. Events in the lines after that, which only the laptop has, are added where they go on from those here.
Exit status :data:`~remote_agent.protocol.RUN_NOT_RESUMABLE` and a sentence on stderr: it can't go on.

With ``--end RUN`` a run that was lost counts as stopped, and no laptop lets it go on unasked.

With ``--tell RUN`` the command on stdin (:class:`~remote_agent.protocol.RunCommand`) is handed to its coordinator.

Read from the runs' own files (``runs/<id>/run.json`` and ``events.jsonl``), so it needs no running coordinator.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from remote_agent import plain_file, protocol, reopening, tail
from remote_agent.host.processes import absolute_path, find_named
from remote_agent.planning import step_times
from remote_agent.settings import GOALS
from remote_agent.states import ControlCommand, RunState

CURVE_POINTS = 24
"""Of a run's losses that are in its summary."""

MAX_LINES = 1000
"""Of the end of ``events.jsonl``, where no step is found: there are few events between two steps."""

ENDED_FILE = "ended"
"""In a run's folder: the number of its last event when a user ended it after it was lost. Later events undo that."""

MAX_LINE, MAX_SPEC = 1 << 20, 16 << 20
"""Bytes of an event that is read, and of a ``run.json``: a step with 50 workers is under 16 KiB."""


def list_runs(folder: Path) -> protocol.RunList:
    """All runs under ``folder``, oldest first; a folder without a readable ``run.json`` is not a run."""
    found: list[tuple[float, protocol.RunSummary]] = []
    for path in (folder / "runs").glob("*/run.json"):
        if not path.is_file() or path.stat().st_size > MAX_SPEC:  # a pipe would be waited for, a device has no end
            continue
        try:
            spec = protocol.decode(protocol.RunSpec, path.read_text(encoding="utf-8"))
            created = path.stat().st_mtime
        except (OSError, ValueError):
            continue
        found.append((created, summarize(folder, spec, path.parent / "events.jsonl")))
    return protocol.RunList(runs=tuple(summary for _, summary in sorted(found, key=lambda entry: entry[0])))


def summarize(folder: Path, spec: protocol.RunSpec, events: Path) -> protocol.RunSummary:
    """How one run stands, from the first and the last lines of its events."""
    first, last, steps = _first_and_last(events)
    step, loss, seq, predicted = 0, None, 0, None
    final: protocol.Event | None = None
    for event in last:
        seq, predicted = event.seq, step_times.predicted_s(predicted, event)
        if isinstance(event, protocol.Step):
            step, loss = event.step, event.loss
        elif isinstance(event, protocol.RunResumed):
            step, final = event.step, None
        elif event.kind in protocol.FINAL_KINDS:
            final = event
    alive = find_named(folder, protocol.run_process_name(spec.run)) is not None
    match final:
        case protocol.RunFinished():
            state = RunState.STOPPED if final.stopped else RunState.FINISHED
            step, loss = final.steps, final.final_loss
        case protocol.RunFailed():
            state = RunState.FAILED  # ``step`` stays that of the last step made, as everywhere
        case _ if not alive:
            state = RunState.STOPPED if _was_ended(events.parent, seq) else RunState.LOST
        case _:
            state = RunState.RUNNING if first is not None else RunState.STARTING
    started = None if first is None else first.time
    sampled = sampled_steps(events)
    return protocol.RunSummary(
        id=spec.run,
        job=spec.job,
        state=state,
        step=step,
        loss=loss,
        started=started,
        host=spec.host,
        epoch=spec.epoch,
        seq=seq,
        checkpoint=newest_checkpoint(events.parent),
        ended=last[-1].time if last and state.final else None,
        curve=tuple(event.loss for event in sampled if event.loss is not None),
        iterations=first.iterations if isinstance(first, protocol.RunStarted) else 0,
        parameters=first.parameters if isinstance(first, protocol.RunStarted) else 0,
        step_s=step_times.measured_s(steps),
        predicted_s=predicted,
        script=spec.script,
        away_s=spec.away_s,
    )


def sampled_steps(events: Path) -> tuple[protocol.Step, ...]:
    """Steps from :data:`CURVE_POINTS` places of the file, however long it is; fewer where a place has none."""
    found: dict[int, protocol.Step] = {}
    if not events.is_file():
        return ()
    try:
        size = events.stat().st_size
        with events.open("rb") as file:
            for index in range(CURVE_POINTS):
                file.seek(size * index // CURVE_POINTS)
                file.readline(MAX_LINE)  # the rest of the line that this place is in
                event = _event(file.readline(MAX_LINE))
                if isinstance(event, protocol.Step):
                    found[event.step] = event
    except OSError:
        return ()
    return tuple(event for _, event in sorted(found.items()))


def newest_checkpoint(place: Path) -> int | None:
    """The step of the newest whole checkpoint in a run's folder: one whose document is there; None: there is none."""
    documents = sorted((place / "checkpoints").glob("step-*.json"))
    return int(documents[-1].stem.removeprefix("step-")) if documents else None


def end(folder: Path, run: str) -> None:
    """Note that a user ended a run of which this machine has a folder, if it was lost; raises OSError."""
    place = folder / "runs" / run
    try:
        spec = protocol.decode(protocol.RunSpec, plain_file.read_text(place / "run.json"))
    except (OSError, ValueError):
        return
    summary = summarize(folder, spec, place / "events.jsonl")
    if summary.state is RunState.LOST:
        (place / ENDED_FILE).write_text(str(summary.seq), encoding="utf-8")


def _was_ended(place: Path, seq: int) -> bool:
    """Whether a user ended the lost run in this folder, whose last event has the number ``seq``."""
    try:
        return plain_file.read_text(place / ENDED_FILE) == str(seq)
    except (OSError, ValueError):
        return False


class NotResumable(Exception):
    """The run can't go on; the text says why."""


def reopen(folder: Path, run: str, now: protocol.RunSpec, seen: Iterable[str] = ()) -> None:
    """Make a run ready to go on from its newest checkpoint: with its own job and settings, on the cluster as it is now.

    Where this machine's folder is a copy of a lost head's, the events say first that the head was lost.

    Args:
        folder: the cluster's.
        now: the devices, the server's host and the addresses that it is to use; ``ended`` says why the head was left,
            ``awaited`` which hosts are away: the run keeps the devices that it had there. ``config``: settings that
            are others from here on.
        seen: lines of its events that a reader has seen, the oldest first; some may be here as well.

    Raises:
        NotResumable: it does not exist, still runs, is finished, or has no checkpoint.
    """
    place = folder / "runs" / run
    try:
        known = protocol.decode(protocol.RunSpec, plain_file.read_text(place / "run.json"))
        written = (place / "run.json").stat().st_mtime  # at its start, or when it was made ready the last time
    except (OSError, ValueError) as error:
        raise NotResumable(f"there is no run {run}") from error
    events = place / "events.jsonl"
    if not summarize(folder, known, events).state.final:
        raise NotResumable(f"{run} is running")
    try:
        reopening.add(events, seen)
    except (OSError, protocol.ProtocolError) as error:
        raise NotResumable(f"the events of {run} can't be completed: {error}") from error
    summary = summarize(folder, known, events)
    if summary.state is RunState.FINISHED and not set(GOALS) & set(now.config):
        raise NotResumable(f"{run} is finished")
    if summary.checkpoint is None:
        kind = "script" if known.search is None else "sweep"
        raise NotResumable(
            f"{run} is a {kind}, which has to be run again" if known.script else f"{run} has no checkpoint"
        )
    try:
        found = reopening.reopen(events)
        if known.host != now.host and not found.ended:
            reopening.say_head_lost(events, known.host, found.step, now.ended or "it was left")
    except (OSError, protocol.ProtocolError) as error:
        raise NotResumable(f"the events of {run} can't be continued: {error}") from error
    kept = {name: value for name, value in known.config.items() if not (name in GOALS and set(GOALS) & set(now.config))}
    spec = dataclasses.replace(
        known,
        host=now.host,
        ray_address=now.ray_address,
        node_address=now.node_address,
        devices=(*now.devices, *_away(known, now, place / protocol.CONTROL_FILE)),
        server_host=now.server_host,
        resume=str(place),
        config={**kept, **now.config},
        ended=found.ended or known.ended,
        epoch=now.epoch,
        commands=tail.size_of(place / protocol.CONTROL_FILE),
        away_s=known.away_s + max(0.0, time.time() - max(written, summary.ended or 0.0)),
    )
    draft = place / "run.json.part"
    draft.write_text(protocol.encode(spec) + "\n", encoding="utf-8")
    draft.replace(place / "run.json")


def _away(known: protocol.RunSpec, now: protocol.RunSpec, control: Path) -> tuple[protocol.DeviceSpec, ...]:
    """The devices of hosts that are away: the run had them, or was given them later, and they were not drained."""
    devices = list(known.devices)
    for command in _commands(control):
        if command.command is ControlCommand.DRAIN:
            devices = [spec for spec in devices if spec.host != command.host]
        else:
            devices = [spec for spec in devices if spec not in command.devices] + list(command.devices)
    here = {spec.host for spec in now.devices}
    return tuple(spec for spec in devices if spec.host in now.awaited and spec.host not in here)


def _commands(control: Path) -> Iterator[protocol.RunCommand]:
    """What the user has wanted of a run, in its order."""
    for line in control.read_text(encoding="utf-8", errors="replace").splitlines() if control.is_file() else ():
        with suppress(protocol.ProtocolError):
            yield protocol.decode(protocol.RunCommand, line)


class NotRunning(Exception):
    """The run is not under way, so it takes no commands; the text says how it stands."""


def tell(folder: Path, run: str, command: protocol.RunCommand) -> protocol.Told:
    """Hand a command to the coordinator of a run, which takes it up between two steps.

    Args:
        folder: the cluster's.

    Returns:
        What that comes to.

    Raises:
        NotRunning: it does not exist, or it is over.
        OSError: it can't be written.
    """
    if find_named(folder, protocol.run_process_name(run)) is None:
        raise NotRunning(f"{run} is not under way on this machine")
    place = folder / "runs" / run
    control = place / protocol.CONTROL_FILE
    left = _drained(control)
    with control.open("a", encoding="utf-8") as file:
        file.write(protocol.encode(command) + "\n")
    _, last, _ = _first_and_last(place / "events.jsonl")
    training = {worker.host for event in last if isinstance(event, protocol.Step) for worker in event.workers}
    if command.command is not ControlCommand.DRAIN:
        added = {spec.host for spec in command.devices}
        return protocol.Told(is_in=bool(added) and added <= training - left)
    again = command.host in left
    if not training:
        return protocol.Told(again=again)
    return protocol.Told(stays=training <= _drained(control), again=again, is_out=command.host not in training)


def _drained(control: Path) -> set[str]:
    """The hosts that were told to leave, and not to come back."""
    hosts: set[str] = set()
    for command in _commands(control):
        if command.command is ControlCommand.DRAIN:
            hosts.add(command.host)
        else:
            hosts -= {spec.host for spec in command.devices}
    return hosts


def _first_and_last(
    path: Path,
) -> tuple[protocol.Event | None, list[protocol.Event], list[protocol.Step]]:
    """The first event, those from the last step on, and the last steps; no others are decoded.

    This is done for every run there is.
    """
    last: list[protocol.Event] = []
    steps: list[protocol.Step] = []
    if not path.is_file():
        return None, [], []
    found, resumed = False, False
    try:
        with path.open("rb") as file:
            first = _event(file.readline(MAX_LINE))
            for _, line in islice(tail.lines_from_end(file, MAX_LINE), MAX_LINES):
                event = _event(line)
                if event is not None and not found:
                    last.append(event)
                resumed = resumed or isinstance(event, protocol.RunResumed)
                if isinstance(event, protocol.Step):
                    found = True
                    steps += [] if resumed else [event]  # earlier ones may be made again, by other workers
                if found and (resumed or len(steps) == step_times.MEASURED_STEPS):
                    break
    except OSError:
        return None, [], []
    return first, last[::-1], steps[::-1]


def _event(line: bytes) -> protocol.Event | None:
    try:
        return protocol.decode_event(line.decode("utf-8", "replace"))
    except protocol.ProtocolError:
        return None


def main() -> int:
    """Print the RunList, reopen a run, or tell it something."""
    parser = argparse.ArgumentParser(prog="remote_agent.runs")
    parser.add_argument("--folder", required=True, type=absolute_path)
    parser.add_argument("--reopen", metavar="RUN")
    parser.add_argument("--tell", metavar="RUN")
    parser.add_argument("--end", metavar="RUN")
    options = parser.parse_args()
    if options.end is not None:
        try:
            end(options.folder, options.end)
        except OSError as error:
            print(f"{error.strerror}: {error.filename or options.folder}", file=sys.stderr)
            return 1
        return 0
    if options.tell is not None:
        try:
            told = tell(options.folder, options.tell, protocol.decode(protocol.RunCommand, sys.stdin.readline()))
        except (NotRunning, OSError) as error:
            print(error, file=sys.stderr)
            return 1
        print(protocol.encode(told))
        return 0
    if options.reopen is None:
        print(protocol.encode(list_runs(options.folder)))
        return 0
    try:
        now = protocol.decode(protocol.RunSpec, sys.stdin.readline())
        reopen(options.folder, options.reopen, now, sys.stdin)
    except NotResumable as error:
        print(error, file=sys.stderr)
        return protocol.RUN_NOT_RESUMABLE
    except OSError as error:  # a disk that is full or read-only
        print(f"{error.strerror}: {error.filename or options.folder}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
