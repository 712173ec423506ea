"""Starts a run's servers and workers as Ray actors on their hosts, opens them, and ends them with the run."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch import nn

from remote_agent.strategies import spec_of
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.checkpoint.optimizer_state import Resumption
from remote_agent.training.coordinator.members import Server
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.plan.placement import Node, Placement
from remote_agent.training.coordinator.processes.heartbeat import pulse_of
from remote_agent.training.coordinator.processes.measure import Candidate
from remote_agent.training.coordinator.request import Request
from remote_agent.training.deadlines import HANGS_S, LOAD_S, OPEN_S, PLACEMENT_S, TRANSFER_S
from remote_agent.training.errors import DeviceUnfit, LostAtStart, PlacementError
from remote_agent.training.job import Job
from remote_agent.training.server.actor import ParameterServer
from remote_agent.training.shared import rpc
from remote_agent.training.shared.dataplane import OptimizerFacts
from remote_agent.training.shared.messages import GROUPS, PING, Failed, WorkerReady
from remote_agent.training.shared.optimizer_options import OptimizerOptions
from remote_agent.training.shared.rpc import Actor, Ref
from remote_agent.training.user_code import checks, job_code, sending
from remote_agent.training.user_code.user_errors import HINTS, LOADING
from remote_agent.training.worker.actor import Worker

SERVER, WORKER = "server", "worker"
"""Kinds of actors."""


def of_name(actor: str) -> tuple[str, str]:
    """The run and the kind of a lasting actor of this name."""
    run, kind, _ = actor.rsplit(":", 2)
    return run, kind


class WorkerInit:
    """The data with which every server and worker is opened.

    Args:
        model: the model with the first weights.
        dataset: the dataset as the workers index it.
        split: each worker gets only its own weights, once they are decided.
        options: of the job's optimizer here, which a server's gets.
    """

    def __init__(
        self, trained: Job, model: nn.Module, dataset: Any, options: OptimizerOptions, *, split: bool = False
    ) -> None:
        self._dataset, self.options = dataset, options
        self.job = rpc.put(sending.dumps(trained.factory))
        weights = {} if split else {**checkpoint.portable_state(model), **checkpoint.unsaved(model)}
        self.state = rpc.put(checks.first_state(weights, model))

    @functools.cached_property
    def samples(self) -> Ref[Any]:
        """The dataset, stored at the first call; raises JobError if it can't be sent."""
        with sending.packing("the data"):
            return rpc.put(self._dataset)


class Servers:
    """A run's parameter servers: the first one, and more once their hosts are decided.

    Args:
        given: the data with which they are opened.
        there: servers of a killed coordinator that already serve, in the layout's order.

    Attributes:
        first: the server on the host that the request names.
        spare: a process without a model, to replace a lost server; None: there is none.
    """

    def __init__(
        self,
        request: Request,
        nodes: Sequence[Node],
        seats: Sequence[Placement],
        given: WorkerInit,
        there: Sequence[Server] = (),
    ) -> None:
        self._request, self._nodes, self._seats, self._given = request, nodes, seats, given
        self._resumed: Ref[Resumption] | None = None
        self._there = tuple(there)
        self._started: list[tuple[Server, Ref[Any]]] = []
        self.spare: Server | None = None
        self.first = self._there[0] if self._there else self._start(request.server_host)

    def opened(self) -> OptimizerFacts:
        """Wait for the first server, and return the facts about the job's optimizer.

        Raises:
            PlacementError: it did not start.
            JobError: the job's code failed there.
        """
        (server, opening), *_ = self._started
        optimizer = _opened(server.actor, opening, "the parameter server", server.host, time.monotonic())
        assert isinstance(optimizer, OptimizerFacts)
        return optimizer

    def restore(self, resumed: Resumption) -> Ref[None]:
        """Restore a checkpoint's state in the first server, once it is :meth:`opened`, and in all later ones."""
        self._resumed = rpc.put(resumed)
        return self.first.actor.call("restore", self._resumed)

    def on(self, hosts: Sequence[str]) -> tuple[Server, ...]:
        """Servers on each of these hosts: the first one stays, others are started and opened; all others end.

        Raises:
            PlacementError: a host has no node, or a server did not start.
            JobError: the job's code failed there.
        """
        for host in hosts:
            if host != self.first.host:
                self._start(host)
        since = time.monotonic()
        restoring: list[tuple[Server, Ref[Any]]] = []
        for server, opening in self._started[1:]:
            _opened(server.actor, opening, "a shard of the parameter server", server.host, since)
            if self._resumed is not None:
                restoring.append((server, server.actor.call("restore", self._resumed)))
        for server, call in restoring:  # a later call does not wait until the state has come from this host
            failure = f"a shard on {server.host} did not get the checkpoint's state"
            rpc.get_at_start(call, TRANSFER_S, failure, hint="look at its link and memory", host=server.host)
        if self.first.host not in hosts:
            self.first.actor.kill()
        by_host = {server.host: server for server, _ in self._started}
        return tuple(by_host[host] for host in hosts)

    def further(self, host: str, count: int) -> tuple[Server, ...]:
        """Start and open more servers on one host, to replace lost ones.

        Raises:
            PlacementError: the host has no node, or a server did not start.
            JobError: the job's code failed there.
        """
        self._nodes = placement.living_nodes()
        known = len(self._started)
        servers = tuple(self._start(host) for _ in range(count))
        since = time.monotonic()
        for server, opening in self._started[known:]:
            _opened(server.actor, opening, "a shard of the parameter server", host, since)
        return servers

    def have_spare(self, host: str) -> None:
        """Start a spare process on ``host``, without a model, to replace a lost server; does not wait for it.

        Starting a process and loading its libraries takes longer than all other steps of a shard's recovery.

        Raises:
            PlacementError: the host has no node.
        """
        self._nodes = placement.living_nodes()
        self.spare = Server(host=host, actor=self._process(host))
        self._warm = self.spare.actor.call("warm_up", self._given.job)

    @property
    def is_spare_warm(self) -> bool:
        """Whether the spare process, which there is, has loaded its libraries."""
        return rpc.first_ready([self._warm], 0.0) is not None

    def kill(self) -> None:
        spare = () if self.spare is None else (self.spare,)
        for server in (*self._there, *(server for server, _ in self._started), *spare):
            server.actor.kill()

    def _start(self, host: str) -> Server:
        spare, self.spare = self.spare, None
        # One that is still loading its libraries saves little, and may have stopped.
        useful = spare is not None and spare.host == host and self.is_spare_warm and pulse_of(spare.actor) is not None
        if spare is not None and not useful:
            spare.actor.kill()
        server = spare if spare is not None and useful else Server(host=host, actor=self._process(host))
        given = self._given
        opening = server.actor.call("open", given.job, given.state, self._request.config, given.options)
        self._started.append((server, opening))
        return server

    def _process(self, host: str) -> Actor:
        node = placement.node_of(host, self._nodes)
        # Beside workers on the same host a server takes its part of the cores only: threads that spin cost the others.
        sharing = sum(seat.node == node for seat in self._seats) + 1
        # A step whose slice is overdue must not hold up the same step submitted anew; data keeps the order of the rest.
        options = placement.actor_options(node, placement.RETURN_MEMORY) | {"allow_out_of_order_execution": True}
        threads = max(1, int(node.cpus) // sharing)
        name, logged = self._request.actor_name(SERVER), self._request.logged
        return rpc.start(ParameterServer, options, threads, logged, groups=(PING,), name=name)


class Workers:
    """Starts a run's workers, also during the run; :meth:`kill` ends them all.

    Args:
        given: the data with which they are opened.
        there: workers that a killed coordinator started.
    """

    def __init__(self, request: Request, given: WorkerInit, there: Sequence[Actor] = ()) -> None:
        self._request, self._given = request, given
        self._lock = threading.Lock()
        self._actors = list(there)
        self._ended = False

    def start(self, seat: Placement) -> tuple[Actor, Ref[Any]]:
        """Start and open a worker, for :meth:`opened`. It runs as soon as its host has a living node."""
        name = self._request.actor_name(WORKER)
        # How a sum is split over threads changes its last bits.
        threads = 1 if self._request.config.deterministic else seat.threads
        log = self._request.logged, seat.worker.partition("/")[2]
        is_stage = spec_of(self._request.config.strategy).split
        options = seat.options(placement.MAP_LARGE_MEMORY if is_stage else placement.KEEP_MEMORY)
        actor = rpc.start(Worker, options, seat.spec.device, threads, *log, groups=GROUPS, name=name)
        if self._request.prints is not None:
            self._request.prints.watch(seat.worker, actor)
        with self._lock:
            self._actors.append(actor)
            ended = self._ended
        if ended:
            actor.kill()
        given, config = self._given, self._request.config
        samples = given.samples
        if job_code.source() is not None:
            actor.call("enter", given.job)
        return actor, actor.call("open", given.job, samples, given.state, config, seat.spec.max_batch)

    def opened(self, seat: Placement, actor: Actor, opening: Ref[Any], since: float) -> WorkerReady:
        """Wait for a worker that was started at ``since`` on the monotonic clock.

        Raises:
            PlacementError: it did not start in time, or died.
            JobError: the job's code failed there, or the device is not there.
        """
        answer = _opened(actor, opening, f"worker {seat.worker}", seat.spec.host, since)
        assert isinstance(answer, WorkerReady)
        return answer

    def end(self, actor: Actor) -> None:
        with self._lock:
            if actor in self._actors:
                self._actors.remove(actor)
        if self._request.prints is not None:
            self._request.prints.forget(actor)
        actor.kill()

    def end_others(self, kept: Collection[Actor]) -> None:
        with self._lock:
            others = [actor for actor in self._actors if actor not in kept]
        for actor in others:
            self.end(actor)

    def kill(self) -> None:
        """End all workers, also those that are started later."""
        with self._lock:
            self._ended = True
            actors, self._actors = self._actors, []
        if self._request.prints is not None:
            self._request.prints.flush()
        for actor in actors:
            actor.kill()


@contextlib.contextmanager
def started(
    request: Request, model: nn.Module, dataset: Any, options: OptimizerOptions
) -> Iterator[tuple[Servers, OptimizerFacts, list[Candidate], Workers]]:
    """Start server and workers, and open them on their hosts; they end with the block.

    Args:
        model: the model with the first weights.
        dataset: the dataset as the workers index it.
        options: of the job's optimizer here.

    Yields:
        The servers, facts about the job's optimizer, the workers, and the object that starts more workers.

    Raises:
        PlacementError: a host has no node, there are fewer hosts than shards, or an actor did not start in time.
        DeviceUnfit: some devices are not there, or the model does not fit on them.
        JobError: the job's code failed there, or its data can't be sent.
    """
    nodes = placement.living_nodes()
    seats = placement.seats(request.devices, nodes, request.gpus)
    placement.check_shards(request.config.shards, [request.server_host, *(spec.host for spec in request.devices)])
    given = WorkerInit(request.job, model, dataset, options, split=spec_of(request.config.strategy).split)
    _ = given.samples  # what can't be sent is said before anything is started
    servers, workers = Servers(request, nodes, seats, given), Workers(request, given)
    try:
        opening = [(seat, *workers.start(seat)) for seat in seats]
        since = time.monotonic()
        optimizer = servers.opened()
        candidates, unfit = list[Candidate](), list[DeviceUnfit]()
        for seat, worker, ref in opening:
            try:
                candidates.append(Candidate(seat, worker, workers.opened(seat, worker, ref, since)))
            except DeviceUnfit as error:
                error.specs = (seat.spec,)
                unfit.append(error)
        if unfit:
            kind = type(unfit[0])  # those of another kind show at the next start
            raise kind.together([error for error in unfit if type(error) is kind])
        yield servers, optimizer, candidates, workers
    finally:
        servers.kill()
        workers.kill()


def _opened(actor: Actor, ref: Ref[Any], who: str, host: str, since: float) -> object:
    """Wait for the answer of an ``open`` call of an actor that was started at ``since`` on the monotonic clock.

    Raises:
        LostAtStart: the actor died; it answers no ping any more, or none within the time for its start.
        PlacementError: it took longer than :data:`LOAD_S`, or can't be started.
        JobError: the job's code failed there, or the device is not there.
    """
    hint = "look at the host's Ray log and free memory, or leave the host out of the run"
    heard = False
    while True:
        try:
            answer = rpc.get(ref, HANGS_S)
            break
        except rpc.Timeout:
            answers, seconds = pulse_of(actor) is not None, time.monotonic() - since
            if not answers and (heard or seconds >= PLACEMENT_S + OPEN_S):
                raise LostAtStart(f"{who} gives no answer after {seconds:.0f} s", hint=hint, host=host) from None
            if seconds >= LOAD_S:
                raise PlacementError(f"{who} did not start within {seconds:.0f} s", hint=hint, host=host) from None
            heard = heard or answers
        except rpc.Lost as error:
            hint = HINTS[LOADING] if rpc.is_of_unpacking(error) else hint
            raise LostAtStart(f"{who} did not start: {rpc.describe(error)}", hint=hint, host=host) from error
        except rpc.CallFailed as error:
            raise PlacementError(f"{who} did not start: {rpc.describe(error)}", hint=hint, host=host) from error
    if isinstance(answer, Failed):
        raise answer.error(host)
    return answer
