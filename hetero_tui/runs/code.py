"""The files that go to the hosts with a job: Python files around it, and what ``--with`` names.

Sent are the Python files in the job's folder and in those below it that have some, and the packages of the project that
the job lies in (beside its ``pyproject.toml``, or in ``src`` there), which are put beside the job. So a script finds
what lies beside it, and imports from the root of a repository work. Data may be large or private, so it is named with
``--with``. What is hidden, a cache or a virtual environment stays here. Nothing of the files runs or is parsed here.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetero_tui.errors import OrderError
from hetero_tui.text import meant
from remote_agent.protocol import JOB_CODE

MAX_BYTES = 64 << 20
"""Of a job's files, all together; what is larger belongs on the hosts' own disks."""

MAX_FILES = 100_000
"""Of a job."""

LARGEST = 5
"""Files that are named where there is too much."""

_CACHES = ("__pycache__", "node_modules")
_OURS = ("remote_agent", "hetero_tui", "tests")
"""Folders that no job needs, of a clone of hetero-tui."""
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # that a zip file knows; an archive says nothing of when files were written


@dataclass(frozen=True, kw_only=True)
class Code:
    """What goes with a job.

    Attributes:
        files: where each one lies in the job's folder (with ``/``), and here; the job's own file is the first.
        sizes: their bytes, in the same order.
    """

    files: Mapping[str, Path]
    sizes: tuple[int, ...]

    @property
    def others(self) -> str:
        """What goes with the job's own file, in words; empty: nothing."""
        names = list(self.files)[1:]
        shown = ", ".join(names[:LARGEST]) + (f" and {len(names) - LARGEST:,} more" if len(names) > LARGEST else "")
        return f"{shown} ({_size(sum(self.sizes[1:]))})" if names else ""

    def archive(self) -> bytes:
        """All of them, as :data:`~remote_agent.protocol.JOB_ARCHIVE`; raises OrderError if one can't be read."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
            for name, path in self.files.items():
                try:
                    out.writestr(_entry(f"{JOB_CODE}/{name}"), path.read_bytes())
                except OSError as error:
                    raise OrderError((f"can't read {path}: {error.strerror}",)) from error
        return buffer.getvalue()


def collect(file: Path, paths: Sequence[str] = ()) -> Code:
    """What goes with the job in ``file``.

    Args:
        file: the job's own; its folder is the root of the layout.
        paths: of ``--with``: files and folders, from the present folder or from the job's. One that does not lie in the
            job's folder is put beside the job, under its own name.

    Raises:
        OrderError: with every mistake at once.
    """
    root = file.parent.resolve()
    files: dict[str, Path] = {file.name: file}
    for place, folder in (("", root), *((f"{package.name}/", package) for package in _packages(root))):
        for path in _files(folder, code=True):
            files.setdefault(place + path.relative_to(folder).as_posix(), path)
    mistakes: list[str] = []
    for text in paths:
        try:
            for name, path in _named(text, root):
                if files.setdefault(name, path).resolve() != path.resolve():
                    mistakes.append(f"--with {text}: {name} would lie where {files[name]} does")
        except (_Refused, OSError) as error:
            mistakes.append(f"--with {text}: {error}")
    sizes = [path.stat().st_size for path in files.values()]
    hint = ""
    if sum(sizes) > MAX_BYTES:
        largest = sorted(zip(sizes, files, strict=True), reverse=True)[:LARGEST]
        named = ", ".join(f"{name} {_size(size)}" for size, name in largest)
        mistakes.append(f"the job's files are {_size(sum(sizes))}, more than {_size(MAX_BYTES)}; the largest: {named}")
        hint = "put large data on the hosts' own disks, and have the job read it there; or give the job its own folder"
    if mistakes:
        raise OrderError(tuple(mistakes), hint=hint)
    return Code(files=files, sizes=tuple(sizes))


def _packages(folder: Path) -> Iterator[Path]:
    """Packages of the project that ``folder`` lies in, but for those in ``folder``, which go with it."""
    top = next(path for path in (folder, *folder.parents) if not (path / "__init__.py").is_file())
    project = next((path for path in (top, *top.parents) if (path / "pyproject.toml").is_file()), top)
    for place in (project, project / "src"):
        if place != folder and place.is_dir():
            yield from (
                path
                for path in sorted(place.iterdir())
                if (path / "__init__.py").is_file() and not _stays(path) and path.name not in _OURS
            )


def _files(folder: Path, above: tuple[Path, ...] = (), *, code: bool) -> Iterator[Path]:
    """Files of a folder and of those in it, through links; ``code``: Python files, of folders that have some."""
    whole = folder.resolve()
    if whole in above:
        return
    try:
        entries = [path for path in sorted(folder.iterdir()) if not _stays(path)]
    except OSError:
        if code:
            return
        raise
    found = [path for path in entries if path.is_file() and (path.suffix == ".py" or not code)]
    yield from found
    if code and not found and above:
        return
    for path in entries:
        if path.is_dir() and not (code and path.name in _OURS):
            yield from _files(path, (*above, whole), code=code)


class _Refused(Exception):
    """What ``--with`` names can't be sent, and why."""


def _named(text: str, root: Path) -> Iterator[tuple[str, Path]]:
    """The files that one ``--with`` names: their places in the layout, and here."""
    given = Path(text).expanduser()
    path = given if given.exists() or given.is_absolute() else root / given
    path = Path(os.path.abspath(path))  # noqa: PTH100 - without following links: what is named is meant
    path = path.parent.resolve() / path.name if path.name else path
    if not path.exists():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise _Refused("a link to nothing" if path.is_symlink() else "not there" + meant(path.name, beside))
    if path != root and root.is_relative_to(path.resolve()):
        raise _Refused("the job's own folder is in it; name what of it is needed")
    place = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
    if path.is_file():
        yield place, path
        return
    if not path.is_dir():
        raise _Refused("neither a file nor a folder")
    prefix = "" if path == root else f"{place}/"
    found = list(_files(path, code=False))
    if not found:
        raise _Refused("no file in it to send: hidden ones, caches and virtual environments stay here")
    if len(found) > MAX_FILES:
        raise _Refused(f"more than {MAX_FILES:,} files in it")
    for inner in found:
        yield prefix + inner.relative_to(path).as_posix(), inner


def _stays(path: Path) -> bool:
    return path.name.startswith(".") or path.name in _CACHES or (path / "pyvenv.cfg").is_file()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EARLIEST)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _size(size: int) -> str:
    for unit, bytes_each in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if size >= bytes_each:
            return f"{size / bytes_each:.1f} {unit}"
    return f"{size} bytes"
