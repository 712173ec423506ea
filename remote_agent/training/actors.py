"""A run's server and workers as Ray actors on their hosts: started, opened, and ended with the run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
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
from remote_agent.training.optimizer_state import Resumption
from remote_agent.training.placement import Node, Seat
from remote_agent.training.rpc import Ref
from remote_agent.training.server import ParameterServer
from remote_agent.training.session import Server
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
        resume: a checkpoint, or a run's folder, that the run goes on from; None: it begins.
        gpus: GPU slots that a worker on a GPU asks Ray for; see :class:`~remote_agent.training.placement.Seat`.
    """

    run: str
    job: Job
    config: TrainingConfig
    devices: tuple[DeviceSpec, ...]
    server_host: str
    host: str
    folder: Path
    resume: Path | None = None
    gpus: int = 0


class Servers:
    """A run's parameter servers: the first, and more on further hosts once it is known where they are of use.

    Attributes:
        first: on the host that the request names.
    """

    def __init__(self, request: Request, nodes: Sequence[Node], seats: Sequence[Seat], blob: bytes, state: Ref[bytes]):
        self._request, self._nodes, self._seats = request, nodes, seats
        self._blob, self._state = blob, state
        self._resumed: Ref[Resumption] | None = None
        self._started: list[tuple[Server, Ref[Any]]] = []
        self.first = self._start(request.server_host)

    def opened(self) -> OptimizerFacts:
        """Wait for the first; says what the job's optimizer is.

        Raises:
            PlacementError: it did not start.
            JobError: the job's code failed there.
        """
        (server, opening), *_ = self._started
        optimizer = _opened(opening, "the parameter server", server.host, time.monotonic() + PLACEMENT_S + OPEN_S)
        assert isinstance(optimizer, OptimizerFacts)
        return optimizer

    def restore(self, resumed: Resumption) -> Ref[None]:
        """The first, once it is :meth:`opened`, and all that are started later go on from a checkpoint."""
        self._resumed = rpc.put(resumed)
        return self.first.actor.call("restore", self._resumed)

    def on(self, hosts: Sequence[str]) -> tuple[Server, ...]:
        """One on each of these hosts, the first where it is and further ones started and opened; all others end.

        Raises:
            PlacementError: a host has no node, or a server did not start.
            JobError: the job's code failed there.
        """
        for host in hosts:
            if host != self.first.host:
                self._start(host)
        deadline = time.monotonic() + PLACEMENT_S + OPEN_S
        for server, opening in self._started[1:]:
            _opened(opening, "a shard of the parameter server", server.host, deadline)
            if self._resumed is not None:
                server.actor.call("restore", self._resumed)
        if self.first.host not in hosts:
            self.first.actor.kill()
        by_host = {server.host: server for server, _ in self._started}
        return tuple(by_host[host] for host in hosts)

    def kill(self) -> None:
        """End them all."""
        for server, _ in self._started:
            server.actor.kill()

    def _start(self, host: str) -> Server:
        node = placement.node_of(host, self._nodes)
        # Beside workers on the same host a server takes its part of the cores only: threads that spin cost the others.
        sharing = sum(seat.node == node for seat in self._seats) + 1
        # A step whose slice is overdue must not hold up the same step submitted anew; data keeps the order of the rest.
        options = placement.actor_options(node, placement.RETURN_MEMORY) | {"allow_out_of_order_execution": True}
        server = Server(host=host, actor=rpc.start(ParameterServer, options, max(1, int(node.cpus) // sharing)))
        self._started.append((server, server.actor.call("open", self._blob, self._state, self._request.config)))
        return server


@contextlib.contextmanager
def started(
    request: Request, model: nn.Module, dataset: Any
) -> Iterator[tuple[Servers, OptimizerFacts, list[Candidate]]]:
    """Server and workers, opened on their hosts; they end when the block does.

    Args:
        request: the run.
        model: with the first weights.
        dataset: as the workers index it.

    Yields:
        The servers, what the job's optimizer is, and the workers.

    Raises:
        PlacementError: a host has no node, there are fewer hosts than shards, or an actor did not start in time.
        JobError: the job's code failed there, or its data can't be sent.
    """
    nodes = placement.living_nodes()
    seats = placement.seats(request.devices, nodes, request.gpus)
    placement.check_shards(request.config.shards, [request.server_host, *(spec.host for spec in request.devices)])
    blob = job.dumps(request.job.factory)
    state = rpc.put(safetensors.torch.save(checkpoint.portable_state(model)))
    try:
        samples = rpc.put(dataset)
    except (TypeError, AttributeError) as error:
        raise JobError(f"the data can't be sent to the workers: {error}", hint=data.HINT) from error
    servers = Servers(request, nodes, seats, blob, state)
    workers = [
        (seat, rpc.start(Worker, seat.options(), seat.spec.device, seat.threads, groups=GROUPS)) for seat in seats
    ]
    try:
        opened = [
            worker.call("open", blob, samples, state, request.config, seat.spec.max_batch) for seat, worker in workers
        ]
        deadline = time.monotonic() + PLACEMENT_S + OPEN_S
        optimizer = servers.opened()
        candidates = []
        for (seat, worker), ref in zip(workers, opened, strict=True):
            answer = _opened(ref, f"worker {seat.worker}", seat.spec.host, deadline)
            assert isinstance(answer, Opened)
            candidates.append(Candidate(seat, worker, answer))
        yield servers, optimizer, candidates
    finally:
        servers.kill()
        for _, worker in workers:
            worker.kill()


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
