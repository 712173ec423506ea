"""The user's files that a run needs on its hosts: the job's, and what goes with it (:mod:`hetero_tui.runs.code`).

They come as one archive in the run's folder (:data:`~remote_agent.protocol.JOB_ARCHIVE`), which is copied to further
hosts with the run's history and travels to the workers with the job. Every process that runs the user's code unpacks it
on its host, once a host, and enters it: there relative paths and imports find what lay beside the job.
"""

from __future__ import annotations

import importlib
import inspect
import io
import os
import shutil
import sys
import sysconfig
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from remote_agent.errors import chain
from remote_agent.protocol import CLUSTER_MARK, JOB_ARCHIVE, JOB_CODE, PLANS
from remote_agent.training.errors import JobError
from remote_agent.training.user_code.importing import PREFIX, import_job
from remote_agent.training.user_code.ownership import is_users_own

FOLDER = "job"
"""In a run's folder: the unpacked files."""


@dataclass(frozen=True)
class Source:
    """Where a job comes from.

    Attributes:
        archive: the files; empty: the job's file lies in ``folder``, which all hosts share (tests).
        folder: the run's folder on the head.
        file: the name of the job's file.
        attribute: the job's name in it; empty: its only job.
    """

    archive: bytes
    folder: Path
    file: str
    attribute: str


_source: Source | None = None
_root: Path | None = None


def import_here(folder: Path, file: str, attribute: str) -> ModuleType:
    """Import ``file`` from the archive in a run's ``folder``, or from the folder itself; the rest as for the workers.

    Raises:
        JobError: the archive can't be read or unpacked, or there is no such file. What its code raises passes.
    """
    try:
        archive = (folder / JOB_ARCHIVE).read_bytes()
    except FileNotFoundError:
        archive = b""
    except OSError as error:
        raise JobError(f"can't read {folder / JOB_ARCHIVE}: {error.strerror}") from error
    return _import(Source(archive, folder, file, attribute), folder)


def import_there(source: Source) -> ModuleType:
    """Import the same on another host or in another process, once a process; raises as :func:`import_here`.

    The archive of a plan is unpacked among the plans there, which `down` removes, and not among the runs.
    """
    known = sys.modules.get(PREFIX + Path(source.file).stem)
    if known is not None and source == _source:
        return known
    mark = os.environ.get(CLUSTER_MARK)  # without it this is no cluster of ours, but a test's, with one file system
    among = PLANS if source.folder.parent.name == PLANS else "runs"
    return _import(source, Path(mark) / among / source.folder.name if mark else source.folder)


def source() -> Source | None:
    """Where this process has its job from; None: it is a ready job, or a script's."""
    return _source


def _import(source: Source, folder: Path) -> ModuleType:
    global _source
    if source.archive:
        _enter(source.archive, folder)
    path = (_root if source.archive and _root is not None else folder) / source.file
    if not path.is_file():
        raise JobError(f"there is no job file {path}", hint="name an existing file.py:Name")
    _source = source
    return import_job(
        path, lambda module: source.attribute in vars(module) if source.attribute else bool(jobs_in(module))
    )


def jobs_in(module: ModuleType) -> list[str]:
    """Names of the jobs that a file defines; a class of which an object is among them is left out."""
    found = {name: value for name, value in vars(module).items() if not name.startswith("_") and is_job(value)}
    made = [type(value) for value in found.values()]
    return [
        name
        for name, value in found.items()
        if not inspect.isclass(value) or (value.__module__ == module.__name__ and value not in made)
    ]


def is_job(value: Any) -> bool:
    """Whether ``value`` has the parts of a job, or of a ``DistributedTrainer``."""
    parts = ("create_model", "create_data")
    if all(callable(getattr(value, part, None)) for part in parts):
        return True
    return not inspect.isclass(value) and hasattr(value, "model_factory") and hasattr(value, "data_loader")


def _enter(archive: bytes, folder: Path) -> None:
    global _root
    root = (folder / FOLDER).resolve()
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            if not root.is_dir():
                _unpack(files, root)
        os.chdir(root)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise JobError(
            f"can't unpack the job's files into {root}: {error}", hint="check the disk's free space"
        ) from error
    _root = root
    if str(root) not in sys.path:
        # After Python's own modules, as of which none may be hidden, and before what is installed: as for a script.
        installed = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
        place = next((n for n, path in enumerate(sys.path) if path in installed), len(sys.path))
        sys.path.insert(place, str(root))
    importlib.invalidate_caches()


def modules() -> Iterator[ModuleType]:
    """The loaded modules that lie with the job's file, or beside the script that runs."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    root = _root or (Path(main).resolve().parent if main is not None and _source is None else None)
    for name, module in tuple(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or module.__name__ != name or name in ("__main__", "__mp_main__"):
            continue
        is_beside = root is not None and Path(file).resolve().is_relative_to(root) and is_users_own(file)
        if is_beside or name.startswith(PREFIX):
            yield module


def advice(error: BaseException) -> str:
    """What to do if ``error`` is about a file that may lie beside the job on the laptop and was not sent; or empty."""
    for each in chain(error):
        if isinstance(each, FileNotFoundError) and isinstance(each.filename, str) and _root is not None:
            name = os.path.relpath(_root / each.filename, _root)
            if not name.startswith(".."):
                return f"if {name} lies beside the job, send it along: start the run with --with {name}"
    return ""


def _unpack(files: zipfile.ZipFile, root: Path) -> None:
    """Several processes of a host may do this at a time: the first one does it for all."""
    draft = root.with_name(f".{FOLDER}-{uuid.uuid4().hex}")
    draft.mkdir(mode=0o700, parents=True)
    try:
        for entry in files.infolist():
            if entry.filename.startswith(f"{JOB_CODE}/"):
                files.extract(entry, draft)  # which keeps within it, whatever the entry is called
        try:
            (draft / JOB_CODE).rename(root)
        except OSError:
            if not root.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
