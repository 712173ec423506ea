"""The few things that the engine asks of Ray, typed. Nothing else in the engine touches an untyped Ray value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import ray
from ray import exceptions
from ray.util import list_named_actors

from remote_agent.errors import first_line
from remote_agent.training.deadlines import CLOSE_S
from remote_agent.training.errors import LostAtStart, PlacementError

T = TypeVar("T")

NAMESPACE = "hetero-tui"
"""Ray's, of all names of actors."""

ActorLost = (exceptions.RayActorError, exceptions.OutOfMemoryError)
"""What a call raises when its own actor is gone; Ray ends actors where a host's memory is nearly full."""

Lost = (*ActorLost, exceptions.ObjectLostError, exceptions.RaySystemError, exceptions.WorkerCrashedError)
"""What a call raises when its actor, or an object that it needs, is gone."""

Timeout = exceptions.GetTimeoutError
"""What :func:`get` raises when its deadline passes."""

Unexpected = exceptions.RayError
"""Any error of Ray's own."""

HOST_AWAY = "its host can't be reached"
"""What :func:`describe` says where nothing is known of a process."""

GETATTR = "where a class has __getattr__, let it raise AttributeError for names that begin with __"
"""Why unpacking recurses: pickle asks for ``__setstate__`` before an object has any attribute."""

CallFailed = exceptions.RayTaskError
"""What a call raises when the actor's own code raised."""

NoAnswer = (*Lost, CallFailed, Timeout)
"""What :func:`get` raises when there is no answer, whatever the reason."""


@dataclass(frozen=True, eq=False, slots=True)
class Ref(Generic[T]):
    """A value that an actor owes, or that lies in the object store."""

    raw: Any


def put(value: T) -> Ref[T]:
    """Store ``value`` once for all processes that get the ref."""
    return Ref(ray.put(value))


def get(ref: Ref[T], deadline_s: float) -> T:
    """The value, waited for; raises Timeout after ``deadline_s``."""
    return cast("T", ray.get(ref.raw, timeout=deadline_s))


def get_at_start(ref: Ref[T], deadline_s: float, failure: str, *, hint: str, host: str) -> T:
    """The value, waited for before the first step; ``failure`` and ``hint`` are for the error.

    Raises:
        LostAtStart: the actor on ``host`` is gone, or did not answer in time.
        PlacementError: its code raised.
    """
    try:
        return get(ref, deadline_s)
    except NoAnswer as error:
        kind = PlacementError if isinstance(error, CallFailed) else LostAtStart
        raise kind(f"{failure}: {describe(error)}", hint=hint, host=host) from error


def get_all(refs: Sequence[Ref[T]], deadline_s: float) -> list[T]:
    """The values of all refs, waited for together; raises Timeout after ``deadline_s``."""
    return cast("list[T]", ray.get([ref.raw for ref in refs], timeout=deadline_s))


def first_ready(refs: Sequence[Ref[Any]], deadline_s: float) -> int | None:
    """Position of a ref whose value (or failure) is there; None when none came within ``deadline_s``."""
    raw = [ref.raw for ref in refs]
    ready, _ = ray.wait(raw, num_returns=1, timeout=max(0.0, deadline_s), fetch_local=False)
    return raw.index(ready[0]) if ready else None


def gone(error: Exception) -> bool:
    """Whether an actor's process is known to have ended, rather than out of reach for now."""
    return isinstance(error, exceptions.ActorDiedError | exceptions.OutOfMemoryError)


def wait_all(refs: Sequence[Ref[Any]], deadline_s: float) -> set[int]:
    """Positions of those refs whose values (or failures) are there once all are, or the deadline has passed."""
    raw = [ref.raw for ref in refs]
    ready, _ = ray.wait(raw, num_returns=len(raw), timeout=deadline_s, fetch_local=False)
    return {raw.index(each) for each in ready}


def is_of_unpacking(error: Exception) -> bool:
    """Whether the actor could not unpack the arguments of a call: a class or a module is not there."""
    cause = error.cause if isinstance(error, CallFailed) else None
    return isinstance(cause, exceptions.RaySystemError) and "Traceback" in str(cause)


def describe(error: Exception) -> str:
    """The sentence in one of Ray's many-line messages that says what happened."""
    if isinstance(error, CallFailed):
        cause = error.cause
        if is_of_unpacking(error):
            said = str(cause).strip().splitlines()[-1]
            if said.startswith("RecursionError"):
                said += f"; {GETATTR}"
            return f"it can't unpack what it was sent: {said}"[:300]
        return f"{type(cause).__name__}: {cause}"[:300] if cause is not None else "its code raised"
    if isinstance(error, exceptions.ActorDiedError):
        if "creation task" in str(error):
            last = str(error).strip().splitlines()[-1].strip()
            return f"Python there can't load what training needs: {last}"[:300]
        return "its process ended" if "process" in str(error) else "its host or process is gone"
    if isinstance(error, exceptions.OutOfMemoryError):
        return "its process was ended, since its host's memory was nearly full"
    if isinstance(error, exceptions.ActorUnavailableError):
        return HOST_AWAY
    if isinstance(error, Timeout):
        return "it did not answer in time"
    return first_line(error)[:300]


def start(cls: type, options: dict[str, Any], *arguments: Any, groups: Sequence[str] = (), name: str = "") -> Actor:
    """Start an actor of ``cls``; it may not be placed yet when this returns.

    Args:
        options: Ray's.
        groups: names for :meth:`Actor.call_in`: calls of one group are carried out one after the other, beside all
            others.
        name: of an actor that outlives this process, for :func:`find`; without one it ends with this process.
    """
    remote = ray.remote(concurrency_groups=dict.fromkeys(groups, 1)) if groups else ray.remote
    lasting = {"name": name, "namespace": NAMESPACE, "lifetime": "detached"} if name else {}
    # Ray's head would keep a record of each call, 3 KB for each of the last 100,000, and a step makes many calls.
    return Actor(remote(cls).options(enable_task_events=False, **options, **lasting).remote(*arguments), name)


def find(name: str) -> Actor | None:
    """The actor that was started under ``name`` by this process or another one; None: it has ended."""
    try:
        return Actor(ray.get_actor(name, namespace=NAMESPACE), name)
    except ValueError:
        return None


def lasting() -> list[str]:
    """The names of all actors that were started under one, and have not ended."""
    return [entry["name"] for entry in list_named_actors(all_namespaces=True) if entry["namespace"] == NAMESPACE]


def run(function: Callable[..., T], options: dict[str, Any], *arguments: Any) -> Ref[T]:
    """Call ``function``, which has to be one of a module's, in another process, once."""
    return Ref(ray.remote(function).options(enable_task_events=False, max_retries=0, **options).remote(*arguments))


@dataclass(frozen=True, eq=False, slots=True)
class Actor:
    """A running actor; arguments that are refs are passed on as such, so their values never come through the caller.

    ``name`` is that of an actor which outlives the process that started it.
    """

    raw: Any
    name: str = ""

    @property
    def key(self) -> str:
        return str(self.raw._actor_id.hex())  # noqa: SLF001 - it has no other name

    def call(self, method: str, *arguments: Any) -> Ref[Any]:
        """Call ``method``."""
        return Ref(getattr(self.raw, method).remote(*_unwrap(arguments)))

    def call_in(self, group: str, method: str, *arguments: Any) -> Ref[Any]:
        """Call ``method`` in a group of its own; see :func:`start`."""
        return Ref(getattr(self.raw, method).options(concurrency_group=group).remote(*_unwrap(arguments)))

    def kill(self) -> None:
        """End the actor's process at once; it does not come back."""
        ray.kill(self.raw, no_restart=True)

    def close(self) -> None:
        """Let the actor go, and its process with it."""
        try:
            ray.wait([self.raw.__ray_terminate__.remote()], timeout=CLOSE_S)
        except exceptions.RayError:
            return  # it is gone already


def _unwrap(arguments: tuple[Any, ...]) -> list[Any]:
    return [argument.raw if isinstance(argument, Ref) else argument for argument in arguments]
