"""Processes of ours on this machine: started with a record and a mark, and stopped only when both match.

A process is ours when its PID is alive, its kernel start time equals the recorded one (a PID is used again) and its
environment holds :data:`~remote_agent.protocol.CLUSTER_MARK` with this cluster's folder. Nothing else is signalled.

There is never a process without a record: :func:`launch` starts this module's ``exec`` in a session of its own, which
writes ``<folder>/processes/<name>.json`` about itself and only then becomes the program, keeping PID and start time.
What the program starts inherits the mark, so orphans of a killed parent are found too.

On the command line (one JSON line each on stdout)::

    python -m remote_agent.host.processes launch --folder F --name N --log L -- PROGRAM ARGUMENT...   -> ProcessRecord
    python -m remote_agent.host.processes stop --folder F --name N [--grace SECONDS]                  -> StopReport
    python -m remote_agent.host.processes alive --folder F --name N                                   exit code 0 or 1
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from remote_agent import deadlines, plain_file
from remote_agent.host import process_table
from remote_agent.host.process_table import Process, find_marked
from remote_agent.protocol import (
    CLUSTER_MARK,
    SAME_HASHES,
    Leftover,
    ProcessRecord,
    ProtocolError,
    StopReport,
    decode,
    encode,
)

AGENT_PATH = Path(__file__).resolve().parents[2]
"""Folder that holds the ``remote_agent`` package which is running now."""

CACHE = "cache"
"""Name of the folder, in a cluster's, for what libraries compile and keep; it goes with the cluster."""

_STEERS_BASH = frozenset({"SSH_CLIENT", "SSH2_CLIENT", "BASH_ENV", "ENV"})
"""With one of these, each ``bash -c`` reads the user's start-up file: Ray starts its workers so, and what it sets there
(PYTHONHOME, another folder, ``exit``) would reach them all."""

TRACES_GRPC = frozenset({"GRPC_TRACE", "GRPC_VERBOSITY"})
"""With these, each process that speaks to Ray writes what it sends into its log: the cluster's token, too."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class LaunchError(Exception):
    """A program could not be started; the text says why."""


def absolute_path(text: str) -> Path:
    """An absolute path from ``~/...`` or any other. Links are kept: the result is the mark, which must not change."""
    return Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100


# --- Records -------------------------------------------------------------------------------------------------------


def record_path(folder: Path, name: str) -> Path:
    """Where the record of the process ``name`` lies; raises ValueError if that is no plain file name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a process name: {name!r}")
    return folder / "processes" / f"{name}.json"


def read_record(folder: Path, name: str) -> ProcessRecord | None:
    """The record of a process that was started under this name; None when there is none, or it can't be read."""
    try:
        return decode(ProcessRecord, plain_file.read_text(record_path(folder, name)))
    except (OSError, ProtocolError, UnicodeDecodeError):
        return None


def recorded_names(folder: Path) -> tuple[str, ...]:
    """The names of all records, in order."""
    return tuple(sorted(path.stem for path in (folder / "processes").glob("*.json") if _NAME.fullmatch(path.stem)))


def forget(folder: Path, name: str) -> None:
    """Remove a record; nothing happens when there is none."""
    record_path(folder, name).unlink(missing_ok=True)


def write_private(path: Path, content: str | bytes, *, survives_power_loss: bool = True) -> None:
    """Write a file that only this user may read, whole or not at all; a missing folder is made, as private.

    Without ``survives_power_loss`` it does not wait for the disk.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        if survives_power_loss:
            os.fsync(file.fileno())
    partial.replace(path)


def find_ours(folder: Path, record: ProcessRecord) -> Process | None:
    """The living process behind a record; None when it has ended, or its PID belongs to another process now."""
    process = process_table.find(record.pid)
    if process is None or process.started != record.started or process_table.mark_of(record.pid) != str(folder):
        return None
    return process


def find_named(folder: Path, name: str) -> Process | None:
    """The living process of ours with this name."""
    record = read_record(folder, name)
    return None if record is None else find_ours(folder, record)


# --- Starting ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder: Path, seconds: float) -> Iterator[None]:
    """Hold a folder for this process; the kernel lets go of it however the process ends.

    A file is locked and not the folder itself: a home folder on NFS locks only what can be written.

    Raises:
        TimeoutError: another process kept it for longer than ``seconds``.
    """
    path = lock_path(folder)
    ends = time.monotonic() + seconds
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                break
        except FileNotFoundError:
            pass  # the last holder has removed it: make a new one
        except BlockingIOError:
            if time.monotonic() >= ends:
                os.close(descriptor)
                raise TimeoutError(f"{folder} is in use by another command") from None
            time.sleep(deadlines.POLL_SECONDS)
        os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder by :func:`locked`."""
    try:
        with lock_path(folder).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def lock_path(folder: Path) -> Path:
    """The file behind :func:`locked`; the process that holds it may remove it."""
    return folder / ".lock"


def _own_variables(folder: Path) -> dict[str, str]:
    """What every process of ours has in its environment, also Ray's workers: the mark, our code, a cache, hashes."""
    return {
        CLUSTER_MARK: str(folder),
        # Ray names its processes by setproctitle, which writes the name over the environment that the kernel shows,
        # and with it over the mark, unless it is set not to (its README, "Environment variables").
        "SPT_NOENV": "1",
        "PYTHONPATH": str(AGENT_PATH),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / CACHE),
        **SAME_HASHES,
    }


def launch(
    folder: Path, name: str, argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> ProcessRecord:
    """Start a program in a session of its own, recorded and marked; one that runs under this name is left alone.

    It starts in ``folder`` with an empty stdin; what it prints is appended to ``log``. ``environment`` defaults to this
    process's own; the mark and a PYTHONPATH of nothing but this agent are set in it.

    Raises:
        LaunchError: the program can't be run, or did not start within ``LAUNCH_SECONDS``.
    """
    records = record_path(folder, name).parent
    records.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(records, deadlines.LAUNCH_SECONDS):
        record = read_record(folder, name)
        if record is not None and find_ours(folder, record) is not None:
            return record
        said = _start(folder, name, argv, log, dict(os.environ if environment is None else environment))
    record = read_record(folder, name)
    if said or record is None:
        raise LaunchError(said or f"{argv[0]} was ended before it could start; see {log}")
    return record


def _start(folder: Path, name: str, argv: Sequence[str], log: Path, environment: dict[str, str]) -> str:
    """Start the shim and wait until it has become the program; what went wrong, or an empty text."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The shim closes `ready` by becoming the program; whatever it writes there before is why it could not.
    waiting, ready = os.pipe()
    shim = [sys.executable, "-m", "remote_agent.host.processes", "exec", "--folder", str(folder), "--name", name]
    shim += ["--log", str(log), "--ready", str(ready), "--", *argv]
    try:
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
            child = subprocess.Popen(
                shim,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={key: value for key, value in environment.items() if key not in _STEERS_BASH | TRACES_GRPC}
                | _own_variables(folder),
                cwd=folder,
                start_new_session=True,
                pass_fds=[ready],
            )
    finally:
        os.close(ready)
    with os.fdopen(waiting, "rb") as answer:
        readable, _, _ = select.select([answer], [], [], deadlines.LAUNCH_SECONDS)
        if readable:
            return answer.read().decode(errors="replace")
    child.kill()
    child.wait()
    forget(folder, name)
    return f"{argv[0]} did not start within {deadlines.LAUNCH_SECONDS:.0f} s"


def _exec(folder: Path, name: str, log: str, ready: int, argv: Sequence[str]) -> int:
    """Record this process, then become the program. Returns only when that fails."""
    os.set_inheritable(ready, False)
    try:
        this = process_table.find(os.getpid())
        if this is None:
            raise OSError("the kernel does not show this process")
        record = ProcessRecord(name=name, pid=this.pid, started=this.started, log=log)
        write_private(record_path(folder, name), encode(record) + "\n")
        # A core dump would hold the cluster's secret and the user's data; where it is kept, and for whom, varies.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        os.execvp(argv[0], list(argv))  # noqa: S606 - becoming the program is the point
    except OSError as error:
        forget(folder, name)
        with contextlib.suppress(OSError):  # the process that launched this may be gone
            os.write(ready, f"{argv[0]} can't be run: {error.strerror or error}".encode())
    return 127


# --- Stopping ------------------------------------------------------------------------------------------------------


def stop_processes(folder: Path, processes: Iterable[Process], grace: float) -> tuple[Process, ...]:
    """SIGTERM, then SIGKILL for what is left after ``grace`` seconds; the processes that even so did not end."""
    left = tuple(processes)
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, deadlines.KILL_SECONDS)):
        for process in left:
            if _lives(process) and process_table.mark_of(process.pid) == str(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        left = _wait(left, seconds)
    return left


def _lives(process: Process) -> bool:
    """Whether it has not ended yet.

    Its mark does not tell: a process that ends loses its memory, and its environment with it, before it lets go of its
    files and ports.
    """
    now = process_table.find(process.pid)
    return now is not None and now.started == process.started


def _wait(processes: tuple[Process, ...], seconds: float) -> tuple[Process, ...]:
    """Those that have not ended ``seconds`` later; returns as soon as all have."""
    ends = time.monotonic() + seconds
    while True:
        processes = tuple(process for process in processes if _lives(process))
        if not processes or time.monotonic() >= ends:
            return processes
        time.sleep(deadlines.POLL_SECONDS)


def stop_named(folder: Path, name: str, grace: float) -> StopReport:
    """Stop one process by its name and forget its record; an ended one is only forgotten."""
    process = find_named(folder, name)
    if process is None:
        forget(folder, name)
        return StopReport()
    left = stop_processes(folder, [process], grace)
    if left:
        return StopReport(leftovers=tuple(leftover(process) for process in left))
    forget(folder, name)
    return StopReport(stopped=(name,))


def stop_marked(folder: Path, grace: float) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    """Stop whatever carries the cluster's mark, until nothing does: (stopped, left behind).

    A process may start another one while it is being stopped, so it is looked again until a look finds nothing new.
    """
    seen: dict[tuple[int, float], Process] = {}
    while True:
        found = {(process.pid, process.started): process for process in find_marked(folder)}
        new = {key: process for key, process in found.items() if key not in seen}
        if not new:
            stopped = tuple(process for key, process in seen.items() if key not in found)
            return stopped, tuple(found.values())
        seen |= new
        stop_processes(folder, new.values(), grace)


def leftover(process: Process) -> Leftover:
    """How a process that could not be ended is reported."""
    return Leftover(kind="process", detail=f"{process.name} (PID {process.pid}) did not end after SIGKILL")


# --- Command line --------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m remote_agent.host.processes", description=(__doc__ or "").splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("launch", "exec", "stop", "alive"):
        command = commands.add_parser(name)
        command.add_argument("--folder", required=True, type=absolute_path)
        command.add_argument("--name", required=True)
        if name in {"launch", "exec"}:
            command.add_argument("--log", required=True, type=absolute_path)
            command.add_argument("argv", nargs="+")
        if name == "exec":
            command.add_argument("--ready", required=True, type=int)
        if name == "stop":
            command.add_argument("--grace", type=float, default=deadlines.STOP_SECONDS)
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except (LaunchError, TimeoutError, ValueError, OSError) as error:
        print(f"{options.name}: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    name: str = options.name
    record_path(folder, name)
    match options.command:
        case "launch":
            print(encode(launch(folder, name, options.argv, options.log)), flush=True)
        case "exec":
            return _exec(folder, name, str(options.log), options.ready, options.argv)
        case "stop":
            report = stop_named(folder, name, options.grace)
            print(encode(report), flush=True)
            return 1 if report.leftovers else 0
        case _:
            return 0 if find_named(folder, name) is not None else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
