"""The files that a data set names in its attributes: how many are here, and what tells whether they are the same ones.

A worker reads them on its own host, and only a few samples are compared between workers. Sizes cost next to nothing:
2,000 of them take some 10 ms on a disk of the host's own, and 64 blocks of 4 KB of their contents about as much.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from remote_agent.training.data.datasets import Collated
from remote_agent.training.user_code.ownership import is_of_users

MOST_FILES, BLOCKS, BLOCK = 2000, 64, 4096
"""Files of an attribute whose sizes are looked at, from all over it; blocks of their contents, and bytes of one."""

MOST_ENTRIES, DEPTH = 100, 4
"""Of a list of data sets, and how deep they are entered."""

Files = tuple[int, int, str]
"""How many there are, their bytes, and a digest of sizes and of some contents."""


def named_by(data: Any, depth: int = DEPTH, seen: set[int] | None = None) -> Mapping[str, Files]:
    """Of each attribute of ``data``, and of the data sets that it is made of, the files that it names."""
    seen = set() if seen is None else seen
    found: dict[str, Files] = {}
    if not depth or id(data) in seen or not hasattr(data, "__dict__"):
        return found
    seen.add(id(data))
    folders = [Path(), *(Path(value) for value in vars(data).values() if _is_path(value) and Path(value).is_dir())]
    for name, value in list(vars(data).items()):
        paths = [value] if _is_path(value) else _paths(value)
        folder = next((each for each in folders if paths and (each / paths[0]).is_file()), None)
        if folder is not None:
            found[f"data.{name}"] = _files([folder / each for each in paths])
        for each in itertools.islice(value, MOST_ENTRIES) if isinstance(value, list | tuple) else (value,):
            if _is_data(each):
                found = {**named_by(each, depth - 1, seen), **found}
    return found


def _is_data(value: object) -> bool:
    is_own = is_of_users(type(value).__module__) and not isinstance(value, type)
    return isinstance(value, Collated | Dataset) or is_own


def _is_path(value: object) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and 0 < len(value) < BLOCK and "\0" not in value)


def _paths(value: Any) -> Sequence[Any]:
    """Some of a list of paths, or of samples that begin with one (those of an ``ImageFolder``)."""
    if not isinstance(value, list | tuple | np.ndarray) or not len(value) or getattr(value, "ndim", 1) != 1:
        return []
    some = [value[place] for place in np.unique(np.linspace(0, len(value) - 1, min(len(value), MOST_FILES), dtype=int))]
    some = [each[0] if isinstance(each, list | tuple) and each else each for each in some]
    return some if all(map(_is_path, some)) else []


def _files(paths: Sequence[Path]) -> Files:
    sizes = [_size(path) for path in paths]
    digest = hashlib.blake2b(repr(sizes).encode(), digest_size=8)
    for number in range(BLOCKS):
        place = number * len(paths) // BLOCKS
        with contextlib.suppress(OSError), paths[place].open("rb") as file:
            file.seek(max(0, sizes[place] - BLOCK) * (number + 1) // BLOCKS)
            digest.update(file.read(BLOCK))
    return sum(size >= 0 for size in sizes), sum(max(0, size) for size in sizes), digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
