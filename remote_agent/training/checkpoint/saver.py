"""Saves checkpoints beside training: it waits only until weights and optimizer state have been kept, not for the disk.

One checkpoint is written at a time, by one thread; the end of the run waits for it. The next one waits for it up to
:data:`~remote_agent.training.deadlines.SLOW_DISK_S`, and is left out if the disk is slower than that.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.checkpoint.optimizer_state import Snapshot, TrainingState
from remote_agent.training.deadlines import SLOW_DISK_S
from remote_agent.training.shared import flat
from remote_agent.training.shared.flat import Payload


def load_payload(model: nn.Module, payload: Payload, buffer_names: tuple[str, ...]) -> None:
    """Copy weights and changed buffers into ``model`` (on the CPU)."""
    tensors: list[dict[str, torch.Tensor]] = [dict(flat.trained(model)), flat.buffers(model, buffer_names)]
    arrays = iter(payload)
    with torch.no_grad():
        for members in tensors:
            for entry in flat.group(members):
                source = flat.from_bytes(next(arrays).copy(), entry.dtype)
                for name, view in zip(entry.names, entry.views(source), strict=True):
                    members[name].copy_(view)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A whole checkpoint: of ``step``, with its weights at ``path``.

    Attributes:
        step: the last one that is in it.
        size: bytes of all its files.
        seconds: that it took to be written.
        missing: why it has no optimizer state; empty else.
    """

    step: int
    path: Path
    size: int
    seconds: float
    missing: str = ""


class Saver:
    """Writes the checkpoints of one run; a context manager, which waits at its end for the one under way.

    Args:
        keep: newest ones that are kept; older ones are removed once a newer one is whole.
        about: fields of every document.

    Attributes:
        newest: the one that became whole last.
        best: the step whose checkpoint is kept beside the newest ones, as that of the best evaluation; None: none is.
    """

    def __init__(self, folder: Path, keep: int, about: Mapping[str, Any]) -> None:
        self._folder, self._keep, self._about = folder, keep, about
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Saved] | None = None
        self._was_waited_for = False
        self.newest: Saved | None = None
        self.best: int | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def is_writing(self) -> bool:
        """A checkpoint is not whole yet, or it was not asked for since it is."""
        return self._pending is not None

    def is_free(self) -> bool:
        """Whether another checkpoint can begin; waits up to :data:`SLOW_DISK_S`, once for each checkpoint."""
        if self._pending is not None and not self._was_waited_for:
            with contextlib.suppress(TimeoutError):
                self._pending.exception(SLOW_DISK_S)
            self._was_waited_for = True
        return self._pending is None or self._pending.done()

    def path_of_best(self) -> Path | None:
        """The weights of the best evaluation; None: they are not kept, or not here."""
        if self.best is None:
            return None
        path = checkpoint.path_of(self._folder, self.best)
        return path if path.exists() else None

    def save(
        self,
        step: int,
        model: nn.Module,
        position: int,
        snapshot: Snapshot | None,
        more: Mapping[str, Any] | None = None,
        changing: tuple[str, ...] = (),
        record: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to write a checkpoint; nothing may be under way: call :meth:`finish` before ``model`` is changed.

        Args:
            step: the last step that is in the weights.
            model: stays as it is until the checkpoint is whole.
            position: samples of the global order that were used.
            more: further fields of the document: what came of the evaluations, the scheduler's state.
            changing: names of buffers and frozen parameters that training changes.
            record: brings the record of the steps to the disk, which has to be there before the checkpoint.
        """
        assert self._pending is None, "one checkpoint at a time"
        about = {**self._about, "position": position, **(more or {})}
        self._was_waited_for = False
        self._pending = self._pool.submit(self._write, step, model, about, snapshot, self.best, changing, record)

    def poll(self) -> Saved | None:
        """The checkpoint that has become whole since the last call, or None; raises TrainingError."""
        return self.finish() if self._pending is not None and self._pending.done() else None

    def finish(self) -> Saved | None:
        """Wait for the checkpoint under way; as :meth:`poll`."""
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        self.newest = pending.result()
        return self.newest

    def _write(
        self,
        step: int,
        model: nn.Module,
        about: Mapping[str, Any],
        snapshot: Snapshot | None,
        best: int | None,
        changing: tuple[str, ...],
        record: Callable[[], None],
    ) -> Saved:
        began = time.monotonic()
        record()
        state = snapshot() if snapshot is not None else TrainingState(missing="the strategy does not keep it")
        path, size = checkpoint.save(self._folder, step, model, about, state, changing)
        checkpoint.prune(self._folder, self._keep, best)
        return Saved(step=step, path=path, size=size, seconds=time.monotonic() - began, missing=state.missing)
