"""Imports a job's file on a host as if it were a script, up to where the job is defined."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import ray

from remote_agent.training.user_code import inert, seeding

PREFIX = "hetero_job_"
"""Of the module's name: no file of the user's is called so, and no library."""


def import_job(path: Path, attribute: str, own_name: bool) -> ModuleType:
    """The module of the file at ``path``; its code runs, at the most until a ``train()`` after ``attribute`` is there.

    ``own_name``: other modules of the job may import it by the file's name, too. Whatever its code raises passes.
    Random numbers that the file draws are the same in each process: a split of its data is, also after a resume.
    """
    name = PREFIX + path.stem
    # Where the file lies in the present folder its place is told by its name alone: that is so on all hosts.
    file = path.name if path.parent == Path.cwd() else str(path)
    spec = spec_from_loader(name, SourceFileLoader(name, file))
    assert spec is not None, "a file's loader gives a spec"
    module = module_from_spec(spec)
    sys.modules[name] = module
    if own_name and path.stem.isidentifier() and path.stem not in sys.stdlib_module_names:
        sys.modules.setdefault(path.stem, module)

    def is_defined() -> bool:
        return attribute in vars(module)

    assert spec.loader is not None
    seeding.seed_all(0)
    with inert.importing(is_defined), _as_script(path), _own_ray():
        try:
            spec.loader.exec_module(module)
        except inert.Enough:
            print(f"{path.name} is imported up to there, where {attribute!r} is defined", file=sys.stderr, flush=True)
        except (SystemExit, inert.UsedResult):
            if not is_defined():
                raise
    return module


@contextlib.contextmanager
def _as_script(path: Path) -> Iterator[None]:
    """The file's own command line is empty: ours is not for its argument parser."""
    before, sys.argv = sys.argv, [path.name]
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _own_ray() -> Iterator[None]:
    """A connection to Ray that the file makes for itself ends: the run makes its own, with its own options."""
    connected = ray.is_initialized()
    try:
        yield
    finally:
        if not connected and ray.is_initialized():
            print("ray.init() of the job's file is left out: the run is connected already", file=sys.stderr, flush=True)
            ray.shutdown()
