"""Starts workers during a run, in the background: again after a failure, or on a new host.

A worker is opened like those of the run's start, on its host by label; if the host is away, Ray starts it once the host
is back. Then it joins the shards and follows the run (``Streaming.follow``) until it is let in, at the beginning of a
step. The others do not wait for it. Without shards they wait at that moment while it loads their state
(``strategies.allreduce.hand_over``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Self

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.protocol import DeviceSpec
from remote_agent.strategies import spec_of
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.background import Background
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.plan.placement import Placement
from remote_agent.training.coordinator.processes.actors import Workers
from remote_agent.training.coordinator.processes.measure import Candidate, measure
from remote_agent.training.deadlines import CLOSE_S, MEASURE_S, NODES_S, TRANSFER_S
from remote_agent.training.errors import PlacementError, TrainingError
from remote_agent.training.shared import audit as audits
from remote_agent.training.shared import rpc
from remote_agent.training.shared.audit import Audit, Sketch
from remote_agent.training.shared.messages import AuditTask, Failed
from remote_agent.training.shared.optimizer_options import OptimizerOptions
from remote_agent.training.shared.rpc import Actor
from remote_agent.training.wire.endpoint import StreamInfo

LOG = logging.getLogger(__name__)


class Joining:
    """Starts workers during a run; a context manager.

    Args:
        entry: data to join the shards; None: there are none, and a new worker gets the weights from another one.
        buffers: names of the model's buffers that training changes.
        reference: reference speed of simulated devices.
        options: of the job's optimizer in this process, which a new worker's gets.
        audit: of the run's start: a new worker has to compute the same numbers; None: it is not audited.

    Attributes:
        entry: as above; ``recovery.rollback`` sets the new one when it moves the shards.
    """

    def __init__(
        self,
        workers: Workers,
        entry: StreamInfo | None,
        *,
        buffers: Sequence[str],
        reference: DeviceProfile | None,
        config: TrainingConfig,
        options: OptimizerOptions,
        audit: Audit | None = None,
    ) -> None:
        self.entry = entry
        self.audit, self._options = audit, options
        self.reference = reference
        self._workers, self._buffers, self._config = workers, list(buffers), config
        self._hosts: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._watching = Background("nodes", self._watch)
        self._opening: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._workers.kill()
        # No thread may ask Ray for something after the disconnection: Ray would connect anew by itself.
        deadline = time.monotonic() + CLOSE_S
        self._watching.join(CLOSE_S)
        for thread in self._opening:
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts with a living node, as Ray reported a moment ago."""
        self._watching.check()
        return self._hosts

    def again(self, member: WorkerHandle) -> Future[WorkerHandle]:
        """Start the same worker in a new process, with its planned speed; a failure is a TrainingError."""
        profile = member.track.current
        return self._in_background(lambda: self._open(member.seat, profile))

    def new(self, spec: DeviceSpec) -> Future[WorkerHandle]:
        """Start a worker on a device without one, and measure it first; a failure is a TrainingError."""
        return self._in_background(lambda: self._open(placement.seats([spec], placement.living_nodes())[0], None))

    def end(self, member: WorkerHandle) -> None:
        self._workers.end(member.actor)

    def end_others(self, members: Sequence[WorkerHandle]) -> None:
        """End the processes of all workers but these."""
        self._workers.end_others([member.actor for member in members])

    # --- In the background -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stop.is_set():
            # While Ray's head does not answer nothing is known, and nothing can be started either.
            try:
                self._hosts = frozenset(node.host for node in placement.living_nodes())
            except rpc.Unexpected:
                self._hosts = frozenset()
            self._stop.wait(NODES_S)

    def _in_background(self, work: Callable[[], WorkerHandle]) -> Future[WorkerHandle]:
        future: Future[WorkerHandle] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except TrainingError as error:
                future.set_exception(error)
            except rpc.Unexpected as error:
                future.set_exception(PlacementError(rpc.describe(error)))
            except Exception as error:  # whatever it is, the run goes on without this worker, and it is tried again
                LOG.exception("a worker can't be started")
                future.set_exception(PlacementError(f"{type(error).__name__}: {error}"))

        self._opening = [thread for thread in self._opening if thread.is_alive()]
        self._opening.append(threading.Thread(target=run, name="joining", daemon=True))
        self._opening[-1].start()
        return future

    def _open(self, seat: Placement, profile: DeviceProfile | None) -> WorkerHandle:
        actor, opening = self._workers.start(seat)
        try:
            opened = self._workers.opened(seat, actor, opening, time.monotonic())
            reference, config = self.reference, self._config
            if profile is None or spec_of(config.strategy).split:  # there the process has to know the model's blocks
                found = measure(
                    [Candidate(seat, actor, opened)],
                    config.batch_size,
                    config.measure_seconds,
                    config.slice_deadline_s,
                    audit=self.audit,
                ).in_units(config.unit)
                profile, reference = found.profiles[0], reference or found.reference
            self._compare(seat, actor)
            actor.call("prepare", self._buffers, reference, config, self._options)
            self._join(seat, actor)
        except Exception:
            self._workers.end(actor)
            raise
        return WorkerHandle(seat, actor, SpeedTrack(profile), opened.simulated_speed)

    def _compare(self, seat: Placement, actor: Actor) -> None:
        """Raise JobError if the worker computes other numbers than those of the run's start."""
        if self.audit is None or not self.audit.comparable:
            return
        task = AuditTask(indices=self.audit.indices, evaluating=self.audit.evaluating)
        sketch: Sketch | Failed | None = rpc.get(actor.call("audit", task), MEASURE_S)
        if isinstance(sketch, Failed):
            raise sketch.error(seat.spec.host)
        finding = audits.compared(self.audit, [(seat.worker, sketch)]) if sketch is not None else None
        if finding is not None:
            raise audits.refusal(finding, self._config.batch_size)

    def _join(self, seat: Placement, actor: Actor) -> None:
        entry, host = self.entry, seat.spec.host
        if entry is None:
            return
        call = actor.call("engine", "join", entry.of(host), True)
        try:
            kind: str | Failed = rpc.get(call, TRANSFER_S)
        except rpc.Timeout:
            raise PlacementError(f"{seat.worker} did not join within {TRANSFER_S:.0f} s", host=host) from None
        if isinstance(kind, Failed):
            raise kind.error(host)
