"""A run among simulated hosts, with faults from a seed, and what has to hold of it."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from remote_agent.protocol import DeviceSpec, RunCommand
from remote_agent.strategies import spec_of
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import members
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.plan.measure import Measurements
from remote_agent.training.coordinator.plan.placement import Node, Placement
from remote_agent.training.coordinator.processes import joining
from remote_agent.training.coordinator.processes.joining import Joining
from remote_agent.training.coordinator.session import Session, StepReport
from remote_agent.training.coordinator.strategies import allreduce
from remote_agent.training.coordinator.strategies.base import Strategy
from remote_agent.training.coordinator.strategies.streamed import Streamed
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.data.record import gaps_and_overlaps
from remote_agent.training.errors import PlacementError
from remote_agent.training.shared import flat, rpc
from remote_agent.training.shared.dataplane import StreamPlan, Usage
from remote_agent.training.shared.device_profile import DeviceProfile
from remote_agent.training.shared.findings import Findings
from remote_agent.training.shared.messages import Pulse, Slice, WorkerReady
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.wire.agreement import EXACT
from remote_agent.training.wire.endpoint import StreamInfo
from remote_agent.training.worker import reducing, reduction, served
from remote_agent.training.worker.device.compute import SliceLoss
from remote_agent.training.worker.engine import Engine, Parts
from remote_agent.training.worker.reducing import ReductionEngine
from remote_agent.training.worker.served import StreamedEngine
from tests.simulation.cluster import Gloo, Host, Network, SimulatedActor, simulated_rpc
from tests.simulation.kernel import BEGIN_S, Kernel, Stuck, installed
from tests.simulation.servers import Alive, Server, SimulatedChannel

HOSTS = "abc"
SAMPLES, BATCH, WIDTH, SEED = 120, 24, 3, 7
SAMPLE_S, STEP_S = 0.1, 0.05
"""What a sample costs on a device of slowness 1, and a slice beside its samples: a step takes about half a second."""

OPEN_S = (0.5, 4.0)
"""A new worker's start."""

FAULTS_S, QUIET_S, MAX_STALL_S = 20.0, 25.0, 10.0
"""Faults come in the first so many seconds, and then there are none for so long. Without a step for the last one it is
a hang."""


class Line(nn.Module):
    """A linear model of a few numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, dtype=dtype))


@dataclass(frozen=True)
class Way:
    """A strategy: its coordinator's half, its workers' half, what it computes in, and how alike sums are in that."""

    name: str
    strategy: type[Strategy]
    engine: type[Engine]
    dtype: torch.dtype
    tolerance: float


WAYS = {
    way.name: way
    for way in (
        Way("allreduce", allreduce.AllReduce, ReductionEngine, torch.float64, 1e-9),
        Way("sync", Streamed, StreamedEngine, torch.float32, 2e-5),
    )
}


@dataclass
class Job:
    """The factory: model and optimizer."""

    dtype: torch.dtype

    def create_model(self) -> nn.Module:
        return Line(self.dtype)

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.1 * torch.randn(
        SAMPLES, generator=generator, dtype=torch.float64
    )


X, Y = data()


class Compute:
    """Computes slices of the linear model, and takes its time for it."""

    scalars = types.SimpleNamespace(take=dict)
    simulated = on_last = on_repeat = None

    def __init__(self, model: Line, host: Host) -> None:
        self._model, self._host = model, host

    def reduced(self) -> int:
        return 0

    def __call__(self, step: int, own: Slice, at: str = "") -> SliceLoss:
        del step, at
        kernel = self._host.kernel
        kernel.wait(kernel.now + self._host.slowness * (STEP_S + SAMPLE_S * len(own.indices)))
        dtype = self._model.weight.dtype
        x, y = X[own.indices].to(dtype), Y[own.indices].to(dtype)
        self._model.weight.grad = None
        loss = ((x @ self._model.weight - y) ** 2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return SliceLoss(float(loss.detach()) / len(own.indices), float(len(own.indices)))


class Hosted:
    """What :class:`~remote_agent.training.worker.actor.Worker` is to the coordinator, over the real engine."""

    def __init__(self, host: Host, way: Way, joins: Any) -> None:
        self._host = host
        model = Line(way.dtype)
        parts = Parts(
            model=model,
            weights=flat.FlatTensors(model),
            compute=cast("Any", Compute(model, host)),
            factory=Job(way.dtype),
            config=config_of(way),
            buffers=(),
        )
        self._engine = way.engine(parts)
        if joins is not None:
            self._engine.join(joins)

    def engine(self, method: str, *arguments: Any) -> Any:
        return getattr(self._engine, method)(*arguments)

    def open(self) -> WorkerReady:
        self._host.kernel.wait(self._host.kernel.now + self._host.kernel.random.uniform(*OPEN_S))
        return WorkerReady(machine=self._host.name, cores=1, device="cpu")

    def prepare(self, *_: Any) -> None:
        """It is."""

    def ping(self) -> Pulse:
        return Pulse(done=self._engine.computed, following=self._engine.following)


class Journal:
    """Events of a run, in memory."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.events: list[tuple[float, str, dict[str, Any]]] = []

    def write(self, kind: type, **fields: Any) -> None:
        self.events.append((self._kernel.now - BEGIN_S, kind.__name__, fields))


@dataclass
class World:
    """A run that is under way in a simulation.

    Attributes:
        kernel: its clock.
        hosts: by name.
        session: of the real strategy.
        wanted: commands of the user, as they come.
    """

    kernel: Kernel
    hosts: dict[str, Host]
    way: Way
    session: Session = field(init=False)
    wanted: list[RunCommand] = field(default_factory=list)

    def worker(self, host: str, joins: Any = None) -> SimulatedActor:
        """A new worker's process, which ``joins`` that way at once, where one is given."""
        machine = self.hosts[host]
        actor = SimulatedActor(machine, lambda: Hosted(machine, self.way, joins))
        Gloo.actors[actor.key] = actor
        return actor

    def poll(self) -> tuple[RunCommand, ...]:
        """As ``Control`` has it."""
        wanted, self.wanted = self.wanted, []
        return tuple(wanted)

    def channel(
        self, layout: Any, doors: Sequence[Any], secret: bytes, first: torch.Tensor, codecs: Any, step: int | None
    ) -> SimulatedChannel:
        """As ``open_channel`` has it."""
        del layout, secret, codecs
        actor = next(each for each in Gloo.actors.values() if each.owner is self.kernel.current.owner)
        return SimulatedChannel(self.kernel, doors[0], actor, first, step)

    def nodes(self) -> tuple[Node, ...]:
        """As ``placement.living_nodes`` has it."""
        return tuple(seat(host.name).node for host in self.hosts.values() if host.node)


class Starting:
    """As ``Workers`` has it, for the real ``Joining``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def start(self, seat: Placement) -> tuple[SimulatedActor, Ref[Any]]:
        """Start a worker's process, and open it."""
        actor = self._world.worker(seat.spec.host)
        return actor, actor.call("open")

    def opened(self, seat: Placement, opening: Ref[Any], deadline: float) -> WorkerReady:
        """Wait for it."""
        try:
            return cast("WorkerReady", rpc.get(opening, deadline - self._world.kernel.now))
        except (*rpc.Lost, rpc.Timeout) as error:
            raise PlacementError("the worker did not start", host=seat.spec.host) from error

    def end(self, actor: SimulatedActor) -> None:
        """End its process."""
        actor.kill()

    def kill(self) -> None:
        """End all."""


def config_of(way: Way) -> TrainingConfig:
    return TrainingConfig(
        strategy=way.name, batch_size=BATCH, num_iterations=10**6, slice_deadline_s=20, seed=SEED, stream="network"
    )


def seat(host: str) -> Placement:
    node = Node(host=host, selector=("host", host), cpus=1, gpus=0)
    return Placement(worker=f"{host}/cpu", spec=DeviceSpec(host=host, device="cpu", name="cpu"), node=node, threads=1)


def handle(seat: Placement, actor: SimulatedActor) -> WorkerHandle:
    return WorkerHandle(seat, cast("Any", actor), SpeedTrack(DeviceProfile(1 / SAMPLE_S, STEP_S)))


@dataclass(frozen=True)
class Fault:
    """Something that happens to a host: ``kind`` at ``at`` seconds, for ``seconds``."""

    at: float
    kind: str
    host: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:.2f} s: {self.kind} {self.host} for {self.seconds:.2f} s"


KINDS = ("kill", "tear", "freeze", "cut", "power", "slow", "drain")


def faults_of(kernel: Kernel) -> list[Fault]:
    """A schedule: one to six faults; never on all hosts at once, which would take the weights with them."""
    drawn: list[Fault] = []
    for _ in range(kernel.random.randint(1, 6)):
        at = kernel.random.uniform(0.1, FAULTS_S)
        seconds = kernel.random.choice((0.2, 1.0, 3.0, 8.0)) * kernel.random.uniform(0.5, 1.5)
        drawn.append(Fault(at, kernel.random.choice(KINDS), kernel.random.choice(HOSTS[1:]), seconds))
    return sorted(drawn, key=lambda fault: fault.at)


def inflict(world: World, fault: Fault) -> None:
    """Have it happen now."""
    kernel, host = world.kernel, world.hosts[fault.host]
    match fault.kind:
        case "kill":
            for actor in list(host.actors):
                actor.end()
        case "tear":
            host.tears = True
        case "power":
            host.cut(fault.seconds)
            for actor in list(host.actors):
                actor.end()
        case "freeze":
            for actor in host.actors:
                actor.owner.frozen = True
                kernel.after(fault.seconds, lambda owner=actor.owner: kernel.thaw(owner))  # type: ignore[misc]
        case "cut":
            host.cut(fault.seconds)
        case "slow":
            host.slowness = 4.0
            kernel.after(fault.seconds, lambda: setattr(host, "slowness", 1.0))
        case "drain":
            world.wanted.append(RunCommand(command="drain", host=host.name))
            back = RunCommand(command="add", devices=(seat(host.name).spec,))
            kernel.after(fault.seconds, lambda: world.wanted.append(back))


def measured(candidates: Sequence[Any], *_: Any) -> Measurements:
    """As ``measure`` has it."""
    profiles = tuple(DeviceProfile(1 / SAMPLE_S, STEP_S) for _ in candidates)
    return Measurements(profiles, Usage(), Findings(), 1.0, profiles[0])


@contextlib.contextmanager
def of_engine(world: World, network: Network) -> Iterator[None]:
    """What the engine's modules ask for, in the simulation's place."""
    ray = types.SimpleNamespace(util=types.SimpleNamespace(get_node_ip_address=lambda: "here"))
    places: list[tuple[Any, str, Any]] = [
        (allreduce, "ray", ray),
        (reducing, "ray", ray),
        (allreduce, "MeetingPlace", network.meeting),
        (reduction, "ProcessGroup", network.group),
        (placement, "living_nodes", world.nodes),
        (joining, "measure", measured),
        (served, "open_channel", world.channel),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        with simulated_rpc(world.kernel), installed(world.kernel, ("remote_agent.training",)):
            yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@dataclass(frozen=True)
class Outcome:
    """Of a schedule: what was wrong, in words (nothing, if it is empty), and what happened."""

    seed: int
    way: str
    faults: tuple[Fault, ...]
    wrong: str
    steps: int
    stall_s: float
    events: tuple[str, ...]


def simulate(seed: int, faults: Sequence[Fault] | None = None, way: str = "allreduce") -> Outcome:
    """One schedule, checked."""
    kernel = Kernel(seed)
    drawn = faults_of(kernel)
    faults = drawn if faults is None else faults
    world, network = World(kernel, {name: Host(name, kernel) for name in HOSTS}, WAYS[way]), Network(kernel)
    config = config_of(world.way)
    Gloo.actors = {}
    journal = Journal(kernel)
    end = BEGIN_S + FAULTS_S + QUIET_S
    order = SampleOrder(SEED, SAMPLES, BATCH)
    reports: list[StepReport] = []
    wrong = ""
    with of_engine(world, network):
        first = Line(world.way.dtype)
        server = Server(world.hosts["a"], first.weight, Job(world.way.dtype).create_optimizer(first, config))
        plan = StreamPlan(names=("weight",), groups=(WIDTH,), watched=())
        entry = StreamInfo(plan=plan, layout=cast("Any", None), doors=cast("Any", (server,)), secret=b"", codecs=EXACT)
        is_served = spec_of(way).servers
        crew = [handle(seat(name), world.worker(name, entry if is_served else ())) for name in HOSTS]
        reference = DeviceProfile(1 / SAMPLE_S, STEP_S)
        workers = cast("Any", Starting(world))
        starting = Joining(workers, entry if is_served else None, buffers=(), reference=reference, config=config)
        shards = (members.Server(host="a", actor=cast("Any", SimulatedActor(server.host, Alive))),) if is_served else ()
        nothing = types.SimpleNamespace(
            died=lambda *_: None, hung=lambda *_: None, look=lambda *_: None, is_held_up=lambda _: False
        )
        world.session = Session(
            config=config,
            membership=members.MembershipRecord(crew),
            servers=shards,
            order=order,
            source=cast("Any", None),
            payload_bytes=8 * WIDTH,
            buffer_names=(),
            journal=cast("Any", journal),
            stopping=lambda: kernel.now > end,
            joining=starting,
            control=cast("Any", world),
            crashes=cast("Any", nothing),
        )
        for fault in faults:
            kernel.at(BEGIN_S + fault.at, lambda fault=fault: inflict(world, fault))  # type: ignore[misc]
        overdue = Watchdog(kernel)
        weights: dict[str, flat.Payload] = {}
        try:
            with starting:
                for report in world.way.strategy().steps(world.session):
                    overdue.step()
                    reports.append(report)
                    if kernel.now > end:
                        # The last step is committed before it is reported.
                        calls = {member.name: member.call("weights") for member in world.session.members}
                        weights = {name: rpc.get(call, MAX_STALL_S) for name, call in calls.items()}
            wrong = check(reports, weights, order, world)
        except (Stuck, Hang) as error:
            wrong = f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - whatever the engine ends a run with is a finding here
            wrong = f"the run ended: {error!r}"
        finally:
            kernel.close()
    said = tuple(f"{at:8.3f} {kind} {fields}" for at, kind, fields in journal.events)
    return Outcome(seed, way, tuple(faults), wrong, len(reports), overdue.longest_s, said)


class Hang(AssertionError):
    """No step for too long."""


class Watchdog:
    """Ends a simulation without progress."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._steps, self._last, self.longest_s = kernel, 0, kernel.now, 0.0
        self.step()

    def step(self) -> None:
        self.longest_s, self._last = max(self.longest_s, self._kernel.now - self._last), self._kernel.now
        self._steps += 1
        number = self._steps
        self._kernel.after(MAX_STALL_S, lambda: self._look(number))

    def _look(self, number: int) -> None:
        if number == self._steps:
            self._kernel.stop(Hang(f"no step for {MAX_STALL_S:g} s"))


def check(reports: list[StepReport], weights: dict[str, flat.Payload], order: SampleOrder, world: World) -> str:
    """What is wrong with a run that came to its end; empty: nothing."""
    if [report.step for report in reports] != list(range(1, len(reports) + 1)):
        return f"steps {[report.step for report in reports]}"
    for report in reports:
        first, last = order.span(report.step)
        odd = gaps_and_overlaps(sorted(report.slices, key=lambda span: span.begin), last) if report.step == 1 else ()
        spans = sorted((span.begin, span.end) for span in report.slices)
        edges = [first, *(end for _, end in spans)]
        if odd or [begin for begin, _ in spans] != edges[:-1] or edges[-1] != last:
            return f"step {report.step} has the slices {spans}, not {first} to {last}"
    model = Line(torch.float64)
    optimizer = Job(torch.float64).create_optimizer(model, world.session.config)
    for report in reports:
        indices = order.take(*order.span(report.step))
        optimizer.zero_grad()
        ((X[indices] @ model.weight - Y[indices]) ** 2).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    if not weights:
        return "the run ended too soon"
    for name, payload in weights.items():
        trained = flat.from_bytes(payload[0], world.way.dtype).double()
        if not torch.allclose(trained, model.weight.detach(), rtol=world.way.tolerance, atol=world.way.tolerance):
            return f"{name} has the weights {trained.tolist()}, and {model.weight.tolist()} are a plain loop's"
    missing = set(HOSTS) - {member.host for member in world.session.members}
    return f"{', '.join(sorted(missing))} takes no part at the end" if missing else ""


def shrunk(outcome: Outcome) -> Outcome:
    """The same failure with as few faults as will do, for whoever looks for its cause."""
    faults = list(outcome.faults)
    for fault in outcome.faults:
        fewer = [each for each in faults if each is not fault]
        again = simulate(outcome.seed, fewer, outcome.way)
        if again.wrong:
            faults, outcome = fewer, again
    return dataclasses.replace(outcome, faults=tuple(faults))
