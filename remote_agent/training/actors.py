"""A run's server and workers as Ray actors on their hosts: started, opened, and ended with the run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from remote_agent.protocol import DeviceSpec
from remote_agent.training import checkpoint, data, job, placement, rpc
from remote_agent.training.config import TrainingConfig
from remote_agent.training.dataplane import OptimizerFacts
from remote_agent.training.deadlines import OPEN_S, PLACEMENT_S
from remote_agent.training.errors import JobError, PlacementError
from remote_agent.training.job import Job
from remote_agent.training.measure import Candidate
from remote_agent.training.messages import Failed, Opened
from remote_agent.training.rpc import Actor, Ref
from remote_agent.training.server import ParameterServer
from remote_agent.training.worker import GROUPS, Worker


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be run, and where its files go.

    Attributes:
        run: the run's id.
        job: what is trained.
        config: how.
        devices: on which devices.
        server_host: host of the parameter server.
        host: the coordinator's own host, for events.
        folder: the run's folder; ``checkpoints/`` is made in it.
        gpus: GPU slots that a worker on a GPU asks Ray for; see :class:`~remote_agent.training.placement.Seat`.
    """

    run: str
    job: Job
    config: TrainingConfig
    devices: tuple[DeviceSpec, ...]
    server_host: str
    host: str
    folder: Path
    gpus: int = 0


@contextlib.contextmanager
def started(
    request: Request, model: nn.Module, dataset: Any
) -> Iterator[tuple[Actor, OptimizerFacts, list[Candidate]]]:
    """Server and workers, opened on their hosts; they end when the block does.

    Args:
        request: the run.
        model: with the first weights.
        dataset: as the workers index it.

    Yields:
        The server, what its optimizer is, and the workers.

    Raises:
        PlacementError: a host has no node, or an actor did not start in time.
        JobError: the job's code failed there, or its data can't be sent.
    """
    nodes = placement.living_nodes()
    seats = placement.seats(request.devices, nodes, request.gpus)
    home = placement.node_of(request.server_host, nodes)
    blob = job.dumps(request.job.factory)
    state = rpc.put(safetensors.torch.save(checkpoint.portable_state(model)))
    try:
        samples = rpc.put(dataset)
    except (TypeError, AttributeError) as error:
        raise JobError(f"the data can't be sent to the workers: {error}", hint=data.HINT) from error
    # Beside workers on the same host the server takes its part of the cores only: threads that spin cost the others.
    sharing = sum(seat.node == home for seat in seats) + 1
    # A step whose slice is overdue must not hold up the same step submitted anew; data keeps the order of the rest.
    options = placement.actor_options(home) | {"allow_out_of_order_execution": True}
    server = rpc.start(ParameterServer, options, max(1, int(home.cpus) // sharing))
    workers = [
        (seat, rpc.start(Worker, seat.options(), seat.spec.device, seat.threads, groups=GROUPS)) for seat in seats
    ]
    try:
        opening = server.call("open", blob, state, request.config)
        opened = [
            worker.call("open", blob, samples, state, request.config, seat.spec.max_batch) for seat, worker in workers
        ]
        deadline = time.monotonic() + PLACEMENT_S + OPEN_S
        optimizer = _opened(opening, "the parameter server", request.server_host, deadline)
        assert isinstance(optimizer, OptimizerFacts)
        candidates = []
        for (seat, worker), ref in zip(workers, opened, strict=True):
            answer = _opened(ref, f"worker {seat.worker}", seat.spec.host, deadline)
            assert isinstance(answer, Opened)
            candidates.append(Candidate(seat, worker, answer))
        yield server, optimizer, candidates
    finally:
        for actor in (server, *(worker for _, worker in workers)):
            actor.kill()


def _opened(ref: Ref[Any], who: str, host: str, deadline: float) -> object:
    """An ``open`` call's answer.

    Raises:
        PlacementError: the actor did not start in time, or died.
        JobError: the job's code failed there, or the device is not there.
    """
    hint = "look at the host's Ray log and free memory, or leave the host out of the run"
    try:
        answer = rpc.get(ref, max(0.0, deadline - time.monotonic()))
    except rpc.Timeout:
        limit = PLACEMENT_S + OPEN_S
        raise PlacementError(f"{who} did not start within {limit:.0f} s", hint=hint, host=host) from None
    except (*rpc.Lost, rpc.CallFailed) as error:
        raise PlacementError(f"{who} did not start: {rpc.describe(error)}", hint=hint, host=host) from error
    if isinstance(answer, Failed):
        raise answer.error(host)
    return answer
