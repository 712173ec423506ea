"""One start of Ray on this machine, from the command to the joined node, and its end with nothing left.

``node start`` uses it for the first time and the supervisor for every time after that. Waiting is the caller's: it
passes a :data:`Pause`, which waits for some seconds and raises when the whole attempt has to end.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

from remote_agent import deadlines, plain_file, probe, tls
from remote_agent.host import layout, process_table, processes, ray_command
from remote_agent.protocol import NodeSpec, ProcessRecord

Pause = Callable[[float], None]
"""Wait so many seconds; raises what ends the attempt (a ``down``, a SIGTERM)."""


class NodeError(Exception):
    """This machine could not become a node: ``cause`` is what happened, ``hint`` what to do about it."""

    def __init__(self, cause: str, hint: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.hint = hint


def launch(folder: Path, spec: NodeSpec) -> ProcessRecord:
    """Start Ray as ``spec`` says, recorded and marked; the log of the start before is kept as ``ray.previous.log``.

    Raises:
        NodeError: the token or the certificate is missing, or open to other users.
        LaunchError, OSError: the program or its folder can't be used.
    """
    token, bundle = check_secrets(folder)
    log = layout.log_path(folder)
    if log.exists():
        log.replace(log.with_name("ray.previous.log"))
    ray_folder = ray_command.ray_folder(folder)
    ray_command.private_folder(ray_folder.parent)
    # Ray numbers its sockets where old ones lie, and the longer names may no longer fit into a socket's path.
    for sockets in ray_folder.glob("session_*/sockets"):
        shutil.rmtree(sockets, ignore_errors=True)
    # The dashboard's parts speak plain HTTP to each other, over the network too, which Ray's TLS is not for.
    dashboard = ray_command.dashboard_installed() and not spec.encrypted
    argv = ray_command.arguments(spec, ray_folder, _object_store(), dashboard=dashboard)
    environment = ray_command.environment(os.environ, token, bundle, encrypted=spec.encrypted)
    return processes.launch(folder, layout.RAY, argv, log, environment)


def check_secrets(folder: Path) -> tuple[Path, Path]:
    """The cluster's token and the file with this machine's certificate.

    The laptop wrote them; only this user may be able to read them.

    Raises:
        NodeError: one is not there, or other users may read it.
    """
    token, bundle = layout.token_path(folder), layout.tls_path(folder)
    _check_secret(token, "the cluster's token", "run `up` again: it sends the token first")
    _check_secret(bundle, "this machine's certificate", "run `down`, then `up`: all get certificates of one authority")
    return token, bundle


def _check_secret(path: Path, what: str, missing: str) -> None:
    try:
        status = path.lstat()
        text = plain_file.read_text(path).strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text:
        raise NodeError(f"{what} is missing ({path})", missing)
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or path.is_symlink():
        raise NodeError(
            f"{what} may be read by other users ({path} has mode {status.st_mode & 0o777:04o})",
            "run `down`, then `up`: that makes a new one which only you may read",
        )


def head_silence(spec: NodeSpec) -> str:
    """Why the head's port does not answer this machine now; empty when it does."""
    try:
        with socket.create_connection((spec.head_address, spec.gcs_port), deadlines.CONNECT_SECONDS) as sock:
            tls.meet(sock, layout.tls_path(processes.absolute_path(spec.folder)), spec.head_address)
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def await_join(folder: Path, record: ProcessRecord, pause: Pause) -> None:
    """Wait until this machine is a node; raises NodeError if Ray ends, or needs more than ``JOIN_SECONDS``."""
    ends = time.monotonic() + deadlines.JOIN_SECONDS
    while True:
        alive = processes.find_ours(folder, record) is not None
        text = said(record)
        if not alive:
            raise NodeError(*ray_command.explain(text))
        if ray_command.STARTED_LINE in text:
            return
        if time.monotonic() >= ends:
            error = ray_command.last_error(text)
            raise NodeError(
                f"Ray did not join the cluster within {deadlines.JOIN_SECONDS:.0f} s{error and ': '}{error}",
                "see that the head's Ray still runs (`status`), and that this machine is not too busy; its log is"
                f" {record.log}",
            )
        pause(deadlines.POLL_SECONDS)


def said(record: ProcessRecord) -> str:
    """What Ray has written to its log since it was started."""
    log = Path(record.log)
    return log.read_text(errors="replace") if log.is_file() else ""


def managers(folder: Path, record: ProcessRecord) -> tuple[int, ...]:
    """PIDs of Ray's manager (raylet) of a Ray that runs: the head declares this machine dead without it."""
    found = process_table.find_marked(folder)
    return tuple(process.pid for process in found if process.session == record.pid and process.name == "raylet")


def stop(folder: Path, record: ProcessRecord, grace: float = deadlines.STOP_SECONDS) -> None:
    """End a Ray that is not wanted any more, with all that it started: they share its session.

    It has ``grace`` seconds to end by itself; one without its head would wait for it in vain.

    Raises:
        NodeError: something outlived SIGKILL.
    """
    ray = processes.find_ours(folder, record)
    if ray is not None:
        processes.stop_processes(folder, [ray], grace)
    orphans = [process for process in process_table.find_marked(folder) if process.session == record.pid]
    left = processes.stop_processes(folder, orphans, deadlines.STRAY_STOP_SECONDS)
    if left:
        raise NodeError(processes.leftover(left[0]).detail, "restart this machine: a process hangs in a driver")


def _object_store() -> int:
    memory = probe.read_memory(probe.Commands(deadlines.VENDOR_COMMAND_SECONDS))
    available = memory["available_bytes"] or memory["total_bytes"] or 0
    simulated = ray_command.is_simulated(os.environ)
    return ray_command.object_store_bytes(available, ray_command.shared_memory_bytes(), simulated=simulated)
