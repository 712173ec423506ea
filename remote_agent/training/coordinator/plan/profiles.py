"""Keeps what was measured of a fleet and a job, in the cluster's folder on the head, so that a plan needs no new one.

One file a job, settings and set of devices (:attr:`~remote_agent.protocol.RunSpec.profile` names it). A file that was
cut off can't be decoded, and counts as none; so it is written beside its place and then moved there.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from remote_agent import protocol
from remote_agent.planning.survey import Survey

LOG = logging.getLogger(__name__)


def place(folder: Path, name: str) -> Path | None:
    """Where what a run in ``folder`` measures is kept; None: nowhere."""
    return folder.parent.parent / protocol.PROFILES / f"{Path(name).name}.json" if name else None


def read(place: Path | None) -> Survey | None:
    """What was kept there; None: nothing, or it can't be read."""
    if place is None:
        return None
    try:
        return protocol.decode(Survey, place.read_text())
    except (OSError, UnicodeDecodeError, protocol.ProtocolError):
        return None


def keep(place: Path | None, survey: Survey) -> None:
    """Write it, unless there is no place; a full disk costs the file, not the run."""
    if place is None:
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f"{place.name}.{os.getpid()}")
        try:
            beside.write_text(protocol.encode(survey) + "\n")
            beside.replace(place)
        finally:
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()
    except (OSError, ValueError) as error:
        LOG.info("what was measured is not kept: %s", error)
