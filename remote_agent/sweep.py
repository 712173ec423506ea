"""A sweep: many short runs of one job with different settings, each on one device, the worse ones stopped early.

::

    python -m remote_agent.sweep RUN_DIR                              as the process of the sweep, on the head
    python -m remote_agent.sweep --result RUN --folder FOLDER         -> SweepResult, as one JSON line

``run.json`` has ``search``. A trial is an ordinary run with one device, in ``trials/`` of the sweep's folder: its
coordinator is a fork of this process, which has loaded torch and Ray, and its worker is on the device's host. Its
``events.jsonl`` tells this process how it stands. A trial whose host is lost is made again on the next free device;
that host is tried again after a pause. What is decided of trials is in :mod:`remote_agent.search`.

The output is in ``script.log``, and the result in ``sweep.json``. SIGTERM ends the sweep: each trial after its step.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from remote_agent import deadlines, protocol
from remote_agent.host.processes import absolute_path
from remote_agent.protocol import DeviceSpec, RunFailed, RunFinished, RunSpec, RunStarted, SweepResult, Trial
from remote_agent.raw_ray import append_event
from remote_agent.search import RUNGS, Halving, ranked, rungs
from remote_agent.states import RunState, stands_at
from remote_agent.trial_events import TrialEvents
from remote_agent.wording import number

if TYPE_CHECKING:
    import threading

TRIALS, RESULT = "trials", "sweep.json"
"""In a sweep's folder: the trials' own folders, and how they went."""

OUTPUT = f"{protocol.SCRIPT}.log"

ATTEMPTS = 3
"""At a trial whose hosts are lost."""

FIRST_FAILURES = 3
"""Trials in a row that fail by themselves before any made a step: the job's mistake, which the others have as well."""

BY_ITSELF = 3
"""Exit code of a trial's process: its own code or settings failed, and no host was lost."""


def attempt(folder: Path, stop: threading.Event) -> int:
    """Carry out the trial in ``folder``; returns the exit code."""
    from remote_agent.training.coordinator import main
    from remote_agent.training.errors import (
        ClusterUnreachable,
        PlacementError,
        ServerGone,
        TrainingError,
        WorkersGone,
    )

    try:
        return main.attempt(folder, stop, sweep=folder.parents[1])
    except (ClusterUnreachable, PlacementError, ServerGone, WorkersGone):
        return 1
    except TrainingError:
        return BY_ITSELF


@dataclass
class _Running:
    """An attempt at a trial."""

    trial: Trial
    device: DeviceSpec
    process: BaseProcess
    events: TrialEvents
    rung: int = -RUNGS - 1  # the last that it came to
    at: tuple[int, float | None] = (0, None)  # step and figure at the last rung
    stopped: bool = False


@dataclass
class _Seat:
    """A device, and when it may be given a trial after those there that were lost."""

    device: DeviceSpec
    free_at: float = 0.0
    pause: float = 0.0


class Failed(Exception):
    """The sweep can't go on: ``cause`` and ``hint`` say why, ``host`` where."""

    def __init__(self, host: str, cause: str, hint: str = "", detail: str = "") -> None:
        super().__init__(cause)
        self.host, self.cause, self.hint, self.detail = host, cause, hint, detail


class Sweep:
    """One sweep in its folder; ``spec`` has its search."""

    def __init__(self, place: Path, spec: RunSpec) -> None:
        assert spec.search is not None
        self._place, self._spec, self._search = place, spec, spec.search
        self._halving = Halving(self._search.sign)
        self._waiting = deque(enumerate(self._search.values()))
        self._attempts = dict.fromkeys(range(self._search.trials), 0)
        self._lost: dict[int, set[str]] = {number: set() for number in self._attempts}  # the hosts, by trial
        self._seats = [_Seat(device) for device in spec.devices]
        self._running: list[_Running] = []
        self._done: dict[int, Trial] = {}
        self._rungs: dict[int, int] = {}  # how far those came
        self._first_failures = 0
        self.stopped = False

    def run(self) -> SweepResult:
        """Carry it out; raises Failed if all trials fail, or the metric is not there."""
        try:
            while (self._waiting or self._running) and not self.stopped:
                self._start_trials()
                wait([each.process.sentinel for each in self._running], deadlines.SWEEP_POLL_SECONDS)
                self._look()
        finally:
            self._end_trials()
            result = self.result()
            (self._place / RESULT).write_text(protocol.encode(result) + "\n", encoding="utf-8")
        if not self.stopped and all(trial.cause for trial in self._done.values()):
            raise self._failure(next(iter(self._done.values())))
        return result

    def result(self) -> SweepResult:
        """The trials that ended, from best to worst."""
        order = ranked(
            ((n, self._rungs[n], None if trial.cause else trial.figure) for n, trial in self._done.items()),
            self._search.sign,
        )
        return SweepResult(
            run=self._spec.run,
            job=self._spec.job,
            metric=self._search.metric,
            config=dict(self._spec.config),
            trials=tuple(self._done[number] for number in order),
            finished=len(self._done) == self._search.trials,
        )

    def _start_trials(self) -> None:
        now = time.monotonic()
        taken = [each.device for each in self._running]
        for seat in sorted(self._seats, key=lambda seat: seat.pause):
            trial = self._next_for(seat.device.host)
            if trial is not None and seat.device not in taken and seat.free_at <= now:
                self._waiting.remove(trial)
                self._running.append(self._started(*trial, seat.device))

    def _next_for(self, host: str) -> tuple[int, Mapping[str, str]] | None:
        """The next trial that was not lost on ``host`` before, or was on all."""
        hosts = {seat.device.host for seat in self._seats}
        return next(
            (each for each in self._waiting if host not in (lost := self._lost[each[0]]) or lost >= hosts), None
        )

    def _started(self, number: int, settings: Mapping[str, str], device: DeviceSpec) -> _Running:
        self._attempts[number] += 1
        folder = self._place / TRIALS / f"{number:03d}-{self._attempts[number]}"
        folder.mkdir(parents=True, exist_ok=True)
        spec = dataclasses.replace(
            self._spec,
            run=f"{self._spec.run}-{folder.name}",
            devices=(device,),
            server_host=device.host,
            config={"checkpoint_seconds": 0, "keep_checkpoints": 1} | self._spec.config | dict(settings),
            script=False,
            search=None,
        )
        (folder / "run.json").write_text(protocol.encode(spec) + "\n", encoding="utf-8")
        from remote_agent.training.coordinator.overseer import child_of

        process = child_of(attempt, folder)
        trial = Trial(number=number, settings=dict(settings), host=device.host, device=device.device)
        _say(f"trial {number} on {device.host}/{device.device}: {_written(settings)}")
        return _Running(trial, device, process, TrialEvents(folder / "events.jsonl"))

    def _look(self) -> None:
        for each in tuple(self._running):
            is_over = not each.process.is_alive()  # asked first: its last event is there then
            each.events.read()
            if not each.stopped:
                self._judge(each)
            if is_over:
                self._running.remove(each)
                self._conclude(each)

    def _judge(self, each: _Running) -> None:
        """Stop a trial that came to a rung and is not among the best there."""
        steps = rungs(each.events.iterations)
        for rung, step in enumerate(steps, start=-len(steps)):  # a short trial lacks the first ones
            at, figure = each.events.figure(self._search.metric)
            if rung <= each.rung or at < step or each.events.finished is not None:
                continue
            each.rung, each.at = rung, (at, figure)
            if not self._halving.goes_on(each.trial.number, rung, figure):
                each.stopped = True
                each.process.terminate()
                return

    def _conclude(self, each: _Running) -> None:
        """A trial's process ended: of itself, stopped early, by its own fault, or with its host."""
        shutil.rmtree(each.events.path.parent / "checkpoints", ignore_errors=True)  # `train --from` begins anew
        trial, events, seat = each.trial, each.events, next(s for s in self._seats if s.device == each.device)
        code, of = each.process.exitcode, f"{self._search.metric} "
        if (code == 0 and events.finished is not None) or each.stopped:
            seat.pause, self._first_failures = 0.0, 0
            steps, figure = each.at if each.stopped else (events.steps, events.figure(self._search.metric)[1])
            trial = dataclasses.replace(trial, steps=steps, figure=figure, stopped=each.stopped)
            if figure is None and not each.stopped and self._search.metric not in ("loss", *events.figures):
                known = ", ".join(("loss", *events.figures))
                raise Failed(each.device.host, f"no figure {self._search.metric!r}", f"this job has: {known}")
            is_whole = not each.stopped and events.finished is not None and not events.finished.stopped
            self._done[trial.number], self._rungs[trial.number] = trial, 0 if is_whole else each.rung
            said = f"stopped at step {steps:,} of {events.iterations:,}" if each.stopped else f"done, {steps:,} steps"
            _say(f"trial {trial.number} on {trial.host}/{trial.device}: {said}, {of}{_figure(figure)}")
            return
        cause = events.failed.cause if events.failed is not None else f"its process ended with {code}"
        lost = self._lost[trial.number]
        if code == BY_ITSELF:
            # Before its first step it may be the host that is unfit: another one tells.
            is_again = events.steps == 0 and not lost and len({each.device.host for each in self._seats}) > 1
        else:
            is_again = self._attempts[trial.number] < ATTEMPTS
        if (is_again or code != BY_ITSELF) and not self.stopped:
            seat.pause = min(max(2 * seat.pause, deadlines.SEAT_PAUSE_SECONDS), deadlines.SEAT_LONGEST_SECONDS)
            seat.free_at = time.monotonic() + seat.pause
            lost.add(trial.host)
            if is_again:
                _say(f"trial {trial.number} on {trial.host}/{trial.device}: {cause}; it is made again elsewhere")
                self._waiting.appendleft((trial.number, trial.settings))
                return
        elif code == BY_ITSELF:
            for other in self._seats:  # it was the trial, not the host where it failed first
                if other.device.host in lost:
                    other.pause = other.free_at = 0.0
        self._done[trial.number] = dataclasses.replace(trial, steps=events.steps, cause=cause)
        self._rungs[trial.number] = each.rung
        where = stands_at(RunState.FAILED, events.steps)
        _say(f"trial {trial.number} on {trial.host}/{trial.device}: failed {where}: {cause}")
        self._first_failures += events.steps == 0
        trains = any(other.events.steps for other in self._running)
        if self._first_failures >= FIRST_FAILURES and not trains and all(done.cause for done in self._done.values()):
            raise self._failure(trial, events.failed)

    def _failure(self, trial: Trial, event: RunFailed | None = None) -> Failed:
        cause = self._done[trial.number].cause
        hint = event.hint if event is not None else ""
        return Failed(trial.host, f"every trial failed: {cause}", hint, event.detail if event is not None else "")

    def _end_trials(self) -> None:
        """End those that are left, each after its step, with a deadline for all together."""
        for each in self._running:
            each.process.terminate()
        end = time.monotonic() + deadlines.RUN_STOP_SECONDS
        for each in self._running:
            each.process.join(max(0.0, end - time.monotonic()))
            if each.process.is_alive():
                each.process.kill()
                each.process.join(deadlines.KILL_SECONDS)


def table(result: SweepResult) -> Iterator[str]:
    """The trials as lines of text, from best to worst, and how to train with the settings of the best."""
    names = sorted({name for trial in result.trials for name in trial.settings})
    rows = [("TRIAL", "DEVICE", "STEPS", result.metric.upper(), *names, "")]
    for trial in result.trials:
        how = f"failed: {trial.cause}" if trial.cause else "stopped early" if trial.stopped else ""
        where = f"{trial.host}/{trial.device}"
        settings = [trial.settings.get(name, "") for name in names]
        rows.append((str(trial.number), where, f"{trial.steps:,}", _figure(trial.figure), *settings, how))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if result.trials and not result.trials[0].cause:
        best = result.trials[0]
        yield f"best: {_written(best.settings)}, {result.metric} {_figure(best.figure)}"


def _figure(value: float | None) -> str:
    return "n/a" if value is None else number(value, 4)


def _written(settings: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _say(text: str) -> None:
    print(text, flush=True)


def carry_out(place: Path) -> int:
    """Carry out the sweep in ``place``; returns the exit code."""
    spec = protocol.decode(RunSpec, (place / "run.json").read_text(encoding="utf-8"))
    search = spec.search
    assert search is not None, "a sweep's run.json has its search"
    output = os.open(place / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    journal, sweep = place / "events.jsonl", Sweep(place, spec)

    def stop(number: int, frame: FrameType | None) -> None:
        sweep.stopped = True

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    about: dict[str, Any] = {"run": spec.run, "job": spec.job, "host": spec.host, "batch_size": 0, "parameters": 0}
    append_event(journal, RunStarted(seq=1, time=time.time(), **about, iterations=0, config=dict(spec.config)))
    from remote_agent.training.coordinator import engine, history  # noqa: F401 - each trial has what is loaded now

    gc.freeze()  # the trials share these pages: a collection would write to them
    try:
        result = sweep.run()
    except Failed as error:
        failed: dict[str, Any] = {"cause": error.cause, "hint": error.hint, "detail": error.detail}
        append_event(journal, RunFailed(seq=2, time=time.time(), step=0, host=error.host, **failed))
        return 1
    for line in table(result):
        _say(line)
    best = next((trial.figure for trial in result.trials if not trial.cause), None)
    ended = RunFinished(
        seq=2,
        time=time.time(),
        steps=len(result.trials),
        samples=0,
        final_loss=best if search.metric == "loss" else None,
        samples_per_second=0.0,
        checkpoint="",
        stopped=sweep.stopped,
    )
    append_event(journal, ended)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m remote_agent.sweep")
    parser.add_argument("place", type=absolute_path, nargs="?")
    parser.add_argument("--result", metavar="RUN")
    parser.add_argument("--folder", type=absolute_path)
    options = parser.parse_args(arguments)
    if options.result is None:
        return carry_out(options.place)
    place = options.folder / "runs" / Path(options.result).name
    try:
        print((place / RESULT).read_text(encoding="utf-8").strip())
    except OSError:
        is_sweep = (place / TRIALS).is_dir()
        print("it has no result yet" if is_sweep else "it is no sweep", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
