"""Keeps what was measured of a fleet and a job, in the cluster's folder on the head, so that a plan needs no new one.

One file a job, settings and set of devices (:attr:`~remote_agent.protocol.RunSpec.profile` names it). A file that was
cut off can't be decoded, and counts as none; so it is written beside its place and then moved there. What is measured
while another run, a sweep or a script shares the machines is not kept: later plans would take its speed for theirs.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from remote_agent import protocol
from remote_agent.host import process_table, processes
from remote_agent.planning.survey import Survey

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where measurements are kept: the ``file`` in the cluster's folder, for a ``run`` of this name."""

    file: Path
    run: str


def place(folder: Path, name: str) -> Place | None:
    """Where what a run in ``folder`` measures is kept; None: nowhere."""
    file = folder.parent.parent / protocol.PROFILES / f"{Path(name).name}.json"
    return Place(file, folder.name) if name else None


def read(place: Place | None) -> Survey | None:
    """What was kept there; None: nothing, or it can't be read."""
    if place is None:
        return None
    try:
        return decoded(place.file.read_text())
    except (OSError, UnicodeDecodeError):
        return None


def encoded(survey: Survey) -> str:
    """The text for :func:`decoded`; empty where a number in it is none that can be written."""
    try:
        return protocol.encode(survey)
    except ValueError:
        return ""


def decoded(text: str) -> Survey | None:
    """What was kept as ``text``; None: it can't be read."""
    try:
        return protocol.decode(Survey, text)
    except protocol.ProtocolError:
        return None


def beside(place: Place) -> tuple[str, ...]:
    """The runs, sweeps and scripts of this cluster whose processes live now, but for the place's own run."""
    folder, mark = place.file.parent.parent, protocol.run_process_name("")
    names = [name.removeprefix(mark) for name in processes.recorded_names(folder) if name.startswith(mark)]
    return tuple(name for name in names if name != place.run and _lives(folder, protocol.run_process_name(name)))


def _lives(folder: Path, name: str) -> bool:
    """As ``processes.find_named``, without the mark: it names the folder as given, and here links are resolved."""
    record = processes.read_record(folder, name)
    process = process_table.find(record.pid) if record is not None else None
    return process is not None and record is not None and process.started == record.started


def keep(place: Place | None, survey: Survey) -> None:
    """Write it, unless there is no place, or another run is :func:`beside`; a full disk costs the file, not the run."""
    if place is None:
        return
    if others := beside(place):
        LOG.info("what was measured is not kept: %s had a part of the machines", ", ".join(others))
        return
    file = place.file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            draft.write_text(protocol.encode(survey) + "\n")
            draft.replace(file)
        finally:
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()
    except (OSError, ValueError) as error:
        LOG.info("what was measured is not kept: %s", error)
