"""Reads the growing ``events.jsonl`` of a sweep's trial."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from remote_agent import protocol, tail
from remote_agent.protocol import RunFailed, RunFinished, RunStarted
from remote_agent.search import recent


@dataclass
class TrialEvents:
    """A trial's steps, losses and figures, and how it ended, by what :meth:`read` found in the file at ``path``."""

    path: Path
    steps: int = 0
    iterations: int = 0
    losses: list[float | None] = field(default_factory=list)
    figures: dict[str, float | None] = field(default_factory=dict)  # the newest of the validation
    evaluated: int = 0  # the step of these
    failed: RunFailed | None = None
    finished: RunFinished | None = None
    _offset: int = 0

    def read(self) -> None:
        whole = tail.new_lines(self.path, self._offset)
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(protocol.decode_event(line.decode("utf-8", "replace")))

    def _take(self, event: protocol.Event | None) -> None:
        match event:
            case RunStarted():
                self.iterations = event.iterations
            case protocol.Step():
                del self.losses[event.step - 1 :]
                self.losses.append(event.loss)
                self.steps = event.step
            case protocol.RunResumed():
                del self.losses[event.step :]
                self.steps = event.step
            case protocol.Evaluated():
                self.figures, self.evaluated = dict(event.metrics), event.step
            case RunFailed():
                self.failed = event
            case RunFinished():
                self.finished = event
                if event.evaluation:
                    self.figures, self.evaluated = {**self.figures, **event.evaluation}, event.steps

    def figure(self, metric: str) -> tuple[int, float | None]:
        """(step, figure) of the newest one."""
        if metric == "loss":
            return self.steps, recent(self.losses)
        return (self.evaluated, self.figures[metric]) if metric in self.figures else (0, None)
