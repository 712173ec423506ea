"""This machine's node: starts Ray and its supervisor, says how they are, and has them stopped so that nothing is left.

On the command line (one JSON line on stdout, exit code 0 or 1)::

    python -m remote_agent.host.node start                            NodeSpec on stdin -> NodeReport
    python -m remote_agent.host.node status --folder F                -> NodeReport
    python -m remote_agent.host.node head --folder F                  -> HeadReport
    python -m remote_agent.host.node stop --folder F [--run-grace S]  -> StopReport; 1 when something is left
    python -m remote_agent.host.node stop-runs --folder F [--run-grace S]    -> StopReport; only the runs

Each can be killed at any moment: the next one goes on from what lies on disk (the processes' records and ``node.json``,
both written before what they describe) and from the mark that every process of ours carries. ``start`` leaves a node
alone that already runs as wanted, and gives it a new supervisor (:mod:`remote_agent.host.supervisor`) where it has lost
its own. ``stop`` ends only processes of this cluster, by PID; another Ray of the same user, which ``ray stop`` would
take down, is not touched.

A cluster that lost its head is formed anew with a larger epoch. A ``start`` with that takes away what this machine has
of the older one (its runs too, which on a head that was only cut off went on alone), and one with a smaller epoch is
refused: it comes from a laptop that does not know of the newer cluster yet.
"""

from __future__ import annotations

import argparse
import errno
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from remote_agent import deadlines, protocol, tls
from remote_agent.host import layout, processes, ray_command, ray_node, supervision, supervisor, teardown
from remote_agent.host.ray_node import NodeError
from remote_agent.protocol import (
    HeadReport,
    NodeReport,
    NodeSpec,
    ProcessRecord,
    ProtocolError,
    decode,
    encode,
)
from remote_agent.states import RayState

_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

# --- Start ---------------------------------------------------------------------------------------------------------


def start(spec: NodeSpec) -> NodeReport:
    """Make this machine a node of the cluster as ``spec`` says; returns when it is one, or why it is not."""
    folder = processes.absolute_path(spec.folder)
    try:
        ray_command.private_folder(folder)
        with processes.locked(folder, deadlines.LOCK_SECONDS):
            layout.stop_flag(folder).unlink(missing_ok=True)
            return _start(folder, spec)
    except NodeError as error:
        return NodeReport(host=spec.host, state=RayState.FAILED, cause=error.cause, hint=error.hint)
    except processes.LaunchError as error:
        return NodeReport(
            host=spec.host,
            state=RayState.FAILED,
            cause=str(error),
            hint=ray_command.ENVIRONMENT_HINT,
        )
    except TimeoutError as error:
        hint = "another `up` or `down` works on this machine: wait until it is done"
        return NodeReport(host=spec.host, state=RayState.FAILED, cause=str(error), hint=hint)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        cause = f"{error.filename} is not what it should be: {error.strerror}"
        return NodeReport(host=spec.host, state=RayState.FAILED, cause=cause, hint="move it away, then run it again")
    except (ray_command.UnsafeFolderError, OSError) as error:
        hint = "see that this user owns that place and that its disk has room"
        if isinstance(error, OSError) and error.errno in _WITHOUT_LOCKS:
            hint = (
                f"{spec.folder} is on a file system without locks, as some network folders: have"
                " ~/.hetero-tui be a link to a folder on the machine's own disk (`ln -s`)"
            )
        return NodeReport(host=spec.host, state=RayState.FAILED, cause=str(error), hint=hint)


def _start(folder: Path, spec: NodeSpec) -> NodeReport:
    ray_node.check_secrets(folder)
    pause = partial(_pause, folder)
    record = processes.read_record(folder, layout.RAY)
    watched = processes.find_named(folder, layout.SUPERVISOR) is not None
    former = layout.read_spec(folder)
    if former is not None and former.epoch > spec.epoch:
        raise NodeError("this machine is in a newer cluster of that name", "run it again: another laptop formed one")
    if _same(former, spec):
        if watched:
            record = _await_supervisor(folder, pause)
            return NodeReport(host=spec.host, state=RayState.RUNNING, pid=record.pid, already=True, spec=spec)
        if record is not None and processes.find_ours(folder, record) is not None:
            ray_node.await_join(folder, record, pause)
            supervisor.launch(folder)
            return NodeReport(host=spec.host, state=RayState.RUNNING, pid=record.pid, already=True, spec=spec)
    if former is not None and former.epoch < spec.epoch:
        _leave_older(folder)
    else:
        supervisor.stop(folder)
        if record is not None:
            ray_node.stop(folder, record)
    if spec.role == "head":
        _check_port_is_free(spec.gcs_port)
    else:
        _await_head(spec, pause)
    processes.write_private(layout.spec_path(folder), encode(spec) + "\n")
    record = ray_node.launch(folder, spec)
    try:
        ray_node.await_join(folder, record, pause)
    except NodeError:
        ray_node.stop(folder, record)
        raise
    supervisor.launch(folder)
    return NodeReport(host=spec.host, state=RayState.RUNNING, pid=record.pid, spec=spec)


def _leave_older(folder: Path) -> None:
    """End all of a cluster that was replaced, at once; raises NodeError if something outlives SIGKILL."""
    _, left = processes.stop_marked(folder, deadlines.OLDER_STOP_SECONDS)
    if left:
        raise NodeError(processes.leftover(left[0]).detail, "restart this machine: a process hangs in a driver")
    for name in processes.recorded_names(folder):
        if name != layout.RAY:
            processes.forget(folder, name)
    supervision.forget(folder)


def _await_supervisor(folder: Path, pause: ray_node.Pause) -> ProcessRecord:
    """The record of Ray once it runs and has joined; a supervisor that is bringing it back gets to do so."""
    began = time.monotonic()
    ends, failures = began + deadlines.JOIN_SECONDS, None
    while True:
        supervised, record = supervision.read(folder), processes.read_record(folder, layout.RAY)
        ray = None if record is None else processes.find_ours(folder, record)
        if (
            record is not None
            and ray is not None
            and supervised is not None
            and supervised.phase == supervision.WATCHING
        ):
            return record
        if processes.find_named(folder, layout.SUPERVISOR) is None:
            raise NodeError(
                supervised.cause if supervised and supervised.cause else "Ray's supervisor has ended", "run `up` again"
            )
        if supervised is not None:
            failures = supervised.failures if failures is None else failures
            if supervised.failures > failures or time.monotonic() >= ends:
                raise NodeError(
                    supervised.cause or "Ray did not come back", supervised.hint or "see logs/supervisor.log there"
                )
        elif time.monotonic() >= began + deadlines.LAUNCH_SECONDS:
            cause = f"Ray's supervisor does not say how it is in {supervision.path(folder)}"
            raise NodeError(cause, "run `down`, then `up`")
        pause(deadlines.POLL_SECONDS)


def _same(running: NodeSpec | None, wanted: NodeSpec) -> bool:
    """Whether a node that runs is the one that is wanted; the dashboard's port is not worth a restart."""
    return running is not None and replace(running, dashboard_port=wanted.dashboard_port) == wanted


def _check_port_is_free(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        if sys.platform == "linux":  # elsewhere this option lets two sockets share a port
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind(("", port))
        except OSError as error:
            raise NodeError(
                f"port {port} is taken on this machine ({error.strerror})",
                "run `up` again: it picks a port that is free",
            ) from None


def _await_head(spec: NodeSpec, pause: ray_node.Pause) -> None:
    """Wait until the head's port answers: both machines start at the same time."""
    ends = time.monotonic() + deadlines.HEAD_REACHABLE_SECONDS
    where = protocol.join_address(spec.head_address, spec.gcs_port)
    while silence := ray_node.head_silence(spec):
        if silence.startswith(tls.DISTRUST):
            raise NodeError(
                f"the head at {where} and this machine: {silence}",
                "run `down`, then `up`: all get fitting certificates",
            )
        if time.monotonic() >= ends:
            seconds = f"{deadlines.HEAD_REACHABLE_SECONDS:.0f} s"
            raise NodeError(
                f"the head's Ray at {where} could not be reached from this machine within {seconds}: {silence}",
                f"see that the head is up and that no firewall closes port {spec.gcs_port} between the two",
            )
        pause(deadlines.HEAD_POLL_SECONDS)


def _pause(folder: Path, seconds: float) -> None:
    """Wait, and give way to a ``stop`` that waits for this machine."""
    if layout.stop_flag(folder).exists():
        raise NodeError("the cluster was taken down while this machine was joining it")
    time.sleep(seconds)


# --- Status --------------------------------------------------------------------------------------------------------


def status(folder: Path) -> NodeReport:
    """Whether this machine's Ray runs. Whether the cluster counts it as alive is the head's to say."""
    if layout.stop_flag(folder).exists():  # what still runs is about to end, and nothing may be built on it
        return NodeReport(host="", state=RayState.STOPPED, cause="it is being taken down", hint="wait, then run `up`")
    spec, supervised = layout.read_spec(folder), supervision.read(folder)
    report = NodeReport(
        host=spec.host if spec else "",
        state=RayState.STOPPED,
        restarts=supervised.restarts if supervised else 0,
        spec=spec,
    )
    match ray_state(folder):
        case RayState.RESTARTING:
            cause, hint = (supervised.cause, supervised.hint) if supervised is not None else ("", "")
            return replace(report, state=RayState.RESTARTING, cause=cause or "Ray has just ended", hint=hint)
        case (RayState.STARTING | RayState.RUNNING) as state:
            process = processes.find_named(folder, layout.RAY)
            report = replace(report, state=state, pid=process.pid if process else None)
            if state is RayState.STARTING or processes.find_named(folder, layout.SUPERVISOR) is not None:
                return report
            why = "the `up` that started it was cut off" if supervised is None else "its supervisor has ended"
            return replace(report, cause=f"should Ray end, it stays so until `up`: {why}", hint="run `up`")
        case RayState.NONE:
            return replace(report, cause="Ray was not started here", hint="run `up`")
        case _ if supervised is not None and supervised.phase == supervision.ENDED:
            return replace(report, cause=supervised.cause, hint=supervised.hint)
        case _:
            record = processes.read_record(folder, layout.RAY)
            why = ray_command.explain_end(ray_node.said(record)) if record is not None else "it left no record"
            return replace(report, cause=f"Ray has ended on this machine: {why}", hint="run `up`")


def head(folder: Path) -> HeadReport:
    """Whether the head's Ray answers this machine, now: what the laptop asks when it can't reach the head itself."""
    spec = layout.read_spec(folder)
    if spec is None or layout.stop_flag(folder).exists():
        return HeadReport(answers=False, silence="no node was started here")
    silence = ray_node.head_silence(spec)
    return HeadReport(answers=not silence, silence=silence, epoch=spec.epoch)


def ray_state(folder: Path) -> RayState:
    """How Ray stands on this machine."""
    supervised, record = supervision.read(folder), processes.read_record(folder, layout.RAY)
    watched = processes.find_named(folder, layout.SUPERVISOR) is not None
    if watched and supervised is not None and supervised.phase == supervision.RESTARTING:
        return RayState.RESTARTING
    if supervised is not None and supervised.phase == supervision.ENDED:
        return RayState.STOPPED  # where it still runs, its supervisor is ending it, and nothing may be built on it
    if record is None:
        return RayState.NONE
    if processes.find_ours(folder, record) is not None:
        # Once it has joined, it gets a supervisor, whose state stays, from what holds the folder until then.
        is_begun = watched or supervised is not None or not processes.is_locked(folder)
        return RayState.RUNNING if is_begun else RayState.STARTING
    if layout.stop_flag(folder).exists():
        return RayState.NONE  # it is being taken down, and did not end by itself
    spec = layout.read_spec(folder)
    # It ended this very moment: its supervisor is about to say so.
    is_back_soon = watched and spec is not None and spec.role != "head"
    return RayState.RESTARTING if is_back_soon else RayState.STOPPED


# --- Command line --------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m remote_agent.host.node", description="This machine's Ray node.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("start")
    ends = {"stop": teardown.stop, "stop-runs": teardown.stop_runs}
    for name in ("status", "head", *ends):
        commands.add_parser(name).add_argument("--folder", required=True, type=processes.absolute_path)
    for name in ends:
        commands.choices[name].add_argument("--run-grace", type=float, default=deadlines.RUN_STOP_SECONDS)
    options = parser.parse_args(arguments)
    if options.command in ends:
        stopped = ends[options.command](options.folder, options.run_grace)
        print(encode(stopped), flush=True)
        return 1 if stopped.leftovers else 0
    if options.command == "head":
        print(encode(head(options.folder)), flush=True)
        return 0
    report = status(options.folder) if options.command == "status" else _start_from(sys.stdin.readline())
    print(encode(report), flush=True)
    return 1 if report.state is RayState.FAILED else 0


def _start_from(line: str) -> NodeReport:
    try:
        return start(decode(NodeSpec, line))
    except ProtocolError as error:
        return NodeReport(
            host="", state=RayState.FAILED, cause=f"not a node specification: {error}", hint="run `up` again"
        )


if __name__ == "__main__":
    sys.exit(main())
