"""Packs a job for the workers.

A job of a file travels as its folder's archive and the state of its objects: each worker imports the file itself, so
functions, classes, patches of libraries and flags of torch come from the import. The objects of a script that calls
``train()`` travel by cloudpickle: by value what is defined in it, and in the modules beside it.
"""

from __future__ import annotations

import contextlib
import copyreg
import importlib
import linecache
import pickle
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ray import cloudpickle

from remote_agent.training.errors import JobError
from remote_agent.training.shared import own_devices, rpc
from remote_agent.training.user_code import job_code
from remote_agent.training.user_code.user_errors import headline

MAKE_LATER = (
    "make files, locks and connections where they are used first, in each process: `if self.file is None: self.file ="
    " open(...)` in loss or __getitem__"
)
OF_SCRIPT = "; or start it with `hetero-tui train FILE.py:NAME`, which imports the file on each machine"


def dumps(factory: Any) -> bytes:
    """Pack ``factory`` with its file and the job's own kinds of devices; raises JobError if it can't be pickled.

    From now on the job's classes are sent by their names, if workers import its file.
    """
    sources = {} if job_code.source() is not None else _lines()
    by_value()
    if job_code.source() is not None:
        for module in job_code.modules():
            cloudpickle.unregister_pickle_by_value(module)
    with packing("the job"):
        return pickle.dumps((job_code.source(), sources, cloudpickle.dumps((own_devices.KINDS, factory))))


def by_value() -> None:
    """Let cloudpickle send what the job's modules define by value: tasks of Ray Data do not import its file."""
    for module in job_code.modules():
        cloudpickle.register_pickle_by_value(module)


def loads(blob: bytes) -> Any:
    """Unpack the bytes of :func:`dumps`; this runs the user's code, so call it on the cluster's hosts only."""
    kinds, factory = cloudpickle.loads(enter(blob))
    own_devices.KINDS.update(kinds)
    return factory


def enter(blob: bytes) -> bytes:
    """Import the job's file here, so that what the job defines can be unpacked; returns the rest of the bytes."""
    source, sources, made = pickle.loads(blob)  # noqa: S301 - this user's own
    for file, lines in sources.items():
        linecache.cache.setdefault(file, (sum(map(len, lines)), None, lines, file))
    if source is not None:
        job_code.import_there(source)
    return bytes(made)


@contextlib.contextmanager
def packing(what: str) -> Iterator[None]:
    """Raise a JobError if something in the block can't be pickled, of which ``what`` consists."""
    for kind in set(map(type, tuple(sys.modules.values()))):  # of torch.classes, which an attribute of that name needs
        if issubclass(kind, ModuleType) and kind is not ModuleType:
            copyreg.pickle(kind, _by_name)
    try:
        yield
    except rpc.Unexpected:
        raise
    except Exception as error:  # whatever the objects raise
        hint = MAKE_LATER + ("" if job_code.source() is not None else OF_SCRIPT)
        why = headline(error.__cause__ or error)
        raise JobError(f"{what} can't be sent to the workers: {why}", hint=hint) from error


def _by_name(module: ModuleType) -> tuple[Callable[[str], ModuleType], tuple[str]]:
    return importlib.import_module, (module.__name__,)


def _lines() -> dict[str, list[str]]:
    """The lines of a script and the modules beside it, by path, for messages of hosts that have no copy."""
    modules = (sys.modules.get("__main__"), *job_code.modules())
    return {file: linecache.getlines(file) for module in modules if (file := getattr(module, "__file__", None))}
