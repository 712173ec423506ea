"""Adds notes about a failed run to the exception that a script's user sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.errors import TrainingError


def annotate(error: TrainingError, events: Path) -> TrainingError:
    """Remove the engine's frames from ``error``, and add notes: the user's last lines, the step, and how to resume."""
    for note in _notes(error, events):
        error.add_note(note)
    return error.with_traceback(None)


def _notes(error: TrainingError, events: Path) -> Iterator[str]:
    if error.detail:
        yield "\n".join(f"  {line}" for line in error.detail.splitlines())
    if error.step:
        yield f"It happened in step {error.step:,}."
    folder = events.parent
    try:
        kept = checkpoint.find(folder)
    except TrainingError:
        pass  # none was saved yet
    else:
        yield f"The newest checkpoint is that of step {kept.step:,}: train(resume={str(folder)!r}) goes on from there."
    yield f"All that happened in the run is in {events}."
