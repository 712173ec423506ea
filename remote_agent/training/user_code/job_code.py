"""The user's files that a run needs on its hosts: the job's, and what goes with it (:mod:`hetero_tui.runs.code`).

They come as one archive in the run's folder (:data:`~remote_agent.protocol.JOB_ARCHIVE`), which is copied to further
hosts with the run's history and travels to the workers with the job. Every process that runs the user's code unpacks it
on its host, once a host, and enters it: there relative paths and imports find what lay beside the job.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shutil
import sys
import sysconfig
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from remote_agent.errors import chain
from remote_agent.protocol import CLUSTER_MARK, JOB_ARCHIVE, JOB_CODE, JOB_LEFT, PLANS
from remote_agent.training.errors import JobError
from remote_agent.training.user_code.importing import PREFIX

FOLDER = "job"
"""In a run's folder: the unpacked files."""


@dataclass(frozen=True)
class Sent:
    """An archive, and the folder of its run on the head."""

    archive: bytes
    folder: Path


"""A text in Python's code."""

"""Files that were not sent and are named in one sentence."""

_MAINS = ("__main__", "__mp_main__")
_sent: Sent | None = None
_root: Path | None = None
_left: frozenset[str] = frozenset()


def entered(folder: Path) -> bool:
    """Unpack the archive in a run's ``folder`` and enter it; false: there is none, the job is a file in the folder.

    Raises:
        JobError: it can't be read or unpacked.
    """
    try:
        archive = (folder / JOB_ARCHIVE).read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JobError(f"can't read {folder / JOB_ARCHIVE}: {error.strerror}") from error
    _enter(Sent(archive, folder), folder)
    return True


def enter_there(sent: Sent) -> None:
    """The same on another host, or the same one, with an archive that came with the job; raises JobError.

    That of a plan is unpacked among the plans there, which `down` removes, and not among the runs, which it keeps.
    """
    mark = os.environ.get(CLUSTER_MARK)  # without it this is no cluster of ours, but a test's, with one file system
    among = PLANS if sent.folder.parent.name == PLANS else "runs"
    _enter(sent, Path(mark) / among / sent.folder.name if mark else sent.folder)


def sent() -> Sent | None:
    """What this process has entered."""
    return _sent


def _enter(sent: Sent, folder: Path) -> None:
    global _root, _sent, _left
    root = (folder / FOLDER).resolve()
    try:
        with zipfile.ZipFile(io.BytesIO(sent.archive)) as files:
            left = json.loads(files.read(JOB_LEFT))
            if not root.is_dir():
                _unpack(files, root)
        os.chdir(root)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise JobError(
            f"can't unpack the job's files into {root}: {error}", hint="check the disk's free space"
        ) from error
    _root, _sent, _left = root, sent, frozenset(map(str, left))
    if str(root) not in sys.path:
        # After Python's own modules, as of which none may be hidden, and before what is installed: as for a script.
        installed = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
        place = next((n for n, path in enumerate(sys.path) if path in installed), len(sys.path))
        sys.path.insert(place, str(root))
    importlib.invalidate_caches()


def modules() -> Iterator[ModuleType]:
    """The loaded modules that lie with the job's file: those of its archive, or else beside the script that runs."""
    root = _root or _script_folder()
    if root is None:
        return
    for name, module in tuple(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or module.__name__ != name or name.startswith((*_MAINS, PREFIX)):
            continue
        if Path(file).resolve().is_relative_to(root):
            yield module


def _script_folder() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file is not None else None


def advice(error: BaseException) -> str:
    """What to do where ``error`` is about a file that lies beside the job on the laptop and was not sent; or empty."""
    for name in _names_in(error):
        left = _left_behind(name)
        if left:
            return f"{left} lies beside the job and was not sent: start the run with --with {left}"
        if _root is not None and Path(name).is_absolute() and f"/{FOLDER}/" in name and not Path(name).exists():
            return f"{name} is a path of another host: name it relative to the job's folder"
    return ""


def _names_in(error: BaseException) -> list[str]:
    """The names of files or modules that an exception, or what it was raised from, did not find."""
    names: list[str] = []
    for each in chain(error):
        if len(names) >= 10:
            break
        if isinstance(each, ModuleNotFoundError) and each.name:
            names += [each.name.replace(".", "/") + ending for ending in ("/__init__.py", ".py")]
        elif isinstance(each, OSError) and isinstance(each.filename, str | bytes):
            names.append(os.fsdecode(each.filename))
        elif isinstance(each, OSError | ValueError | RuntimeError):  # libraries that say it in words only
            names += re.findall(r"[\w./-]+", str(each))[:50]
    return names


def _left_behind(name: str) -> str:
    """What of :data:`_left` has to be sent for ``name`` to be there: it, or the folder that it is; empty: nothing."""
    if _root is None or not name:
        return ""
    path = os.path.normpath(_root / name)
    relative = os.path.relpath(path, _root)
    if relative.startswith("..") or relative == ".":
        return ""
    if relative in _left:
        return relative
    return relative if any(known.startswith(f"{relative}/") for known in _left) else ""


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
