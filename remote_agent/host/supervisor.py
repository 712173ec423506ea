"""Keeps this machine in the cluster: ``python -m remote_agent.host.supervisor --folder F``, one for each node.

A node leaves a cluster in three ways: its Ray ends (killed, out of memory), the head declares it dead after some
seconds of silence (stock Ray's raylet then ends itself), or it is cut off for so long that the head must have done so.
On the head itself, Ray's control store can hang, which is for all others the same. A raylet that is stopped counts as
one of the second kind.
In each the supervisor takes away what is left of the old Ray, waits until the head answers, starts Ray again as
``node.json`` says, and waits longer before each attempt while attempts fail. ``node start`` launches it once this
machine has joined, so it takes charge of a Ray that runs, its own child or not.

A cluster that has been gone for an hour does not come back by itself: the laptop was lost, or its `down` did not reach
this machine. Then it becomes ``node stop``, which leaves nothing behind but environment, runs and logs.

Where its folder was deleted, the supervisor ends with its Ray, and `up` or an attached laptop starts them anew.

A head is not started again: an empty one would answer as if the run had never been. The supervisor says so, ends the
coordinators, which can do nothing without it, and ends itself: the laptop forms the cluster anew and the run goes on.

It is a recorded and marked process like all of ours. SIGTERM ends Ray with all that it started, then the supervisor.
When it is killed outright, Ray goes on, ``down`` finds Ray by its mark, and the next ``up`` starts a new supervisor.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from remote_agent import deadlines, protocol
from remote_agent.host import layout, mesh, process_table, processes, ray_command, ray_node, supervision
from remote_agent.host.ray_node import NodeError
from remote_agent.host.supervision import Supervision
from remote_agent.log_lines import stamp
from remote_agent.protocol import NodeSpec, ProcessRecord

HEAD_ENDED = "run `down`, then `up`: a new head starts empty, so it is not started by itself"


class EndRequested(Exception):
    """This process is to end."""


class NotInCharge(Exception):
    """This process's record is gone, or another's: the folder was deleted, and another supervisor may be there."""


class ClusterGone(Exception):
    """The head has not answered for so long that this machine need not wait for it."""


class StopSignals:
    """SIGTERM and SIGINT, as something that a wait can be woken by; they never break into a step halfway."""

    def __init__(self) -> None:
        self._waiting, ring = os.pipe()
        for descriptor in (self._waiting, ring):
            os.set_blocking(descriptor, False)
        self._told = False
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ring)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self._told = True

    def pause(self, seconds: float, *, until_readable: int | None = None) -> None:
        """Wait so long, or until ``until_readable`` has something to read; raises EndRequested after a signal."""
        watched = [self._waiting] if until_readable is None else [self._waiting, until_readable]
        if not self._told:
            select.select(watched, [], [], seconds)
        if self._told:
            raise EndRequested


class Supervisor:
    """The loop, with what it knows: the machine's specification, its state on disk and when Ray joined last."""

    def __init__(
        self, folder: Path, spec: NodeSpec, signals: StopSignals, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is looked at yet; ``spec`` stays in force for this supervisor's life, ``clock`` counts seconds."""
        self._clock = clock
        self._folder = folder
        self._spec = spec
        self._signals = signals
        self._state = Supervision(phase=supervision.WATCHING, since=time.time())
        self._attempt = 0
        self._own = processes.read_record(folder, layout.SUPERVISOR)
        self._ray = processes.read_record(folder, layout.RAY)
        self._mesh_cause = ""  # why the cluster's own network could not be brought up, last

    def run(self) -> int:
        """Watch Ray and start it again, until it is to end (0) or, on a head, until Ray ends (1)."""
        record = self._ray
        try:
            while True:
                if record is not None:
                    joined = time.monotonic()
                    cause = self._watch(record)
                    if time.monotonic() - joined >= deadlines.STABLE_SECONDS:
                        self._attempt = 0
                    self._ray_ended(cause)
                    if self._spec.role == "head":
                        self._end_runs()
                    ray_node.stop(self._folder, record, deadlines.STRAY_STOP_SECONDS)
                if self._spec.role == "head":
                    return 1
                record = self._try_to_join()
        except EndRequested:
            _log("told to end: stopping Ray")
            return self._end()
        except NotInCharge:
            _log("this process's record is gone: stopping the Ray that it watches")
            if self._ray is not None:
                ray_node.stop(self._folder, self._ray, deadlines.STRAY_STOP_SECONDS)
            return 1
        except NodeError as error:  # a process of the old Ray hangs in a driver: a new one beside it would not help
            self._say(replace(self._state, phase=supervision.ENDED, cause=error.cause, hint=error.hint))
            _log(error.cause)
            return 1

    def _pause(self, seconds: float, *, until_readable: int | None = None) -> None:
        """As :meth:`StopSignals.pause`.

        Raises:
            EndRequested: the process is to end.
            NotInCharge: it is not this machine's supervisor any more.
        """
        self._signals.pause(seconds, until_readable=until_readable)
        record = processes.read_record(self._folder, layout.SUPERVISOR)
        if record != self._own and (record is not None or not self._may_have_record()):
            raise NotInCharge

    def _may_have_record(self) -> bool:
        try:
            return processes.record_path(self._folder, layout.SUPERVISOR).exists()
        except OSError:  # a disk that fails says nothing about it
            return True

    def _watch(self, record: ProcessRecord) -> str:
        """Wait for the end of a Ray that runs: why it ended, or why it has to."""
        self._say(replace(self._state, phase=supervision.WATCHING, since=time.time(), cause="", hint=""))
        _log(f"watching Ray (PID {record.pid})")
        ended = _open_process(record.pid)
        managers, stopped_looks = ray_node.managers(self._folder, record), 0
        cut_off_since: float | None = None
        try:
            while processes.find_ours(self._folder, record) is not None:
                self._pause(deadlines.WATCH_SECONDS, until_readable=ended)
                if processes.find_ours(self._folder, record) is None:
                    break
                # They are counted instead of timed, since a computer that sleeps stops this process, too.
                stopped_looks = stopped_looks + 1 if any(map(process_table.is_stopped, managers)) else 0
                if stopped_looks >= deadlines.STOPPED_LOOKS:
                    return "Ray's manager (raylet) was stopped"
                looked = self._clock()
                silence = self._silence()
                if not silence:
                    cut_off_since = None
                elif cut_off_since is None:  # one look never decides: this process may have been stopped during it
                    cut_off_since = looked
                elif self._clock() - cut_off_since >= deadlines.CUT_OFF_SECONDS:
                    self._attempt = 0  # the network's fault, not Ray's: the first attempt comes once the head answers
                    is_head = self._spec.role == "head"
                    what = "Ray's control store did not answer" if is_head else "the head was out of reach"
                    return f"{what} for {deadlines.CUT_OFF_SECONDS:.0f} s: {silence}"
        finally:
            if ended is not None:
                os.close(ended)
            with suppress(ChildProcessError):  # a Ray that `node start` started is not a child of this process
                os.waitpid(record.pid, os.WNOHANG)
        return ray_command.explain_end(ray_node.said(record))

    def _ray_ended(self, cause: str) -> None:
        now = time.time()
        if self._spec.role == "head":
            state = replace(
                self._state, phase=supervision.ENDED, cause=f"the head's Ray ended: {cause}", hint=HEAD_ENDED
            )
        else:
            state = replace(self._state, phase=supervision.RESTARTING, cause=cause)
        self._say(replace(state, since=now, ended=now))
        _log(state.cause)

    def _end_runs(self) -> None:
        """End the coordinators: they would wait for the head's Ray for a minute, and fail then.

        Without a last event a run is there to be gone on with, by the laptop that follows it or by `resume`.
        """
        runs = [name for name in processes.recorded_names(self._folder) if name.startswith(layout.RUN_PREFIX)]
        found = [process for name in runs if (process := processes.find_named(self._folder, name)) is not None]
        processes.stop_processes(self._folder, found, 0.0)

    def _try_to_join(self) -> ProcessRecord | None:
        """One attempt, after its pause: the record of a Ray that has joined, or None."""
        self._attempt += 1
        self._pause(supervision.pause_before(self._attempt))
        self._await_head()
        record: ProcessRecord | None = None
        try:
            record = self._ray = ray_node.launch(self._folder, self._spec)
            ray_node.await_join(self._folder, record, self._pause)
        except (NodeError, processes.LaunchError, ray_command.UnsafeFolderError, OSError) as error:
            if record is not None:
                ray_node.stop(self._folder, record)
            self._failed(error)
            return None
        seconds = time.time() - self._state.ended
        _log(f"joined again, {seconds:.1f} s after Ray ended")
        self._state = replace(self._state, restarts=self._state.restarts + 1)
        return record

    def _await_head(self) -> None:
        """Return as soon as the head answers.

        Raises:
            ClusterGone: it has not for an hour.
        """
        pause = deadlines.HEAD_POLL_SECONDS
        ends = self._clock() + deadlines.CLUSTER_GONE_SECONDS
        while silence := self._silence():
            where = protocol.join_address(self._spec.head_address, self._spec.gcs_port)
            self._explain(
                f"the head's Ray at {where} can't be reached from this machine: {silence}",
                "it joins by itself once the head answers; `down` ends that",
            )
            if self._clock() >= ends:
                raise ClusterGone
            self._pause(pause)
            pause = min(2 * pause, deadlines.HEAD_POLL_LONGEST_SECONDS)

    def _silence(self) -> str:
        """Why the head does not answer, if it does not; the cluster's own network, where it has one, is up for that."""
        cause = mesh.restore(self._folder)
        if cause is not None and cause != self._mesh_cause:
            _log(f"WireGuard can't be brought up again: {cause}" if cause else "WireGuard was down, and is up again")
        self._mesh_cause = cause or ""
        return ray_node.head_silence(self._spec)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, NodeError):
            cause, hint = error.cause, error.hint
        else:
            cause, hint = str(error), ray_command.ENVIRONMENT_HINT
        self._explain(cause, hint)
        self._say(replace(self._state, failures=self._state.failures + 1))

    def _explain(self, cause: str, hint: str) -> None:
        """Say why Ray is not back yet; the log names a cause once and not at every attempt."""
        if (self._state.cause, self._state.hint) != (cause, hint):
            _log(cause)
            self._say(replace(self._state, phase=supervision.RESTARTING, cause=cause, hint=hint))

    def _say(self, state: Supervision) -> None:
        self._state = state
        with suppress(OSError):  # a full disk: what is shown grows old, and Ray is kept running all the same
            supervision.write(self._folder, state)

    def _end(self) -> int:
        record = processes.read_record(self._folder, layout.RAY)
        if record is not None:
            try:
                ray_node.stop(self._folder, record)
            except NodeError as error:
                _log(error.cause)
                return 1
            processes.forget(self._folder, layout.RAY)
        return 0


def launch(folder: Path) -> ProcessRecord:
    """Start the supervisor of this machine's node, unless one runs; raises LaunchError."""
    if processes.find_named(folder, layout.SUPERVISOR) is None:
        supervision.forget(folder)
    log = layout.supervisor_log_path(folder)
    argv = [sys.executable, "-m", "remote_agent.host.supervisor", "--folder", str(folder)]
    return processes.launch(folder, layout.SUPERVISOR, argv, log)


def stop(folder: Path) -> None:
    """Have the supervisor end, and Ray with it; nothing happens where none runs."""
    process = processes.find_named(folder, layout.SUPERVISOR)
    if process is not None:
        processes.stop_processes(folder, [process], deadlines.SUPERVISOR_STOP_SECONDS)
    supervision.forget(folder)


def _leave(folder: Path) -> NoReturn:
    """Become ``node stop``, which this process's own record and mark must not lead to."""
    processes.forget(folder, layout.SUPERVISOR)
    environment = {name: value for name, value in os.environ.items() if name != protocol.CLUSTER_MARK}
    argv = [sys.executable, "-m", "remote_agent.host.node", "stop", "--folder", str(folder)]
    os.execve(sys.executable, argv, environment)  # noqa: S606 - no shell is wanted


def _open_process(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none, or it has ended."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a Python that was built on an old Linux has no such function
            return os.pidfd_open(pid)
    return None


def _log(text: str) -> None:
    with suppress(OSError):  # a full disk
        print(f"{stamp(time.time())} {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal or the control file ends it; the exit status is 0 then."""
    parser = argparse.ArgumentParser(prog="python -m remote_agent.host.supervisor")
    parser.add_argument("--folder", required=True, type=processes.absolute_path)
    folder: Path = parser.parse_args(arguments).folder
    signals = StopSignals()
    spec = layout.read_spec(folder)
    if spec is None:
        _log("no node was started here: nothing to keep in a cluster")
        return 1
    try:
        return Supervisor(folder, spec, signals).run()
    except ClusterGone:
        _log("the cluster is gone: this machine takes away what it has of it")
        _leave(folder)


if __name__ == "__main__":
    sys.exit(main())
