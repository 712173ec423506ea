"""Copies a run's folder to other hosts, so that the run survives the loss of the head.

Besides checkpoints, it copies the run's history: ``run.json``, the job's file, ``events.jsonl``, ``slices.jsonl``,
``order.jsonl`` if a sampler makes the order, and ``control.jsonl`` with the user's commands. The first two are sent
once. The others only grow, so new lines are sent to every host each second; a host that has an earlier copy gets what
it lacks. A checkpoint is large: the newest complete one is sent to :data:`CHECKPOINT_HOSTS` other hosts, in parts. It
counts there once it is complete and the history up to it is there too, so that a run that resumes from it has no gap in
its record. A host with both can continue the run. On a slow link some checkpoints are skipped, since training needs the
link too.

A host that can't store its copy (full disk, gone) is left out until it answers again; training never waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_agent.protocol import CLUSTER_MARK, CONTROL_FILE, JOB_ARCHIVE, CheckpointSaved, Notice
from remote_agent.run_copy import RunCopy, digest
from remote_agent.runs import newest_checkpoint
from remote_agent.tail import new_lines, size_of
from remote_agent.training.coordinator.background import Background
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.plan.placement import Node
from remote_agent.training.deadlines import (
    CHECKPOINT_END_S,
    CLOSE_S,
    HISTORY_AGAIN_S,
    HISTORY_END_S,
    HISTORY_EVERY_S,
    HISTORY_S,
    LOOK_S,
    PLACEMENT_S,
)
from remote_agent.training.errors import TrainingError
from remote_agent.training.shared import rpc

LOG = logging.getLogger(__name__)

GROWING = ("events.jsonl", "slices.jsonl", "order.jsonl")
"""Files to which the coordinator appends; a copied checkpoint counts once they are copied up to it."""

SETTLED = ("run.json", JOB_ARCHIVE)
"""Files that do not change."""

COPIED = (*GROWING, CONTROL_FILE)
"""Files to which lines are appended."""

CHECKPOINT_HOSTS = 2
"""Number of other hosts that keep checkpoints; with two, one may be lost together with the head."""

COPYING = 0.1
"""Part of the time in which checkpoints may be in transfer, since they share the links with training."""

LITTLE_S = 1.0
"""Transfers shorter than these seconds are always made."""

SLOWEST = 1 << 20
"""Bytes a second of the slowest link on which the job's files must arrive."""

_CHUNK = 4 << 20
"""Bytes of one file that are sent at a time."""


@dataclass
class _Copy:
    """One host's copy: its actor, the copied bytes of each growing file, and the data in transfer.

    ``asked``: the answer about earlier copies of these files; ``is_cut``: they were truncated to the common part.
    """

    actor: rpc.Actor
    sizes: dict[str, int] = field(default_factory=dict)
    sent: list[rpc.Ref[object]] = field(default_factory=list)
    sizes_then: dict[str, int] = field(default_factory=dict)
    asked: dict[str, rpc.Ref[tuple[int, str]]] = field(default_factory=dict)
    is_cut: bool = False
    deadline: float = 0.0


class History:
    """Copies a run's history to every other host of the cluster, beside training; a context manager.

    Args:
        folder: the run's, on this host.
        keep: number of checkpoints to keep.
        journal: gets the events about hosts that have a checkpoint.
    """

    def __init__(self, run: str, folder: Path, host: str, keep: int, journal: Journal) -> None:
        self._run, self._folder, self._host, self._keep_newest = run, folder, host, keep
        self._journal = journal
        self._copies: dict[str, _Copy] = {}
        self._next_try: dict[str, float] = {}
        self._last, self._ending = threading.Event(), threading.Event()
        self._lines = Background("copying the run's history to other hosts", self._keep, self._say)
        self._checkpoints = Background("copying checkpoints to other hosts", self._copy_checkpoints, self._say)

    def __enter__(self) -> History:
        if CLUSTER_MARK in os.environ:  # without it this is no cluster of ours, where a copy has its place
            self._lines.start()
            self._checkpoints.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._last.set()
        self._checkpoints.join(CHECKPOINT_END_S)
        self._ending.set()
        self._lines.join(HISTORY_END_S + CLOSE_S)
        self._checkpoints.join(CLOSE_S)  # no call may be under way when Ray is left

    def _say(self, error: Exception) -> None:
        """Report that something is no longer copied; training does not need the copies."""
        text = f"this run is not copied to other hosts any more: {type(error).__name__}: {error}"
        with contextlib.suppress(TrainingError):
            self._journal.write(Notice, step=self._journal.step, host=self._host, text=text)

    def _keep(self) -> None:
        while not self._ending.wait(HISTORY_EVERY_S):
            with contextlib.suppress(rpc.Unexpected):  # Ray's head is not well: the next look tells
                self._look_for(placement.living_nodes())
        with contextlib.suppress(rpc.Unexpected):
            self._end()

    def _look_for(self, nodes: Iterable[Node]) -> None:
        """Keep a copy on each of ``nodes`` except this host, without waiting."""
        others = {node.host: node for node in nodes if node.host != self._host}
        for host in self._copies.keys() - others.keys():
            del self._copies[host]
        for host, node in others.items():
            if host not in self._copies and time.monotonic() >= self._next_try.get(host, 0.0):
                LOG.info("the run's history is copied to %s", host)
                self._copies[host] = _Copy(rpc.start(RunCopy, placement.actor_options(node), self._run))
        for host in self._settle(0.0):
            self._send(self._copies[host])

    def _settle(self, seconds: float) -> list[str]:
        """The hosts whose copy is complete within a time limit; a host that failed has to start again."""
        free = []
        ends = time.monotonic() + seconds
        for host, copy in tuple(self._copies.items()):
            try:
                everything: list[rpc.Ref[Any]] = [*copy.sent, *copy.asked.values()]
                rpc.get_all(everything, max(0.0, ends - time.monotonic()))
                copy.sizes_then |= {name: self._agreed(name, *rpc.get(ref, 0.0)) for name, ref in copy.asked.items()}
            except rpc.Timeout:
                if time.monotonic() > copy.deadline:
                    self._give_up(host)
            except rpc.Unexpected:
                self._give_up(host)
            else:
                copy.sizes.update(copy.sizes_then)
                copy.sent, copy.sizes_then, copy.asked = [], {}, {}
                free.append(host)
        return free

    def _give_up(self, host: str) -> None:
        """Mark a host's copy as unknown; it is asked again after a while."""
        LOG.info("the copy on %s is in doubt: begun anew in %.0f s", host, HISTORY_AGAIN_S)
        self._copies.pop(host).actor.kill()
        self._next_try[host] = time.monotonic() + HISTORY_AGAIN_S

    def _send(self, copy: _Copy) -> None:
        if not copy.sizes:
            self._begin(copy)
            return
        for name in COPIED:
            known = copy.sizes[name]
            lines = new_lines(self._folder / name, known, _CHUNK)
            if lines or not copy.is_cut:
                copy.sent.append(copy.actor.call("append", name, known, lines))
            copy.sizes_then[name] = known + len(lines)
        copy.is_cut, copy.deadline = True, time.monotonic() + HISTORY_S

    def _begin(self, copy: _Copy) -> None:
        """Send the unchanging files, and ask for earlier copies, since a long run's history is large."""
        newest = newest_checkpoint(self._folder)
        copy.sent = [copy.actor.call("begin", -1 if newest is None else newest)]
        copy.sent += [copy.actor.call("replace", path.name, path.read_bytes()) for path in self._settled()]
        copy.asked = {name: copy.actor.call("known", name, size_of(self._folder / name)) for name in COPIED}
        job_s = size_of(self._folder / JOB_ARCHIVE) / SLOWEST
        copy.deadline = time.monotonic() + PLACEMENT_S + job_s

    def _agreed(self, name: str, size: int, found: str) -> int:
        """Bytes of a growing file on a host that agree with this host's: all ``size`` bytes that it has, or none."""
        return size if found == digest(self._folder / name, size) else 0

    def _end(self) -> None:
        """Also send the last event to copies that lack only that, without a long wait."""
        for host in self._settle(HISTORY_END_S / 2):
            if self._copies[host].sizes:
                self._send(self._copies[host])
        self._settle(HISTORY_END_S / 2)
        for copy in self._copies.values():
            copy.actor.kill()

    # --- Checkpoints -------------------------------------------------------------------------------------------------

    def _copy_checkpoints(self) -> None:
        copied: dict[rpc.Actor, int] = {}
        rest_s = 0.0
        while not self._ending.is_set():
            is_last = self._last.wait(HISTORY_EVERY_S + rest_s)
            newest = newest_checkpoint(self._folder)
            led_there = {name: size_of(self._folder / name) for name in GROWING}
            ready = [(host, copy) for host, copy in sorted(self._copies.items()) if copy.sizes]
            sending_s = 0.0
            for _, copy in ready[:CHECKPOINT_HOSTS]:
                if newest is not None and copied.get(copy.actor) != newest:
                    # A failed copy is tried again: the checkpoint was removed meanwhile, or the host is gone or full.
                    with contextlib.suppress(OSError, rpc.Timeout, rpc.Unexpected):
                        sending_s += self._copy_checkpoint(copy, newest, led_there)
                        copied[copy.actor] = newest
            if newest is not None and sending_s:
                self._tell(newest, [host for host, copy in ready if copied.get(copy.actor) == newest])
            if is_last:
                return
            rest_s = sending_s / COPYING - sending_s if sending_s > LITTLE_S else 0.0

    def _tell(self, step: int, others: list[str]) -> None:
        """Write which hosts have the checkpoint of ``step``."""
        path = self._folder / "checkpoints" / f"step-{step:08d}.safetensors"
        hosts = (self._host, *others)
        # It may have been removed since, for newer ones; a full disk ends the run where it is noticed first.
        with contextlib.suppress(OSError, TrainingError):
            size = sum(part.stat().st_size for part in path.parent.glob(f"{path.stem}.*"))
            self._journal.write(CheckpointSaved, step=step, path=str(path), host=self._host, size=size, hosts=hosts)

    def _copy_checkpoint(self, copy: _Copy, step: int, led_there: Mapping[str, int]) -> float:
        """Copy a checkpoint.

        Args:
            led_there: sizes of the growing files when it was complete.

        Returns:
            Seconds that it was in transfer, without those that it waited for the history.
        """
        actor, began = copy.actor, time.monotonic()
        paths = sorted((self._folder / "checkpoints").glob(f"step-{step:08d}.*"))
        paths = [path for path in paths if path.suffix in (".json", ".safetensors")]
        with contextlib.ExitStack() as opened:
            # All at first: a slow link may take longer than it is until there are newer ones, and this one is removed.
            for path, file in [(path, opened.enter_context(path.open("rb"))) for path in paths]:
                for offset in range(0, os.fstat(file.fileno()).st_size, _CHUNK):
                    rpc.get(actor.call("write", path.name, offset, file.read(_CHUNK)), HISTORY_S)
        sending_s = time.monotonic() - began
        ends = time.monotonic() + HISTORY_S
        while any(copy.sizes[name] < size for name, size in led_there.items()):
            if time.monotonic() >= ends or self._ending.wait(LOOK_S):
                raise TimeoutError(f"the history up to step {step} is not there")
        rpc.get(actor.call("publish", [path.name for path in paths], self._keep_newest), HISTORY_S)
        return sending_s

    # --- Files -------------------------------------------------------------------------------------------------------

    def _settled(self) -> list[Path]:
        """The files that do not change: those of :data:`SETTLED`, and the job's file if it came alone."""
        return sorted(path for path in self._folder.glob("*") if path.name in SETTLED or path.suffix == ".py")
