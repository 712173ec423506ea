"""A run's figures, as its events tell them: a row a step, a row an evaluation, and what happened. Pure.

A run that went on from a checkpoint made some steps twice; each is here once, as it was made last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hetero_tui import events
from hetero_tui.events import Level
from hetero_tui.fold import apply
from hetero_tui.state import State, initial
from remote_agent import protocol
from remote_agent.states import RunState

PARTS = ("compute", "push", "pull", "wait")
"""Of a worker's step, in the order in which they are drawn."""


@dataclass(frozen=True, kw_only=True)
class Happened:
    """Something besides steps: when, after which step, and in a sentence; ``fault`` is its number as one, or 0."""

    time: float
    step: int
    text: str
    level: Level
    fault: int = 0


@dataclass(kw_only=True)
class WorkerFigures:
    """What one worker did: seconds of each of :data:`PARTS`, over ``steps`` steps."""

    worker: str
    name: str = ""
    samples: int = 0
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))


@dataclass(kw_only=True)
class Figures:
    """All of one run.

    Attributes:
        state: where it stands, in a word.
        started: its first event; None: there is none yet.
        resumed: when it went on last after it had ended.
        plan: as it was made last.
        steps, evaluations: in their order, each step once.
        workers: by name, in the order in which they came.
        last: its newest event.
        seconds: from its start to that, without the time in which it was stopped; None: it has not started.
    """

    run: str
    state: str = ""
    started: protocol.RunStarted | None = None
    resumed: protocol.RunResumed | None = None
    plan: protocol.PlanMade | None = None
    steps: list[protocol.Step] = field(default_factory=list)
    evaluations: list[protocol.Evaluated] = field(default_factory=list)
    workers: dict[str, WorkerFigures] = field(default_factory=dict)
    happened: list[Happened] = field(default_factory=list)
    last: protocol.Event | None = None
    seconds: float | None = None

    @property
    def finished(self) -> protocol.RunFinished | None:
        """Its last word, where it ended well."""
        return self.last if isinstance(self.last, protocol.RunFinished) else None

    @property
    def failed(self) -> protocol.RunFailed | None:
        """Its last word, where it ended badly."""
        return self.last if isinstance(self.last, protocol.RunFailed) else None

    @property
    def settings(self) -> dict[str, Any]:
        """Those that the run was started with, or resumed with last."""
        begun = [each.config for each in (self.started, self.resumed) if each is not None and each.config]
        return dict(begun[-1]) if begun else {}


def figures_of(run: str, happened: Iterable[protocol.Event], standing: str = "") -> Figures:
    """The figures of a run from all of its events, in their order; ``standing`` is the word for where it stands."""
    found = Figures(run=run, state=standing)
    state = initial("", ())
    state = apply(state, events.RunChanged(time=0.0, run=run, job="", state=RunState.RUNNING))
    for event in happened:
        found.last = event
        state = _told(found, state, event)
        match event:
            case protocol.RunStarted():
                found.started = found.started or event
            case protocol.PlanMade():
                found.plan = event
            case protocol.WorkerJoined():
                _worker(found, event.worker).name = event.name or event.device
            case protocol.RunResumed():
                found.resumed = event if not event.went_back else found.resumed
                while found.steps and found.steps[-1].step > event.step:
                    _uncount(found, found.steps.pop())
                while found.evaluations and found.evaluations[-1].step > event.step:
                    found.evaluations.pop()
            case protocol.Step():
                found.steps.append(event)
                _count(found, event, 1)
            case protocol.Evaluated():
                found.evaluations.append(event)
    found.seconds = state.run.seconds if state.run is not None and found.started is not None else None
    return found


def _told(found: Figures, state: State, event: protocol.Event) -> State:
    """Add the sentence that the app has for an event."""
    after = apply(state, events.RunProgressed(run=found.run, event=event))
    if after.log is not state.log and after.log:
        line = after.log[-1]
        step = after.run.step if after.run is not None else 0
        found.happened.append(
            Happened(
                time=event.time,
                step=step,
                text=line.text,
                level=line.level,
                fault=_newest_fault(after) if _newest_fault(after) > _newest_fault(state) else 0,
            )
        )
    return after


def _newest_fault(state: State) -> int:
    return state.run.faults[-1].number if state.run is not None and state.run.faults else 0


def _worker(found: Figures, name: str) -> WorkerFigures:
    return found.workers.setdefault(name, WorkerFigures(worker=name))


def _uncount(found: Figures, step: protocol.Step) -> None:
    _count(found, step, -1)


def _count(found: Figures, step: protocol.Step, sign: int) -> None:
    for name in {part.worker: None for part in step.workers}:  # one that took over a slice has two parts of the step
        _worker(found, name).steps += sign
    for part in step.workers:
        worker = _worker(found, part.worker)
        worker.samples += sign * part.samples
        for name in PARTS:
            worker.seconds[name] += sign * getattr(part, f"{name}_s")
