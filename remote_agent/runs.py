"""Which runs lie in a cluster's folder, and how each one stands: ``python -m remote_agent.runs --folder FOLDER``.

Read from the runs' own files (``runs/<id>/run.json`` and ``events.jsonl``), so it needs no running coordinator.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from remote_agent import protocol
from remote_agent.processes import absolute_path, find_named

TAIL_BYTES = 1 << 20
"""How much of the end of ``events.jsonl`` is read at first; a step with 50 workers is under 16 KiB."""


def list_runs(folder: Path) -> protocol.RunList:
    """All runs under ``folder``, oldest first; a folder without a readable ``run.json`` is not a run."""
    found: list[tuple[float, protocol.RunSummary]] = []
    for path in (folder / "runs").glob("*/run.json"):
        try:
            spec = protocol.decode(protocol.RunSpec, path.read_text(encoding="utf-8"))
            created = path.stat().st_mtime
        except (OSError, ValueError):
            continue
        found.append((created, summarize(folder, spec, path.parent / "events.jsonl")))
    return protocol.RunList(runs=tuple(summary for _, summary in sorted(found, key=lambda entry: entry[0])))


def summarize(folder: Path, spec: protocol.RunSpec, events: Path) -> protocol.RunSummary:
    """How one run stands, from the first and the last lines of its events."""
    first, last = _first_and_last(events)
    step, loss = 0, None
    final: protocol.Event | None = None
    for event in last:
        if isinstance(event, protocol.Step):
            step, loss = event.step, event.loss
        elif event.kind in protocol.FINAL_KINDS:
            final = event
    alive = find_named(folder, protocol.run_process_name(spec.run)) is not None
    match final:
        case protocol.RunFinished():
            state, step, loss = "stopped" if final.stopped else "finished", final.steps, final.final_loss
        case protocol.RunFailed():
            state, step = "failed", max(step, final.step)
        case _ if not alive:
            state = "lost"
        case _:
            state = "running" if first is not None else "starting"
    started = None if first is None else first.time
    return protocol.RunSummary(id=spec.run, job=spec.job, state=state, step=step, loss=loss, started=started)


def _first_and_last(path: Path) -> tuple[protocol.Event | None, list[protocol.Event]]:
    try:
        with path.open("rb") as file:
            first = _event(file.readline())
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None, []
    complete = lines[1 if size > TAIL_BYTES else 0 : -1]  # neither a cut first line nor a line still being written
    return first, [event for line in complete if (event := _event(line)) is not None]


def _event(line: bytes) -> protocol.Event | None:
    try:
        return protocol.decode_event(line.decode("utf-8", "replace"))
    except protocol.ProtocolError:
        return None


def main() -> int:
    """Print the RunList."""
    parser = argparse.ArgumentParser(prog="remote_agent.runs")
    parser.add_argument("--folder", required=True)
    print(protocol.encode(list_runs(absolute_path(parser.parse_args().folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
