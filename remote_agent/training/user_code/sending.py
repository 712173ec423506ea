"""Packs the user's job for the workers, with its modules, and unpacks it there.

A module of the user's is sent by value, with its present state: its functions and classes are rebuilt without the file,
and whatever else the file did is not done again. Some things can't be sent so: a function of ``torch.jit`` or
``torch.compile``, an operator, a connection. Then the workers import the file, and get the state of its plain values.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import inspect
import linecache
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ray import cloudpickle

from remote_agent.training.shared import own_devices
from remote_agent.training.user_code import importing, inert, job_code, side_effects, unsendable
from remote_agent.training.user_code.ownership import is_users_own

BY_VALUE, OTHERS_BY_NAME, BY_NAME = range(3)
"""How the user's modules are sent: by value; all but the job's own by their names; all by their names."""


@dataclass(frozen=True)
class Imported:
    """A job's file that workers import.

    Attributes:
        path: where it lies on the head.
        attribute: the job in it.
        own_name: see :func:`~remote_agent.training.user_code.importing.import_job`.
    """

    path: Path
    attribute: str
    own_name: bool


_loaded: dict[str, Imported] = {}


def loaded(module: ModuleType, path: Path, attribute: str) -> None:
    """Note where ``module`` with a job comes from."""
    _loaded[module.__name__] = Imported(path, attribute, job_code.sent() is not None)
    cloudpickle.register_pickle_by_value(module)


def dumps(factory: Any, least: int = BY_VALUE) -> bytes:
    """Pack ``factory`` as bytes, with the user's own modules and the job's files, of which workers have no copy.

    The bytes also hold the job's own strategies and kinds of devices, and what its file did beside (``side_effects``).

    Args:
        least: the first way to try of :data:`BY_VALUE` and the following. It counts for what is sent later, too.

    Raises:
        JobError: the job holds something that can't be sent, for example an open file.
    """
    module = inspect.getmodule(factory if inspect.isclass(factory) else type(factory))
    send_by_name()
    first: Exception | None = None
    for way in range(least, BY_NAME + 1):
        try:
            return _packed(factory, module, way)
        except Exception as error:  # noqa: BLE001 - whatever the objects raise
            first = first or error
    assert first is not None
    raise unsendable.refusal("the job", "self", factory, first) from first


def _packed(factory: Any, module: ModuleType | None, way: int) -> bytes:
    imported = _loaded.get(module.__name__) if module is not None and way == BY_NAME else None
    own = {each.__name__: each for each in filter(_is_sent, job_code.modules())}
    if module is not None and (_is_sent(module) or imported):
        own[module.__name__] = module
    for name, each in own.items():
        if way == BY_VALUE or (each is module and imported is None):
            cloudpickle.register_pickle_by_value(each)
        elif name in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(each)
    values = _values(module) if module is not None and imported is not None else {}
    user_made = cloudpickle.dumps((own_devices.KINDS, side_effects.patches(), factory, values))
    return pickle.dumps((job_code.sent(), _sources(own), side_effects.state(), imported, user_made))


def _values(module: ModuleType) -> dict[str, Any]:
    """The module's state: what in it is no code, and can be sent."""
    found = {}
    for name, value in vars(module).items():
        if name.startswith("__") or callable(value) or isinstance(value, ModuleType):
            continue
        with contextlib.suppress(Exception):  # then it is that of the file
            cloudpickle.dumps(value)
            found[name] = value
    return found


def loads(blob: bytes) -> Any:
    """Unpack the bytes of :func:`dumps`; this runs the user's code, so call it on the cluster's hosts only."""
    sent, sources, state, imported, user_made = pickle.loads(blob)  # noqa: S301 - this user's own
    side_effects.restore(state)
    for file, lines in sources.items():
        linecache.cache.setdefault(file, (sum(map(len, lines)), None, lines, file))
    if sent is not None:
        inert.from_now_on()
        job_code.enter_there(sent)
    module = _imported(imported) if imported is not None else None
    kinds, patches, factory, values = cloudpickle.loads(user_made)
    if module is not None:
        vars(module).update(values)
    side_effects.put(patches)
    own_devices.KINDS.update(kinds)
    return factory


def _imported(job: Imported) -> ModuleType:
    """The module of the job's file; it is imported once."""
    name = importing.PREFIX + job.path.stem
    if name in sys.modules:
        return sys.modules[name]
    path = Path.cwd() / job.path.name if job.own_name else job.path
    try:
        return importing.import_job(path, job.attribute, job.own_name)
    except BaseException:
        sys.modules.pop(name, None)
        raise


def send_by_name() -> None:
    """Have modules of unusual types sent by their names, such as ``torch.classes`` and ``torch.backends.cudnn``.

    Code that names ``torch`` and some attribute ``classes`` is taken by cloudpickle to need that module.
    """
    there: tuple[object, ...] = tuple(sys.modules.values())  # not each is a module
    for kind in set(map(type, there)):
        if issubclass(kind, ModuleType) and kind is not ModuleType:
            copyreg.pickle(kind, _by_name)
    copyreg.pickle(functools._lru_cache_wrapper, _cached_function)  # noqa: SLF001 - it has no other name
    copyreg.pickle(functools.cached_property, _cached_property)
    unsendable.install()


def _by_name(module: ModuleType) -> tuple[Callable[[str], ModuleType], tuple[str]]:
    return importlib.import_module, (module.__name__,)


def _is_importable(made: Any) -> bool:
    """Whether workers find by its name what pickle would send by its name alone."""
    by_value = ("__main__", *cloudpickle.list_registry_pickle_by_value())
    return made.__module__ not in by_value and "<locals>" not in made.__qualname__


def _cached_function(made: Any) -> str | tuple[Callable[..., Any], tuple[Any, ...]]:
    if _is_importable(made):
        return str(made.__qualname__)
    return _cached, (made.__wrapped__, made.cache_parameters())


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(made: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Until Python 3.12 it has a lock."""
    return _property, (made.func, made.attrname)


def _property(function: Callable[..., Any], name: str) -> Any:
    made = functools.cached_property(function)
    made.__set_name__(object, name)
    return made


def _is_sent(module: ModuleType) -> bool:
    """Whether a module is sent to the workers by value; Ray always sends a script's own."""
    file = getattr(module, "__file__", None)
    return file is not None and module.__name__ != "__main__" and is_users_own(file)


def _sources(own: dict[str, ModuleType]) -> dict[str, list[str]]:
    """The lines of all user files, by path, for messages of hosts that have no copy."""
    modules = (sys.modules.get("__main__"), *own.values())
    files = [getattr(module, "__file__", None) for module in modules]
    return {file: linecache.getlines(file) for file in files if file is not None and is_users_own(file)}
