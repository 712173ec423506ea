"""What Ray says when something is lost is told apart as the engine needs it."""

from __future__ import annotations

import pytest
from ray import exceptions

from remote_agent.training.shared import rpc


def test_a_worker_that_ray_ended_as_the_memory_was_nearly_full_is_lost_and_does_not_end_the_run() -> None:
    error = exceptions.OutOfMemoryError("3 worker(s) were killed due to the node running low on memory.\nMemory on …")
    with pytest.raises(rpc.Lost):
        raise error
    with pytest.raises(rpc.ActorLost):
        raise error
    assert rpc.gone(error)
    assert rpc.describe(error) == "its process was ended, since its host's memory was nearly full"


def test_a_host_that_is_out_of_reach_is_not_taken_for_one_whose_process_ended() -> None:
    error = exceptions.ActorUnavailableError("the actor is unavailable", None)
    with pytest.raises(rpc.Lost):
        raise error
    assert not rpc.gone(error)
    assert rpc.gone(exceptions.ActorDiedError())


def test_a_library_that_a_worker_can_not_load_is_named() -> None:
    cause = ImportError("libtorch_cpu.so: cannot open shared object file")
    traced = f'ray::Worker.__init__()\n  File "actor.py", line 2\n    import torch\nImportError: {cause}'
    died = exceptions.ActorDiedError(exceptions.RayTaskError("__init__", traced, cause))
    assert rpc.describe(died) == f"Python there can't load what training needs: ImportError: {cause}"


def test_what_an_actor_can_not_unpack_is_named_without_a_traceback() -> None:
    traced = (
        "System error: No module named 'PIL'\ntraceback: Traceback (most recent call last):\n  File \"x.py\", line 1\n"
    )
    cause = exceptions.RaySystemError(f"{traced}ModuleNotFoundError: No module named 'PIL'\n")
    error = exceptions.RayTaskError("open", "", cause).as_instanceof_cause()
    with pytest.raises(rpc.Lost):
        raise error
    assert rpc.is_of_unpacking(error)
    assert rpc.describe(error) == "it can't unpack what it was sent: ModuleNotFoundError: No module named 'PIL'"
    assert not rpc.is_of_unpacking(exceptions.RayTaskError("open", "", ValueError("Traceback")))
