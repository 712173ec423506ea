"""Ends everything of one cluster on this machine, and says what could not be ended. See ``node``."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from remote_agent import deadlines
from remote_agent.host import layout, mesh, processes, ray_command, supervision, supervisor
from remote_agent.host.process_table import Process
from remote_agent.protocol import Leftover, StopReport
from remote_agent.runs import end


def stop(folder: Path, run_grace: float = deadlines.RUN_STOP_SECONDS) -> StopReport:
    """End the runs, then the supervisor and with it Ray, then whatever else carries this cluster's mark.

    What they need to run is removed. The environment, the runs' folders, the logs and the agent itself stay.
    """
    if not folder.is_dir():
        stopped, left = _stop_strays(folder)
        return _with_removals(StopReport(stopped=stopped, leftovers=left), folder)
    _say_so(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(processes.locked(folder, deadlines.LOCK_SECONDS))
        except TimeoutError as error:
            return StopReport(leftovers=(Leftover(kind="process", detail=str(error)),))
        except OSError:
            pass  # as below: what runs ends all the same
        return _stop(folder, run_grace)


def stop_runs(folder: Path, run_grace: float = deadlines.RUN_STOP_SECONDS) -> StopReport:
    """End the runs alone, as the beginning of a stop: their last word is written while their cluster is whole.

    From now on this machine says that it is being taken down: a laptop that follows such a run does not resume it.
    """
    if not folder.is_dir():
        return StopReport()
    _say_so(folder)
    return _stop_runs(folder, run_grace)


def _say_so(folder: Path) -> None:
    """Let other commands here know of the stop, where the disk is not full or read-only."""
    with suppress(OSError):
        layout.stop_flag(folder).touch(mode=0o600)


def _stop_runs(folder: Path, run_grace: float) -> StopReport:
    runs = {name: process for name, process in _alive(folder).items() if name.startswith(layout.RUN_PREFIX)}
    left = processes.stop_processes(folder, runs.values(), run_grace)
    ended = tuple(name for name, process in runs.items() if process not in left)
    for name in ended:
        with suppress(OSError):  # it may not have had the time for a last word, and is not to count as lost
            end(folder, name.removeprefix(layout.RUN_PREFIX))
    return StopReport(stopped=ended, leftovers=tuple(processes.leftover(process) for process in left))


def _alive(folder: Path) -> dict[str, Process]:
    found = {name: processes.find_named(folder, name) for name in processes.recorded_names(folder)}
    return {name: process for name, process in found.items() if process is not None}


def _stop(folder: Path, run_grace: float) -> StopReport:
    runs = _stop_runs(folder, run_grace).stopped
    others = _alive(folder)
    with suppress(OSError):  # it ends in any case; what can't be removed is said below
        supervisor.stop(folder)
    processes.stop_processes(folder, others.values(), deadlines.STOP_SECONDS)
    strays, leftovers = _stop_strays(folder)
    ended = [name for name in (*runs, *others) if processes.find_named(folder, name) is None]
    return _with_removals(StopReport(stopped=(*ended, *strays), leftovers=leftovers), folder)


def _stop_strays(folder: Path) -> tuple[tuple[str, ...], tuple[Leftover, ...]]:
    stopped, left = processes.stop_marked(folder, deadlines.STRAY_STOP_SECONDS)
    names = tuple(f"{process.name} (PID {process.pid})" for process in stopped)
    return names, tuple(processes.leftover(process) for process in left)


def _with_removals(report: StopReport, folder: Path) -> StopReport:
    """Remove what belonged to the processes. While one of them lives, its record and token stay for the next try."""
    if report.leftovers:
        return report
    meshed, left = mesh.down(folder)
    removed, leftovers = [*meshed], [*left]
    folders = (folder / "ray", ray_command.short_folder(folder), folder / "processes", folder / processes.CACHE)
    with suppress(OSError):
        layout.stop_flag(folder).unlink(missing_ok=True)
    for path in folders:
        if not ray_command.is_own_folder(path):
            continue
        shutil.rmtree(path, ignore_errors=True)  # all that can be
        try:
            if path.exists():
                shutil.rmtree(path)
            removed.append(str(path))
        except OSError as error:
            leftovers.append(Leftover(kind="folder", detail=f"{path} could not be removed: {error.strerror}"))
    for path in (
        layout.token_path(folder),
        layout.tls_path(folder),
        layout.authority_path(folder),
        layout.spec_path(folder),
        supervision.path(folder),
    ):
        if path.exists() or path.is_symlink():
            try:
                path.unlink(missing_ok=True)
                removed.append(str(path))
            except OSError as error:
                leftovers.append(Leftover(kind="folder", detail=f"{path} could not be removed: {error.strerror}"))
    with suppress(OSError):
        processes.lock_path(folder).unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            removed.append(str(folder))
    return replace(report, removed=tuple(removed), leftovers=tuple(leftovers))
