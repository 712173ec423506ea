"""Breaks the demo's machines at random, so that one sees them recover: ``hetero-tui demo --chaos``, or the key ``x``.

While a run is on, every few seconds a worker is killed, a worker is stopped for a moment, or all of Ray on a machine
that is not the head is killed: what a crash, a computer that hangs and a power cut look like to the others. What was
done is a line of the event log. Only machines that take part in the run are struck, and never the last one.

Only processes of the demo are touched: those that :func:`hetero_tui.demo.guardian.ours` finds by the mark that names
the machine's own home. What is done is decided by :func:`choose`, which is pure.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import psutil

from hetero_tui.demo import guardian
from hetero_tui.events import Level
from hetero_tui.state import State

PAUSE_SECONDS = (6.0, 10.0)
"""From one blow to the next, at least and at most: long enough to see the machine come back."""

FROZEN_SECONDS = (2.0, 4.0)
"""A worker is stopped for so long: longer than the run waits until it takes it for silent."""

_WORKER = "ray::Worker"
_RAYLET = "raylet"


class Blow(StrEnum):
    """What is done to a machine."""

    KILL_WORKER = "killed the worker of"
    FREEZE_WORKER = "stopped the worker of"
    KILL_RAY = "killed all of Ray on"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A machine as it is now.

    Attributes:
        head: it is the cluster's head, whose Ray is spared.
        workers: its processes that train, or are about to, and are not stopped.
        ray: all processes of its Ray, the workers among them.
    """

    name: str
    head: bool
    workers: tuple[psutil.Process, ...]
    ray: tuple[psutil.Process, ...]


def choose(targets: Sequence[Target], chance: random.Random) -> tuple[Blow, Target] | None:
    """What to do now, and to which machine; None while fewer than two machines train."""
    training = [target for target in targets if target.workers]
    if len(training) < 2:
        return None
    target = chance.choice(training)
    return chance.choice([blow for blow in Blow if blow is not Blow.KILL_RAY or not target.head]), target


def look(name: str, home: Path, *, head: bool) -> Target:
    """The processes of the machine whose home this is."""
    marked = guardian.ours(home)
    workers, ray = [], list[psutil.Process]()
    for process in marked:
        with contextlib.suppress(psutil.Error, IndexError):
            if process.cmdline()[0].split(".")[0] == _WORKER and process.status() != psutil.STATUS_STOPPED:
                workers.append(process)
            elif process.name() == _RAYLET:
                started_by = process.parent()  # `ray start`, which watches over all of the machine's Ray
                root = started_by if started_by in marked else process
                ray += [root, *root.children(recursive=True)]
    return Target(name=name, head=head, workers=tuple(workers), ray=tuple(each for each in ray if each in marked))


class Session(Protocol):
    """What chaos needs of a :class:`hetero_tui.session.Session`."""

    @property
    def state(self) -> State:
        """With the run that is disturbed."""

    def notice(self, level: Level, text: str) -> None:
        """A line for the log."""


class Chaos:
    """Strikes while it is on; a task of the event loop.

    Args:
        homes: each machine's home, by its name.
        head: name of the cluster's head.
        session: whose run is disturbed, and whose log says by what.
        chance: what is random about it.
        pause: seconds from one blow to the next, at least and at most.
    """

    def __init__(
        self,
        homes: Mapping[str, Path],
        *,
        head: str,
        session: Session,
        chance: random.Random | None = None,
        pause: tuple[float, float] = PAUSE_SECONDS,
    ) -> None:
        self._homes, self._head, self._session, self._pause = dict(homes), head, session, pause
        self._chance = chance or random.Random()  # noqa: S311 (nothing depends on its being guessed)
        self._task: asyncio.Task[None] | None = None

    @property
    def on(self) -> bool:
        """Whether it strikes."""
        return self._task is not None

    async def toggle(self) -> None:
        """On when it is off, and off when it is on; the log says so."""
        if self._task is not None:
            await self.close()
            self._session.notice(Level.INFO, "chaos: off")
            return
        at_least, at_most = self._pause
        often = f"every {at_least:.0f} to {at_most:.0f} s"
        self._session.notice(Level.INFO, f"chaos: on; while a run is on, something breaks {often}")
        self._task = asyncio.create_task(self._strike_again_and_again(), name="chaos")

    async def close(self) -> None:
        """Off; a worker that is stopped goes on."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _strike_again_and_again(self) -> None:
        waits = False  # and has said so
        while True:
            await asyncio.sleep(self._chance.uniform(*self._pause))
            if not self._trains():
                continue
            targets = await asyncio.to_thread(self._look)
            chosen = choose(targets, self._chance)
            if not self._trains():
                continue
            if chosen is not None:
                await self._strike(*chosen)
            elif not waits:
                self._session.notice(Level.INFO, "chaos: nothing is broken while fewer than two machines train")
            waits = chosen is None

    def _trains(self) -> bool:
        run = self._session.state.run
        return run is not None and not run.state.final and run.step > 0

    def _look(self) -> list[Target]:
        run = self._session.state.run
        alive = {worker.host for worker in run.workers if worker.alive} if run is not None else set()
        return [look(name, home, head=name == self._head) for name, home in self._homes.items() if name in alive]

    async def _strike(self, blow: Blow, target: Target) -> None:
        self._session.notice(Level.WARNING, f"chaos: {blow} {target.name}")
        if blow is not Blow.FREEZE_WORKER:
            for process in target.ray if blow is Blow.KILL_RAY else target.workers:
                with contextlib.suppress(psutil.Error):  # it ended by itself, or with one before it
                    process.kill()
            return
        try:
            for process in target.workers:
                with contextlib.suppress(psutil.Error):
                    process.suspend()
            await asyncio.sleep(self._chance.uniform(*FROZEN_SECONDS))
        finally:
            for process in target.workers:
                with contextlib.suppress(psutil.Error):
                    process.resume()
        self._session.notice(Level.INFO, f"chaos: the worker of {target.name} may go on")
