"""Owns this machine's Ray: starts it, says how it is, and has it stopped so that nothing is left.

On the command line (one JSON line on stdout, exit code 0 or 1)::

    python -m remote_agent.node start                            NodeSpec on stdin -> NodeReport
    python -m remote_agent.node status --folder F                -> NodeReport
    python -m remote_agent.node stop --folder F [--run-grace S]  -> StopReport; 1 when something is left

Each can be killed at any moment: the next one goes on from what lies on disk (the processes' records and ``node.json``,
both written before what they describe) and from the mark that every process of ours carries. ``start`` leaves a node
alone that already runs as wanted. ``stop`` ends only processes of this cluster, by PID; another Ray of the same user,
which ``ray stop`` would take down, is not touched.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from remote_agent import deadlines, layout, probe, process_table, processes, ray_command, teardown
from remote_agent.protocol import (
    NodeReport,
    NodeSpec,
    ProcessRecord,
    ProtocolError,
    decode,
    encode,
)


class NodeError(Exception):
    """This machine could not become a node: ``cause`` is what happened, ``hint`` what to do about it."""

    def __init__(self, cause: str, hint: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.hint = hint


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
        return NodeReport(host=spec.host, state="failed", cause=error.cause, hint=error.hint)
    except processes.LaunchError as error:
        return NodeReport(host=spec.host, state="failed", cause=str(error), hint="run `bootstrap`, then `up` again")
    except TimeoutError as error:
        hint = "another `up` or `down` works on this machine: wait until it is done"
        return NodeReport(host=spec.host, state="failed", cause=str(error), hint=hint)
    except (ray_command.UnsafeFolderError, OSError) as error:
        hint = "see that this user owns that place and that its disk has room"
        return NodeReport(host=spec.host, state="failed", cause=str(error), hint=hint)


def _start(folder: Path, spec: NodeSpec) -> NodeReport:
    token = _check_token(folder)
    record = processes.read_record(folder, layout.RAY)
    if record is not None and processes.find_ours(folder, record) is not None and _same(layout.read_spec(folder), spec):
        _await_join(folder, record)
        return NodeReport(host=spec.host, state="running", pid=record.pid, already=True, spec=spec)
    if record is not None:
        _stop_ray(folder, record)
    log = layout.log_path(folder)
    if log.exists():
        log.replace(log.with_name("ray.previous.log"))
    if spec.role == "head":
        _check_port_is_free(spec.gcs_port)
    else:
        _await_head(folder, spec)
    ray_folder = ray_command.ray_folder(folder)
    processes.write_private(layout.spec_path(folder), encode(spec) + "\n")
    ray_command.private_folder(ray_folder.parent)
    argv = ray_command.arguments(spec, ray_folder, _object_store(), dashboard=ray_command.dashboard_installed())
    record = processes.launch(folder, layout.RAY, argv, log, ray_command.environment(os.environ, token))
    try:
        _await_join(folder, record)
    except NodeError:
        _stop_ray(folder, record)
        raise
    return NodeReport(host=spec.host, state="running", pid=record.pid, spec=spec)


def _same(running: NodeSpec | None, wanted: NodeSpec) -> bool:
    """Whether a node that runs is the one that is wanted; the dashboard's port is not worth a restart."""
    return running is not None and replace(running, dashboard_port=wanted.dashboard_port) == wanted


def _check_token(folder: Path) -> Path:
    """The cluster's token, which the laptop wrote; only this user may be able to read it."""
    token = layout.token_path(folder)
    try:
        status = token.lstat()
        text = token.read_text().strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text:
        raise NodeError(f"the cluster's token is missing ({token})", "run `up` again: it sends the token first")
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or token.is_symlink():
        raise NodeError(
            f"the cluster's token may be read by other users ({token} has mode {status.st_mode & 0o777:04o})",
            "run `down`, then `up`: that makes a new token which only you may read",
        )
    return token


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


def _await_head(folder: Path, spec: NodeSpec) -> None:
    """Wait until the head's port answers: both machines start at the same time."""
    ends = time.monotonic() + deadlines.HEAD_REACHABLE_SECONDS
    where = ray_command.join_address(spec.head_address, spec.gcs_port)
    while True:
        try:
            socket.create_connection((spec.head_address, spec.gcs_port), deadlines.CONNECT_SECONDS).close()
        except OSError as error:
            why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        else:
            return
        if time.monotonic() >= ends:
            seconds = f"{deadlines.HEAD_REACHABLE_SECONDS:.0f} s"
            raise NodeError(
                f"the head's Ray at {where} could not be reached from this machine within {seconds}: {why}",
                f"see that the head is up and that no firewall closes port {spec.gcs_port} between the two",
            )
        _give_way_to_stop(folder)
        time.sleep(deadlines.HEAD_POLL_SECONDS)


def _await_join(folder: Path, record: ProcessRecord) -> None:
    """Wait until Ray says that this machine is a node, or ends."""
    ends = time.monotonic() + deadlines.JOIN_SECONDS
    log = Path(record.log)
    while True:
        alive = processes.find_ours(folder, record) is not None
        text = log.read_text(errors="replace") if log.exists() else ""
        if not alive:
            raise NodeError(*ray_command.explain(text))
        if ray_command.STARTED_LINE in text:
            return
        if time.monotonic() >= ends:
            raise NodeError(
                f"Ray did not join the cluster within {deadlines.JOIN_SECONDS:.0f} s",
                f"see that the head's Ray still runs (`status`); this machine's log is {log}",
            )
        _give_way_to_stop(folder)
        time.sleep(deadlines.POLL_SECONDS)


def _give_way_to_stop(folder: Path) -> None:
    if layout.stop_flag(folder).exists():
        raise NodeError("the cluster was taken down while this machine was joining it")


def _object_store() -> int:
    memory = probe.read_memory(probe.Commands(deadlines.VENDOR_COMMAND_SECONDS))
    available = memory["available_bytes"] or memory["total_bytes"] or 0
    simulated = ray_command.is_simulated(os.environ)
    return ray_command.object_store_bytes(available, ray_command.shared_memory_bytes(), simulated=simulated)


def _stop_ray(folder: Path, record: ProcessRecord) -> None:
    """End a Ray that is not wanted any more, with all that it started: they share its session."""
    ray = processes.find_ours(folder, record)
    if ray is not None:
        processes.stop_processes(folder, [ray], deadlines.STOP_SECONDS)
    orphans = [process for process in process_table.find_marked(folder) if process.session == record.pid]
    left = processes.stop_processes(folder, orphans, deadlines.STRAY_STOP_SECONDS)
    if left:
        raise NodeError(processes.leftover(left[0]).detail, "restart this machine: a process hangs in a driver")


# --- Status --------------------------------------------------------------------------------------------------------


def status(folder: Path) -> NodeReport:
    """Whether this machine's Ray runs. Whether the cluster counts it as alive is the head's to say."""
    spec = layout.read_spec(folder)
    host = spec.host if spec else ""
    process = processes.find_named(folder, layout.RAY)
    if process is not None:
        return NodeReport(host=host, state="running", pid=process.pid, spec=spec)
    cause = "Ray has ended on this machine" if processes.read_record(folder, layout.RAY) else "Ray was not started here"
    return NodeReport(host=host, state="stopped", cause=cause, hint="run `up`", spec=spec)


def ray_state(folder: Path) -> str:
    """``running``, ``stopped`` (it was started and has ended) or ``none``: the word of a :class:`HostSample`."""
    record = processes.read_record(folder, layout.RAY)
    if record is None:
        return "none"
    return "stopped" if processes.find_ours(folder, record) is None else "running"


# --- Command line --------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m remote_agent.node", description="This machine's Ray node.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("start")
    for name in ("status", "stop"):
        commands.add_parser(name).add_argument("--folder", required=True, type=processes.absolute_path)
    commands.choices["stop"].add_argument("--run-grace", type=float, default=deadlines.RUN_STOP_SECONDS)
    options = parser.parse_args(arguments)
    if options.command == "stop":
        stopped = teardown.stop(options.folder, options.run_grace)
        print(encode(stopped), flush=True)
        return 1 if stopped.leftovers else 0
    report = status(options.folder) if options.command == "status" else _start_from(sys.stdin.readline())
    print(encode(report), flush=True)
    return 1 if report.state == "failed" else 0


def _start_from(line: str) -> NodeReport:
    try:
        return start(decode(NodeSpec, line))
    except ProtocolError as error:
        return NodeReport(host="", state="failed", cause=f"not a node specification: {error}", hint="run `up` again")


if __name__ == "__main__":
    sys.exit(main())
