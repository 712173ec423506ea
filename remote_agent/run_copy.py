"""Another machine's copy of a run's folder: what is known of the run there, should its head be lost.

It lies where the run's own folder lies on the head, ``<cluster's folder>/runs/<run>``, so that a command that lists the
runs of this machine finds it, and a new head can go on from it. The head's coordinator writes it
(``training.history``). Standard library only: the process that holds it starts fast and stays small.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from remote_agent.protocol import CLUSTER_MARK

_CHUNK = 1 << 20


class RunCopy:
    """The copy of one run's folder on this machine; lives in a process of the cluster there.

    Raises:
        KeyError: this process belongs to no cluster of ours, so there is no place for a copy.
    """

    def __init__(self, run: str) -> None:
        self._folder = Path(os.environ[CLUSTER_MARK]) / "runs" / run

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all; raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = _draft(self._folder / name)
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._folder / name)

    def begin(self, newest: int) -> None:
        """Remove checkpoints after step ``newest``, those of a head that was replaced; raises OSError."""
        for document in self._checkpoints():
            if int(document.stem.removeprefix("step-")) > newest:
                document.unlink()
        self._tidy(None)

    def write(self, name: str, offset: int, part: bytes) -> None:
        """Write a part of a checkpoint's file aside, in order, for :meth:`publish`; raises OSError."""
        folder = self._folder / "checkpoints"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _draft(folder / name).open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(part)

    def publish(self, names: list[str], keep: int) -> None:
        """Make the files of a checkpoint, all written aside, count together: its document last. Older ones go.

        Raises:
            OSError: the disk failed; what is there is as it was.
        """
        folder = self._folder / "checkpoints"
        names = sorted(names, key=lambda name: name.endswith(".json"))
        for name in names:
            with _draft(folder / name).open("rb") as file:
                os.fsync(file.fileno())
        for name in names:
            _draft(folder / name).replace(folder / name)
        self._tidy(keep)

    def known(self, name: str, size: int) -> tuple[int, str]:
        """Of the first ``size`` bytes of a growing file: how many are here, and a :func:`digest` of those."""
        path = self._folder / name
        here = min(size, path.stat().st_size) if path.is_file() else 0
        return here, digest(path, here)

    def append(self, name: str, offset: int, lines: bytes) -> int:
        """Continue a file of lines at ``offset``; what was behind it goes. Returns the new size.

        Raises:
            OSError: it can't be written.
            ValueError: the file is shorter than ``offset``: something else wrote it.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / name).touch(mode=0o600)
        with (self._folder / name).open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size < offset:
                raise ValueError(f"{name} has {size} bytes, not {offset}")
            file.truncate(offset)
            file.seek(offset)
            file.write(lines)
        return offset + len(lines)

    def _checkpoints(self) -> list[Path]:
        """The documents of whole checkpoints, the newest last."""
        return sorted((self._folder / "checkpoints").glob("step-*.json"))

    def _tidy(self, keep: int | None) -> None:
        """Remove all but the ``keep`` newest checkpoints (None: none of the whole ones), and what is not whole."""
        documents = self._checkpoints()
        gone = documents[:-keep] if keep else []
        for document in gone:
            document.unlink(missing_ok=True)  # first, so that what has a document is whole
        whole = {document.stem for document in documents[len(gone) :]}
        for file in (self._folder / "checkpoints").glob("*step-*"):
            if file.name.lstrip(".").split(".")[0] not in whole:
                file.unlink(missing_ok=True)


def digest(path: Path, size: int) -> str:
    """SHA-256 of the first ``size`` bytes of a file, in hexadecimal; with ``size`` 0 there may be no file."""
    found = hashlib.sha256()
    if size:
        with path.open("rb") as file:
            for begin in range(0, size, _CHUNK):
                found.update(file.read(min(_CHUNK, size - begin)))
    return found.hexdigest()


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.copy")
