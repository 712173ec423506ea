"""All that the simulation has in the place of parts of the product: the only module that knows their insides.

The coordinator is ``engine.run`` as it is: it starts actors, measures, plans, trains, goes back to copies, and takes
over from a coordinator that was killed. Workers are the product's engines over a linear model; servers are its
:class:`ParameterServer`. What is not there is a device, a disk that is slow, and a measurement.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import pickle
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from remote_agent.models.blocks import blocks_of
from remote_agent.models.seams import trace
from remote_agent.planning import choice, cuts, sharding
from remote_agent.planning.blocks import BlockCost, DeviceBlocks
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.survey import Survey
from remote_agent.protocol import FINAL_KINDS, RunCommand, Step
from remote_agent.strategies import SPECS, spec_of
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.checkpoint.optimizer_state import Resumption
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import optimizer_check, setup
from remote_agent.training.coordinator.plan import placement, siting
from remote_agent.training.coordinator.plan.measurements import Measurements
from remote_agent.training.coordinator.plan.placement import Node
from remote_agent.training.coordinator.processes import crashes, joining
from remote_agent.training.coordinator.recovery import rollback
from remote_agent.training.coordinator.recovery.takeover import takeover
from remote_agent.training.coordinator.strategies import allreduce
from remote_agent.training.deadlines import LINK_CONNECT_S
from remote_agent.training.server import actor as server_actor
from remote_agent.training.server.actor import ParameterServer
from remote_agent.training.shared import dataplane, flat, link_speed
from remote_agent.training.shared.dataplane import OptimizerFacts, Usage
from remote_agent.training.shared.link_speed import LinkRates
from remote_agent.training.shared.messages import Pulse, Slice, WorkerReady
from remote_agent.training.shared.stages import micro_batch
from remote_agent.training.user_code import sending
from remote_agent.training.wire import link, listener, stage_links
from remote_agent.training.worker import channels, reducing, reduction, staged
from remote_agent.training.worker.device.compute import SliceLoss
from remote_agent.training.worker.engine import Engine, Parts
from remote_agent.training.worker.staging import StageParts
from tests.simulation.cluster import Cluster, Host, Network
from tests.simulation.kernel import BEGIN_S, Kernel, Waiters, installed
from tests.simulation.wire import Wires

for _spec in SPECS.values():  # what is imported later would have the real clock
    _ = _spec.strategy(), _spec.engine()

SAMPLE_S, STEP_S = 0.1, 0.05
"""What a sample costs on a device of slowness 1, and a slice beside its samples: a step takes about a second."""

OPEN_S = (0.3, 2.0)
"""A new process's start."""

PROFILE = DeviceProfile(1 / SAMPLE_S, STEP_S)

DECISIONS = ((sharding, "decide"), (choice, "choose"), (cuts, "cut"))
"""Of the planner, which are pure: else it decides in a tenth of the processor time what it decided before."""


class Compute:
    """Computes slices, and takes its time for it. Torch's autograd would have a tenth of all processor time."""

    scalars = types.SimpleNamespace(take=dict)
    simulated = on_last = on_repeat = watch = None

    def __init__(self, factory: Any, model: nn.Module, host: Host) -> None:
        self._backward, self._model, self._host = factory.backward, model, host

    def reduced(self) -> int:
        return 0

    def __call__(self, step: int, own: Slice, at: str = "") -> SliceLoss:
        del step, at
        kernel, on_last = self._host.kernel, cast("Callable[[SliceLoss], None] | None", self.on_last)
        kernel.wait(kernel.now + self._host.slowness * (STEP_S + SAMPLE_S * len(own.indices)))
        loss, gradients = self._backward(self._model, own.indices)
        result = SliceLoss(loss / len(own.indices), float(len(own.indices)))
        if on_last is not None:
            on_last(result)
        for parameter, gradient in reversed(gradients):
            parameter.grad = gradient
            for hook in (parameter._post_accumulate_grad_hooks or {}).values():
                hook(parameter)
        return result


class StageCompute:
    """What a stage computes with: a micro-batch takes its time when its forward, and its backward, is done."""

    device, dtype, summed = torch.device("cpu"), None, False

    def __init__(self, factory: Any, host: Host) -> None:
        self.scalars = types.SimpleNamespace(
            take=dict, again=lambda: None, settle=lambda: None, samples=0, loss=factory.mean_loss
        )
        self.simulated, self._host = self, host

    def fetched(self, indices: Any, begin: int) -> Any:
        del begin
        return indices

    def refuse_lost(self, loss: Any, samples: Any, count: int, batch: int) -> None:
        """No sample is left out."""

    def wait(self, seconds: float) -> None:
        self._host.kernel.wait(self._host.kernel.now + seconds)

    def sleep_until_target(self, samples: int, began: float, pace: float) -> None:
        del began
        self.wait(self._host.slowness * pace * SAMPLE_S * samples)


class Blocks:
    """What :class:`~remote_agent.training.worker.staging.BlockProfiler` found out."""

    def __init__(self, factory: Any, model: nn.Module, host: Host, config: TrainingConfig) -> None:
        blocks = blocks_of(model, factory.layers)
        seams = trace(model, blocks, lambda: factory.mean_loss(model, np.arange(2)))
        compute = cast("Any", StageCompute(factory, host))
        self.parts = StageParts(model, blocks, seams, compute, factory, config)
        # The first takes twice as long: each of three devices gets blocks, and so does each of two.
        parts, samples = (2, *(1,) * (len(blocks) - 1)), micro_batch(config)
        third = host.slowness * SAMPLE_S * samples / sum(parts) / 3
        boundary = len(stage_links.pack([torch.zeros(samples, dtype=next(model.parameters()).dtype)]))
        costs = [
            BlockCost(
                forward_s=part * third, backward_s=2 * part * third, weights=8, trained=8, held=8, boundary=boundary
            )
            for part in parts
        ]
        self.costs = DeviceBlocks(blocks=tuple(costs), room=1e9)


class Queue:
    """As ``queue.SimpleQueue``."""

    def __init__(self, kernel: Kernel) -> None:
        self._items: deque[Any] = deque()
        self._waiters = Waiters(kernel)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake()

    def get(self) -> Any:
        while not self._items:
            self._waiters.wait(None)
        return self._items.popleft()


class HostedWorker:
    """What :class:`~remote_agent.training.worker.actor.Worker` is to the coordinator, over the real engine."""

    def __init__(self, host: Host, factory: Any) -> None:
        self._host, self._factory = host, factory
        self._engine: Engine | None = None

    def open(self, blob: bytes, data: Any, state: bytes, config: TrainingConfig, most: int | None) -> WorkerReady:
        del blob, data, most
        self._config, self._state = config, state_of(state)
        self._host.kernel.wait(self._host.kernel.now + self._host.kernel.random.uniform(*OPEN_S))
        return WorkerReady(machine=self._host.name, cores=1, device="cpu")

    def prepare(self, buffers: Any, reference: Any, config: TrainingConfig, options: Any = None) -> None:
        del buffers, reference
        self._config, model = config, self._factory.create_model()
        split = spec_of(config.strategy).split
        if self._state:
            model.load_state_dict(self._state)
        parts = Parts(
            model=model,
            weights=flat.FlatTensors(model),
            compute=cast("Any", Compute(self._factory, model, self._host)),
            factory=self._factory,
            config=config,
            buffers=(),
            options=options,
            blocks=cast("Any", Blocks(self._factory, model, self._host, config)) if split else None,
        )
        self._engine = spec_of(config.strategy).engine()(parts)

    def audit(self, task: Any) -> None:
        """As if it had no room for so many samples."""

    def engine(self, method: str, *arguments: Any) -> Any:
        answer = getattr(self._engine, method)(*arguments)
        return copy.deepcopy(answer) if method in ("own_weights", "remembered") else answer  # as Ray does with all

    def account(self, coordinator: str) -> Any:
        return self._engine.account(coordinator) if self._engine is not None else None

    def place(self) -> str:
        return self._host.name

    def link_open(self) -> tuple[tuple[str, int], int]:
        return (self._host.name, 0), 0

    def link_reaches(self, addresses: Sequence[tuple[str, int]]) -> tuple[float | None, ...]:
        kernel, missing = self._host.kernel, [name in self._host.apart for name, _ in addresses]
        kernel.wait(kernel.now + LINK_CONNECT_S * sum(missing))
        return tuple(None if is_missing else 0.001 for is_missing in missing)

    def link_close(self) -> None:
        pass

    def ping(self) -> Pulse:
        if self._engine is None:
            return Pulse()
        return Pulse(done=self._engine.computed, following=self._engine.following)


class HostedServer(ParameterServer):
    """The real one, opened without files."""

    def __init__(self, host: Host, factory: Any) -> None:
        self._host, self._factory, self._watchdog, self._streams = host, factory, None, []

    def warm_up(self, blob: bytes) -> None:
        del blob
        self._host.kernel.wait(self._host.kernel.now + self._host.kernel.random.uniform(*OPEN_S))
        self._is_warm = True

    def open(self, blob: bytes, state: bytes, config: TrainingConfig, options: Any = None) -> OptimizerFacts:
        del options
        if not getattr(self, "_is_warm", False):
            self.warm_up(blob)
        self._model = self._factory.create_model()
        given = state_of(state)
        if given:
            self._model.load_state_dict(given)
        self._optimizer = self._factory.create_optimizer(self._model, config)
        self._config = config
        self._streams, self._resumed, self._shapes, self._held = [], Resumption(step=0), {}, ()
        return dataplane.facts(self._model, self._optimizer)


def state_of(state: bytes) -> dict[str, torch.Tensor]:
    """The first weights, as the coordinator sends them."""
    import safetensors.torch

    return safetensors.torch.load(state) if state else {}


class Journal:
    """Events of a run, in memory: those of a coordinator that is killed are there for the next one."""

    path = None

    def __init__(
        self, kernel: Kernel, events: list[tuple[float, str, dict[str, Any]]], made: Callable[[], None]
    ) -> None:
        self._kernel, self.events, self._made = kernel, events, made
        steps = [fields["step"] for _, kind, fields in events if kind == Step.__name__]
        self.continued, self.ended, self.step, self.closed = bool(events), "", max(steps, default=0), False
        self.listeners: list[Any] = []
        self.left = ""

    def write(self, kind: type, **fields: Any) -> None:
        if self.closed:
            return
        self.events.append((self._kernel.now - BEGIN_S, kind.__name__, fields))
        self.closed = getattr(kind, "kind", "") in FINAL_KINDS
        if kind is Step:
            self._made()


class Control:
    """What the user wants, as :class:`~remote_agent.training.coordinator.control.Control` has it."""

    def __init__(self, commands: list[RunCommand], offset: int | None = None) -> None:
        self._commands = commands
        self.offset = len(commands) if offset is None else offset

    def poll(self) -> tuple[RunCommand, ...]:
        added = tuple(self._commands[self.offset :])
        self.offset += len(added)
        return added


def measured(candidates: Sequence[Any], *_: Any, **__: Any) -> Measurements:
    """As ``measure`` has it."""
    return Measurements((PROFILE,) * len(candidates), Usage(), None, 1.0, PROFILE)


def surveyed(
    of: dict[str, Host], hosts: Sequence[str], actors: Sequence[Any], *, alone: bool = False
) -> tuple[LinkRates, ...]:
    """As ``survey`` has it; nothing is shared."""
    del actors, alone
    rates = [of[name].rate or 1e8 for name in hosts]
    return tuple(LinkRates(up=rate, down=rate, memory=1 << 34, reachable=True) for rate in rates)


def remembered(decide: Callable[..., Any]) -> Callable[..., Any]:
    """As ``decide``, which has the same few questions to answer in all schedules."""
    known: dict[bytes, Any] = {}

    def answer(*given: Any, **named: Any) -> Any:
        # When something was measured decides nothing.
        same = [dataclasses.replace(each, time=0.0) if isinstance(each, Survey) else each for each in given]
        question = pickle.dumps((same, named))
        if question not in known:
            known[question] = decide(*given, **named)
        return known[question]

    return answer


PURE = [(module, name, remembered(getattr(module, name))) for module, name in DECISIONS]


def hosted(factory: Any) -> Callable[..., Any]:
    """What makes the actors of a cluster; the job's ``factory`` is here already."""

    def make(host: Host, cls: type, *_: Any) -> Any:
        return HostedServer(host, factory) if cls is ParameterServer else HostedWorker(host, factory)

    return make


def node(host: Host) -> Node:
    """Ray's node on a host."""
    return Node(host=host.name, selector=("host", host.name), cpus=1, gpus=0)


@contextlib.contextmanager
def of_engine(kernel: Kernel, cluster: Cluster, head: Host, commands: list[RunCommand]) -> Iterator[None]:
    """What the engine's modules ask for, in the simulation's place."""
    network, wires = Network(kernel), Wires(kernel, cluster.hosts)
    links = functools.partial(surveyed, cluster.hosts)

    def here() -> str:
        owner = kernel.current.owner
        assert owner is not None, "it is a process"
        return str(owner.process.host.name)

    def nodes() -> tuple[Node, ...]:
        return tuple(node(host) for host in cluster.hosts.values() if host.node)

    ray = types.SimpleNamespace(util=types.SimpleNamespace(get_node_ip_address=here))
    handshake = types.SimpleNamespace(connect=wires.connect, accept=wires.accept)
    memory = types.SimpleNamespace(virtual_memory=lambda: types.SimpleNamespace(available=1 << 34))
    places: list[tuple[Any, str, Any]] = [
        (allreduce, "ray", ray),
        (reducing, "ray", ray),
        (staged, "ray", ray),
        (stage_links, "handshake", handshake),
        (stage_links, "queue", types.SimpleNamespace(SimpleQueue=lambda: Queue(kernel))),
        (server_actor, "ray", ray),
        (allreduce, "Rendezvous", network.meeting),
        (reduction, "ProcessGroup", network.group),
        (link, "handshake", handshake),
        (listener, "handshake", handshake),
        (listener, "socket", wires),
        (listener, "Connection", wires.connection),
        (server_actor, "place", here),
        (server_actor, "_give_back_memory", lambda: None),
        (channels, "place", here),
        (staged, "gc", types.SimpleNamespace(collect=lambda: None)),  # of all that there is, not of one process
        (placement, "living_nodes", nodes),
        (placement, "here", lambda _: node(head)),
        (setup, "measure", measured),
        (joining, "measure", measured),
        (siting, "survey", links),
        (link_speed, "survey", links),
        *PURE,
        (sharding, "chunk_numbers", lambda numel, shards: -(-numel // (2 * shards))),
        (crashes, "last_call_here", lambda _: None),
        (rollback, "psutil", memory),
        (setup, "Control", lambda _, offset: Control(commands, offset)),
        (takeover, "Control", lambda _, offset: Control(commands, offset)),
        (optimizer_check, "relative_to_adamw", lambda *_: 1.0),
        (
            torch,
            "manual_seed",
            torch.default_generator.manual_seed,
        ),  # else it formats the stack, for accelerators
        (torch.autograd.profiler, "record_function", lambda _: contextlib.nullcontext()),
        (sending, "dumps", lambda _: b""),
        (checkpoint, "_flush", lambda _: None),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        with cluster.installed(), installed(kernel, ("remote_agent.training",)):
            yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
