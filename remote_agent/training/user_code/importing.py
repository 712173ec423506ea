"""Imports a job's file on a host, as torchrun would run it, up to where the job is defined.

One file serves as a script and under ``hetero-tui train``: ``train()`` and ``ray.init()`` do nothing while it is
imported, and ``train()`` ends the import if the job is defined. The lines after it are the script's own.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import ray

from remote_agent.training.user_code import seeding

PREFIX = "hetero_job_"
"""Start of the module's name, which is the same on all hosts, and no library's."""


class Defined(BaseException):
    """Ends the import: the job is defined. It is no error, so that no ``except Exception`` of the file stops it."""


_is_defined: Callable[[], bool] | None = None


def import_job(path: Path, is_defined: Callable[[ModuleType], bool]) -> ModuleType:
    """Run the file at ``path`` as a module, and return it. Whatever its code raises passes.

    Other modules of the job can import it by the file's own name. Random numbers that the file draws are the same in
    each process: so a split of its data is, also after a resume.
    """
    global _is_defined
    name = PREFIX + path.stem
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None, "a file's loader gives a spec"
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    if path.stem not in sys.stdlib_module_names:
        sys.modules.setdefault(path.stem, module)
    seeding.seed_all(0)
    before, _is_defined = _is_defined, lambda: is_defined(module)
    try:
        with _as_script(path):
            spec.loader.exec_module(module)
    except BaseException as error:
        if not (isinstance(error, Defined) or (isinstance(error, SystemExit) and is_defined(module))):
            for known in [known for known, each in sys.modules.items() if each is module]:
                del sys.modules[known]
            raise
    finally:
        _is_defined = before
    return module


def is_importing() -> bool:
    """Whether a job's file is being imported."""
    return _is_defined is not None


def leave_out_training() -> None:
    """Do what ``train()`` does during the import: end it if the job is defined, else nothing."""
    caller = sys._getframe(2)  # noqa: SLF001 - the frame that called train()
    place = f"{caller.f_code.co_filename.rpartition('/')[2]}:{caller.f_lineno}"
    print(f"{place}: train() is left out: hetero-tui train trains this job itself", file=sys.stderr, flush=True)
    if _is_defined is not None and _is_defined():
        raise Defined


@contextlib.contextmanager
def _as_script(path: Path) -> Iterator[None]:
    """Hide our command line from the file's argument parser, and Ray from its ``ray.init``: the run has connected."""

    def connected(*_: Any, **__: Any) -> None:
        print("ray.init() of the job's file is left out: the run connects itself", file=sys.stderr, flush=True)

    arguments, init = sys.argv, ray.init
    sys.argv, ray.init = [path.name], connected
    try:
        yield
    finally:
        sys.argv, ray.init = arguments, init
