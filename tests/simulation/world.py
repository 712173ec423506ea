"""A run among simulated hosts, with faults from a seed, and what has to hold of it."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remote_agent.protocol import DeviceSpec, RunCommand
from remote_agent.states import ControlCommand
from remote_agent.strategies import spec_of
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import engine, loop, main, setup
from remote_agent.training.coordinator.recovery import restart
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.session import Session
from remote_agent.training.data import record
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.data.record import gaps_and_overlaps
from remote_agent.training.deadlines import HANGS_S
from remote_agent.training.errors import LostAtStart, TrainingError
from remote_agent.training.job import Job
from remote_agent.training.server.actor import ParameterServer
from remote_agent.training.shared import flat, rpc
from remote_agent.training.shared.slices import SliceSpan
from tests.simulation.cluster import Cluster, Host, SimulatedActor
from tests.simulation.kernel import BEGIN_S, Event, Kernel, Owner, Stuck
from tests.simulation.product import Journal, hosted, of_engine

HOSTS = "abc"
"""The coordinator is on the first one, which is never cut off: whoever loses it goes on from a copy of the run."""

SAMPLES, BATCH, LOCAL_BATCH, WIDTH, SEED, RATE = 120, 24, 3, 3, 7, 0.05

FAULTS_S, QUIET_S, MAX_STALL_S = 5.0, 75.0, 25.0
"""Faults come within so many seconds; so long after the last of them all hosts have to train. Without a step for the
last one it is a hang."""

STARTED_S = 2.5
"""When a run that nothing happens to makes its first steps."""

STOPS_S = 2.0
"""A worker that is about to leave stops within so many seconds."""

START_S = 40.0
"""Until the first step: a process that is stopped is waited for then."""

WELL_STEPS = 2
"""Steps that are made with all hosts, at the end."""

_SERVER = ParameterServer.__name__

LEFT_S = 12.0
"""Until nothing of a run may be left, after its end."""


class Line(nn.Module):
    """A linear model of a few numbers; ``tally`` has a number for each sample, whose gradient counts it."""

    def __init__(self, dtype: torch.dtype, tally: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(1, dtype=dtype))
        self.tally = nn.Parameter(torch.zeros(SAMPLES, dtype=dtype)) if tally else None


class Term(nn.Module):
    """One number of :class:`Terms`, which counts for one column of the data."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, total: Tensor, column: Tensor) -> Tensor:
        return total + self.weight * column


class Terms(nn.Module):
    """The same linear model in blocks, of which each adds one column's part to what the one before gives."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.terms = nn.ModuleList(Term(dtype) for _ in range(WIDTH + 1))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x), dtype=x.dtype)
        for term, column in zip(self.terms, (*x.unbind(1), torch.ones_like(total)), strict=True):
            total = term(total, column)
        return total


@dataclass(frozen=True)
class Way:
    """A strategy with settings: what it computes in, and how alike sums are in that.

    ``exact``: the weights are those of a plain loop, or of plain local steps; else each sample is tallied. ``rate`` is
    that of all hosts' links in bytes/s; 0: any. A slice takes ``slowness`` times as long on each host. ``devices`` are
    the hosts of the devices.
    """

    name: str
    settings: Mapping[str, Any]
    dtype: torch.dtype = torch.float32
    tolerance: float = 2e-5
    momentum: float = 0.0
    exact: bool = True
    rate: float = 0.0
    slowness: tuple[float, ...] = (1.0,) * len(HOSTS)
    devices: str = HOSTS


WAYS = {
    way.name: way
    for way in (
        Way("allreduce", {"strategy": "allreduce"}, torch.float64, 1e-9, momentum=0.9),
        Way("allreduce_pairs", {"strategy": "allreduce"}, torch.float64, 1e-9, momentum=0.9, devices="aabbc"),
        Way(
            "pipeline",
            {"strategy": "pipeline", "micro_batch": 5, "checkpoint_every": 3},
            torch.float64,
            1e-9,
            momentum=0.9,
        ),
        Way("sync", {"strategy": "sync"}, momentum=0.9),
        Way("sync_pairs", {"strategy": "sync"}, momentum=0.9, devices="aabbc"),
        Way("local_sgd", {"strategy": "local_sgd", "local_steps": 2, "local_batch": LOCAL_BATCH}),
        Way(
            "local_sgd_pairs",
            {"strategy": "local_sgd", "local_steps": 2, "local_batch": LOCAL_BATCH, "overlap": True},
            exact=False,
            devices="aabbc",
        ),
        Way(
            "local_sgd_overlap",
            {"strategy": "local_sgd", "local_steps": 2, "local_batch": LOCAL_BATCH, "overlap": True},
            exact=False,
        ),
    )
}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.1 * torch.randn(
        SAMPLES, generator=generator, dtype=torch.float64
    )


X, Y = data()
OF_DTYPE = {dtype: (X.to(dtype), Y.to(dtype)) for dtype in (torch.float32, torch.float64)}


@dataclass(frozen=True)
class Factory:
    """The job."""

    way: Way

    def create_model(self) -> nn.Module:
        if spec_of(self.way.settings["strategy"]).split:
            return Terms(self.way.dtype)
        return Line(self.way.dtype, tally=not self.way.exact)

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        del config
        return torch.optim.SGD(model.parameters(), lr=RATE, momentum=self.way.momentum)

    def create_data(self) -> Any:
        return torch.utils.data.TensorDataset(torch.arange(SAMPLES))

    @staticmethod
    def layers(model: Any) -> Any:
        """What a pipeline cuts."""
        return model.terms

    def mean_loss(self, model: nn.Module, indices: Any) -> Tensor:
        """The mean over the samples, of :class:`Terms`."""
        x, y = OF_DTYPE[self.way.dtype]
        return nn.functional.mse_loss(model(x[indices]), y[indices])

    @staticmethod
    def backward(model: Line, indices: Any) -> tuple[float, list[tuple[nn.Parameter, Tensor]]]:
        """The loss, which is the sum over the samples, and each parameter's gradient, in its dtype."""
        x, y = (tensor.numpy()[indices] for tensor in OF_DTYPE[model.weight.dtype])
        off = x @ model.weight.detach().numpy() + model.bias.detach().numpy() - y
        loss = float(off @ off)
        gradients = [(model.weight, torch.from_numpy(2 * (off @ x)))]
        gradients.append((model.bias, torch.from_numpy(2 * off.sum(keepdims=True))))
        if model.tally is not None:
            tally = model.tally.detach().numpy()
            loss += float(tally[indices].sum())
            counts = np.bincount(indices, minlength=SAMPLES).astype(tally.dtype)
            gradients.append((model.tally, torch.from_numpy(counts)))
        return loss, gradients


@dataclass(frozen=True)
class Fault:
    """Something that happens to a host: ``kind`` at ``at`` seconds, for ``seconds`` where it lasts."""

    at: float
    kind: str
    host: str
    seconds: float

    @property
    def end(self) -> float:
        """When it is over."""
        return self.at + (self.seconds if self.kind in LASTING else 0.0)

    def __str__(self) -> str:
        return f"{self.at:.2f} s: {self.kind} {self.host}" + (
            f" for {self.seconds:.2f} s" if self.kind in LASTING else ""
        )


KINDS = {
    "kill": "all processes on the host end",
    "worker": "its worker ends, or one of them",
    "shard": "its parameter server ends",
    "tear": "a process ends when it has sent a part of what it sends",
    "freeze": "its processes are stopped for a while",
    "cut": "nothing reaches it, and nothing comes from it",
    "deaf": "nothing reaches it, though what it sends arrives",
    "mute": "nothing comes from it, though it receives",
    "power": "it is cut off, and all processes on it end",
    "reset": "its connections break, and what is on them is lost; Ray loses some answers",
    "sleep": "it stops with all its processes, and what it was sent arrives when it wakes",
    "apart": "nothing passes between it and another host, though the coordinator's reaches both",
    "slow": "it computes at a fourth of its speed",
    "drain": "the user drains it, and adds it again",
    "hang": "the same, and its worker stops for good while it is about to leave",
    "coordinator": "the coordinator ends, and another one begins",
    "pause": "the coordinator is stopped for a while",
    "throttle": "it computes at 0.3 of its speed from then on",
}
LASTING = ("freeze", "cut", "deaf", "mute", "power", "slow", "drain", "hang", "pause", "sleep", "apart")
OF_FIRST = ("worker", "shard", "tear", "reset", "slow", "drain", "hang", "coordinator")
OF_OTHERS = ("kill", "worker", "shard", "tear", "freeze", "cut", "power", "reset", "slow", "drain", "hang")

VARIANTS = {"cut": ("cut", "cut", "deaf", "mute"), "coordinator": ("coordinator", "coordinator", "pause")}
"""What some of these faults are instead."""

SELDOM = {"freeze": "sleep", "reset": "sleep", "cut": "apart"}
"""What a fifth of those is instead. Drawn apart, too: most seeds keep what they had."""


def faults_of(seed: int) -> list[Fault]:
    """A schedule: one to six faults, of which some come at once; half of the schedules leave a run's start alone."""
    draws, drawn = random.Random(f"faults of {seed}"), list[Fault]()
    first_s = draws.choice((0.1, STARTED_S))
    for _ in range(draws.randint(1, 6)):
        at = first_s + draws.uniform(0.0, FAULTS_S)
        host = draws.choice(HOSTS)
        if drawn and draws.random() < 0.3:
            at = drawn[-1].at + draws.choice((0.0, 0.01, 0.3, 1.0))
            host = draws.choice((drawn[-1].host, host))
        kind = draws.choice(OF_FIRST if host == HOSTS[0] else OF_OTHERS)
        seconds = draws.choice((0.2, 1.0, 3.0, 8.0)) * draws.uniform(0.5, 1.5)
        if kind == "hang" and any(fault.kind == "hang" for fault in drawn):
            kind = "drain"  # where all workers hang, there is nothing to go on with
        drawn.append(Fault(at, kind, host, seconds))
    # Drawn apart from the rest, which stays what it was.
    apart = random.Random(f"variants of {seed}")
    varied = [dataclasses.replace(fault, kind=apart.choice(VARIANTS.get(fault.kind, (fault.kind,)))) for fault in drawn]
    seldom = random.Random(f"seldom kinds of {seed}")
    varied = [
        dataclasses.replace(fault, kind=SELDOM[fault.kind]) if fault.kind in SELDOM and seldom.random() < 0.2 else fault
        for fault in varied
    ]
    return sorted(varied, key=lambda fault: fault.at)


class Hang(AssertionError):
    """No step for too long."""


class World:
    """A run that is under way in a simulation.

    Args:
        seed: decides all that is left open.
        way: how it trains.
        faults: what happens; None: that follows from the seed.
        hosts: that there are.
        factory: the job; None: the usual one.
    """

    def __init__(
        self,
        seed: int,
        way: Way,
        faults: Sequence[Fault] | None,
        *,
        hosts: str = HOSTS,
        factory: Factory | None = None,
    ) -> None:
        self.kernel = kernel = Kernel(seed)
        self.way, self.faults = way, tuple(faults_of(seed) if faults is None else faults)
        shards = kernel.random.choice((1, 2, 2))
        slowness = dict(zip(HOSTS, way.slowness, strict=True))
        self.hosts = {name: Host(name, kernel, rate=way.rate, slowness=slowness.get(name, 1.0)) for name in hosts}
        self.head = self.hosts[HOSTS[0]]
        self.factory = factory if factory is not None else Factory(way)
        self.cluster = Cluster(kernel, self.hosts, hosted(self.factory))
        self.folder = Path(tempfile.mkdtemp(prefix="simulated-", dir=_memory()))
        self.events: list[tuple[float, str, dict[str, Any]]] = []
        self.commands: list[RunCommand] = []
        self.session: Session | None = None
        self.outcome: loop.Outcome | None = None
        self.weights: dict[str, flat.Payload] = {}
        self.error: Exception | None = None
        self.coordinator = Owner("none")
        self.longest_s, self.steps, self.starts = 0.0, 0, 0
        self._last, self._well = kernel.now, 0
        # A worker that stops for good may be the only one that has the weights: until it is known that it does.
        self._max_stall_s = MAX_STALL_S + HANGS_S * any(fault.kind == "hang" for fault in self.faults)
        self._max_stall_s += sum(fault.seconds for fault in self.faults if self._stops_all(fault))
        self._ended = Event(kernel)
        self.last_fault_s = max((fault.end for fault in self.faults), default=0.0)
        config = TrainingConfig(
            batch_size=BATCH,
            num_iterations=10**6,
            slice_deadline_s=20,
            seed=SEED,
            stream="network",
            shards=shards if spec_of(way.settings["strategy"]).servers else 0,
            learning_rate=RATE,
            **way.settings,
        )
        self.request = Request(
            run="simulated",
            job=Job("simulated", self.factory, self.factory.create_data),
            config=config,
            devices=tuple(spec for name in hosts for spec in self._specs(name)),
            server_host=HOSTS[0],
            host=HOSTS[0],
            folder=self.folder,
            lasting=spec_of(config.strategy).servers and not config.overlap,
        )

    def _stops_all(self, fault: Fault) -> bool:
        """Whether no step can be made as long as it lasts."""
        return fault.kind == "pause" or (fault.kind == "sleep" and fault.host == HOSTS[0])

    def _specs(self, host: str) -> tuple[DeviceSpec, ...]:
        names = ["cpu", *(f"cuda:{number}" for number in range(self.way.devices.count(host) - 1))]
        return tuple(DeviceSpec(host=host, device=name, name=name) for name in names)

    # --- The run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the run is over, and nothing is left of it.

        Raises:
            AssertionError: it hangs, or leaves something behind.
        """
        kernel = self.kernel
        self._watch(0)
        may_go_on = main._Progress(self.folder)
        while True:
            self._start()
            self._ended.wait()
            if not self.coordinator.dead and not self._has_to_begin_anew():
                break
            kernel.wait(kernel.now + kernel.random.uniform(0.05, 0.3))
            self._end(self.cluster.unnamed)  # Ray has ended these with their coordinator
            self.request = dataclasses.replace(self.request, follows=True)
            if self.error is not None or not may_go_on():
                self._again()
        self._last = kernel.now + LEFT_S
        kernel.wait(kernel.now + LEFT_S)
        left = [actor.key for host in self.hosts.values() for actor in host.actors]
        left += kernel.alive(self.coordinator)
        left += [str(path) for path in self.folder.glob("*.pickle")]
        if left and self.error is None:
            raise AssertionError(f"left behind: {', '.join(left)}")

    def _start(self) -> None:
        """A new coordinator."""
        self._ended.clear()
        self.coordinator = Owner("coordinator", process=self)
        self.kernel.spawn("coordinator", self._coordinate, self.coordinator)

    @property
    def host(self) -> Host:
        """The coordinator's."""
        return self.head

    def _coordinate(self) -> None:
        try:
            self.outcome = engine.run(
                self.request, cast("Any", Journal(self.kernel, self.events, self._made)), self._over
            )
        except Exception as error:  # noqa: BLE001 - whatever the engine ends a run with is a finding here
            self.error = error
        self._ended.set()

    def _has_to_begin_anew(self) -> bool:
        """Whether the run ended before its first checkpoint as the product says that it may: the user starts it again.

        An actor was lost in each start.
        """
        if self.error is None or self._checkpoints() or not isinstance(self.error, TrainingError):
            return False
        self.events.append((self.kernel.now - BEGIN_S, "GivenUp", {"cause": str(self.error)}))
        return isinstance(self.error, LostAtStart) and self.starts >= restart.MAX_STARTS

    def _checkpoints(self) -> bool:
        return any((self.folder / checkpoint.FOLDER).glob("step-*.json"))

    def _again(self) -> None:
        """The user resumes the run, or starts it again."""
        self.events.append((self.kernel.now - BEGIN_S, "ByHand", {}))
        self._end([actor for actor in map(self.cluster.find, self.cluster.lasting()) if actor is not None])
        self.request = dataclasses.replace(self.request, resume=self.folder)
        for path in self.folder.glob("*.pickle"):
            path.unlink()
        self.error = None
        if not self._checkpoints():
            self.request = dataclasses.replace(self.request, resume=None, follows=False)
            (self.folder / record.FILE).unlink(missing_ok=True)
            self.events.append((self.kernel.now - BEGIN_S, "StartedAnew", {}))
            while not all(host.node for host in self.hosts.values()):  # the user would be told which one is away
                self.kernel.wait(self.kernel.now + 0.5)

    def train(self, real: Callable[..., Any], request: Request, model: nn.Module, session: Session, *rest: Any) -> Any:
        """As ``loop.train``, which is ``real``: keeps what is looked at afterwards."""
        self.session, self.starts = session, 0
        outcome = real(request, model, session, *rest)
        for host in self.hosts.values():
            host.tears = False  # the run has ended: a process that ends while it is looked at says nothing about it
        workers = {actor for host in self.hosts.values() for actor in self._workers(host)}
        used = (*session.members, *session.membership.leaving)  # of those the last may still do what they were given
        if unused := workers - {member.actor for member in used}:
            self.kernel.errors.append(f"the process {min(actor.key for actor in unused)} is left, which nobody uses")
        if not spec_of(request.config.strategy).split:  # else each has a part of them
            calls = {member.name: member.call("weights") for member in session.members}
            self.weights = {name: rpc.get(call, MAX_STALL_S) for name, call in calls.items()}
        return outcome

    # --- What happens ------------------------------------------------------------------------------------------------

    def inflict(self, fault: Fault) -> None:
        """Have it happen now."""
        kernel, host = self.kernel, self.hosts[fault.host]
        match fault.kind:
            case "kill":
                self._end(host.actors)
            case "worker":
                workers = self._workers(host)
                has_one = len(self._specs(host.name)) == 1
                self._end(workers if has_one else kernel.random.sample(workers, min(1, len(workers))))
            case "shard":
                self._end([actor for actor in host.actors if _SERVER in actor.key])
            case "tear":
                host.tears = True
            case "power":
                host.cut(fault.seconds)
                self._end(host.actors)
            case "freeze" | "sleep":
                self._stop(host, fault)
            case "cut" | "deaf" | "mute":
                host.cut(fault.seconds, into=fault.kind != "mute", out=fault.kind != "deaf")
            case "apart":
                host.part(self._other(host), fault.seconds)
            case "reset":
                host.reset()
                host.lose_calls(0.3)
            case "slow" | "throttle":
                self._weaken(host, fault)
            case "drain" | "hang":
                if fault.kind == "hang":
                    kernel.after(kernel.random.uniform(0.0, STOPS_S), lambda: self._stop_worker(host))
                self._wish(RunCommand(command=ControlCommand.DRAIN, host=host.name))
                back = RunCommand(command=ControlCommand.ADD, devices=self._specs(host.name))
                kernel.after(fault.seconds, lambda: self._wish(back))
            case "coordinator" | "pause":
                self._disturb_coordinator(fault)

    def _stop(self, host: Host, fault: Fault) -> None:
        if fault.kind == "sleep":
            host.sleep(fault.seconds, has_head=host is self.head)
            if host is self.head:
                self._disturb_coordinator(dataclasses.replace(fault, kind="pause"))
            return
        for actor in host.actors:
            actor.owner.frozen = True
            self.kernel.after(fault.seconds, lambda owner=actor.owner: self.kernel.thaw(owner))  # type: ignore[misc]

    def _other(self, host: Host) -> Host:
        """A host that is neither the coordinator's nor this one."""
        return next(each for each in self.hosts.values() if each not in (host, self.head))

    def _disturb_coordinator(self, fault: Fault) -> None:
        kernel, disturbed = self.kernel, self.coordinator
        if fault.kind == "pause":
            disturbed.frozen = True
            kernel.after(fault.seconds, lambda: kernel.thaw(disturbed))
        elif not self._ended.is_set():
            kernel.kill(disturbed)
            self._ended.set()

    def _weaken(self, host: Host, fault: Fault) -> None:
        if fault.kind == "throttle":
            host.slowness = 1 / 0.3
        else:
            host.slowness = 4.0
            self.kernel.after(fault.seconds, lambda: setattr(host, "slowness", 1.0))

    @staticmethod
    def _workers(host: Host) -> list[SimulatedActor]:
        return [actor for actor in host.actors if _SERVER not in actor.key]

    def _stop_worker(self, host: Host) -> None:
        """Its worker stops for good, if it takes part, or still does what it was given."""
        record = self.session.membership if self.session is not None else None
        for member in (*record.members, *record.leaving) if record is not None else ():
            if member.host == host.name:
                member.actor.owner.frozen = True  # type: ignore[attr-defined]

    def _wish(self, command: RunCommand) -> None:
        self.commands.append(command)

    @staticmethod
    def _end(actors: Sequence[SimulatedActor]) -> None:
        for actor in list(actors):
            actor.end()

    # --- Progress ----------------------------------------------------------------------------------------------------

    def _made(self) -> None:
        """A step was made."""
        kernel, session = self.kernel, self.session
        self.longest_s, self._last = max(self.longest_s, kernel.now - self._last), kernel.now
        self.steps += 1
        is_well = session is not None and not session.away and not self.missing(session)
        # One that ended while the coordinator was stopped is not missed before some more steps.
        is_well = is_well and not any(member.actor.owner.dead for member in cast("Any", session).members)
        is_over = kernel.now - BEGIN_S > self.last_fault_s
        self._well = self._well + 1 if is_well and is_over else 0

    def missing(self, session: Session) -> set[str]:
        """Hosts of which not all devices take part."""
        members = Counter(member.host for member in session.members)
        return set((Counter(self.way.devices) - members).elements())

    def _over(self) -> bool:
        """Whether the run is to end: all is well again, or had the time for it."""
        return self._well >= WELL_STEPS or self.kernel.now - BEGIN_S > self.last_fault_s + QUIET_S

    def _watch(self, steps: int) -> None:
        limit = self._max_stall_s if self.steps else max(START_S, self._max_stall_s)
        if steps == self.steps and self.kernel.now - self._last >= limit:
            self.kernel.stop(Hang(f"no step for {limit:g} s"))
        steps = self.steps
        self.kernel.after(MAX_STALL_S / 10, lambda: self._watch(steps))


def _memory() -> str | None:
    """Where files lie in memory."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextlib.contextmanager
def installed_for(world: World) -> Iterator[None]:
    def begun(*given: Any, **named: Any) -> Any:
        world.starts += 1
        return setup.session_of(*given, **named)

    try:
        with (
            patch.object(engine, "train", lambda *given: world.train(loop.train, *given)),
            patch.object(engine, "session_of", begun),
            of_engine(world.kernel, world.cluster, world.head, world.commands),
        ):
            yield
    finally:
        shutil.rmtree(world.folder, ignore_errors=True)


@dataclass(frozen=True)
class Outcome:
    """Of a schedule: what was wrong, in words (nothing, if it is empty), and what happened."""

    seed: int
    way: str
    faults: tuple[Fault, ...]
    wrong: str
    steps: int
    stall_s: float
    events: tuple[str, ...] = field(repr=False)


GARBAGE = 500_000
"""Objects after which cycles of them are looked for, those of some schedules: else it takes a fifth of the time."""


@contextlib.contextmanager
def many() -> Iterator[None]:
    """Collect garbage seldom until the block, which has many schedules, ends, and let torch compute in one thread.

    A second one would have nothing to do, and spin: it more than doubles the processor time.
    """
    usual, threads, is_frozen = gc.get_threshold(), torch.get_num_threads(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.set_threshold(*usual)
        if not is_frozen:
            gc.unfreeze()


def simulate(
    seed: int, faults: Sequence[Fault] | None = None, way: str | Way = "allreduce", *, tells: bool = True
) -> Outcome:
    """One schedule, checked; ``tells`` its events in words."""
    if isinstance(way, str):
        way = WAYS[way]
    world = World(seed, way, faults)
    wrong = ""
    with installed_for(world):
        for fault in world.faults:
            world.kernel.at(BEGIN_S + fault.at, lambda fault=fault: world.inflict(fault))  # type: ignore[misc]
        try:
            world.run()
            wrong = check(world)
        except (Stuck, AssertionError) as error:
            wrong = f"{type(error).__name__}: {error}"
        finally:
            world.kernel.close()
    events = world.events if tells else ()
    said = tuple(f"{at:8.3f} {kind} {fields}".replace(str(world.folder), "") for at, kind, fields in events)
    return Outcome(seed, way.name, world.faults, wrong, world.steps, world.longest_s, said)


# --- What has to hold ------------------------------------------------------------------------------------------------


def check(world: World) -> str:
    """What is wrong with a run that came to its end; empty: nothing."""
    if world.error is not None:
        return f"the run ended: {world.error!r}"
    if world.kernel.errors:
        return "; ".join(world.kernel.errors)
    assert world.outcome is not None, "it ended well"
    made = record.read(world.folder / record.FILE)
    if list(made) != list(range(1, len(made) + 1)):
        return f"steps {list(made)}"
    end = max((span.end for spans in made.values() for span in spans), default=0)
    odd = gaps_and_overlaps([span for spans in made.values() for span in spans], end)
    if odd:
        return "; ".join(odd)
    order = SampleOrder(SEED, SAMPLES, BATCH)
    wanted = _reference(world, order, made, end)
    found = dict(world.weights)
    if not found and not spec_of(world.request.config.strategy).split:
        return "nobody gave the weights"
    models = {
        name: torch.cat([flat.from_bytes(part, world.way.dtype) for part in given]) for name, given in found.items()
    }
    models["the checkpoint"] = torch.cat([each.detach() for each in world.outcome.model.parameters()])
    for name, trained in models.items():
        compared = trained.double() if world.way.exact else trained.double()[-SAMPLES:]
        if not torch.allclose(compared, wanted, rtol=world.way.tolerance, atol=world.way.tolerance):
            odd_ones = (~torch.isclose(compared, wanted, rtol=world.way.tolerance)).nonzero().flatten().tolist()
            pairs = ", ".join(f"{compared[each]:.6g} for {wanted[each]:.6g}" for each in odd_ones[:4])
            return f"{name}: {len(odd_ones)} of {len(wanted)} weights are others than wanted: {pairs}"
    assert world.session is not None, "it was trained"
    missing = world.missing(world.session)
    return f"{', '.join(sorted(missing))} takes no part at the end" if missing else ""


def _reference(world: World, order: SampleOrder, made: Mapping[int, Sequence[SliceSpan]], end: int) -> Tensor:
    """The weights that the run has to have come to: a plain loop's, in float64."""
    if not world.way.exact:
        return _tallied(world, order, made, end)
    weights, velocity = np.zeros(WIDTH + 1), np.zeros(WIDTH + 1)
    for step, spans in made.items():
        if spec_of(world.way.settings["strategy"]).rounds:
            weights = _round(weights, [order.take(span.begin, span.end) for span in spans])
            continue
        velocity = world.way.momentum * velocity + _gradient(weights, order.take(*order.span(step)))
        weights = weights - RATE * velocity
    return torch.from_numpy(weights)


ROWS, WANTED = np.concatenate([X.numpy(), np.ones((SAMPLES, 1))], axis=1), Y.numpy()


def _gradient(weights: NDArray[np.float64], indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean over the samples, of :meth:`Factory.backward`."""
    rows = ROWS[indices]
    return 2 * (rows @ weights - WANTED[indices]) @ rows / len(indices)  # type: ignore[no-any-return]


def _round(weights: NDArray[np.float64], slices: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """A round of local steps, each slice from the same weights; then the mean, by samples."""
    total = np.zeros_like(weights)
    for indices in slices:
        own = weights
        for begin in range(0, len(indices), LOCAL_BATCH):
            own = own - RATE * _gradient(own, indices[begin : begin + LOCAL_BATCH])
        total += len(indices) * own
    return total / sum(map(len, slices))


def _tallied(world: World, order: SampleOrder, made: Mapping[int, Sequence[SliceSpan]], end: int) -> Tensor:
    """What the samples' own numbers have to be: each has moved as often as the order has it up to ``end``."""
    tally = torch.zeros(SAMPLES, dtype=torch.float64)
    if not spec_of(world.request.config.strategy).rounds:
        tally.index_add_(0, torch.as_tensor(order.take(0, end)), torch.full((end,), -RATE / BATCH, dtype=torch.float64))
        return tally
    for spans in made.values():
        total = sum(span.end - span.begin for span in spans)
        for span in spans:
            indices = order.take(span.begin, span.end)
            for begin in range(0, len(indices), LOCAL_BATCH):
                batch = torch.as_tensor(indices[begin : begin + LOCAL_BATCH])
                moved = -RATE / len(batch) * len(indices) / total
                tally.index_add_(0, batch, torch.full((len(batch),), moved, dtype=torch.float64))
    return tally


def shrunk(outcome: Outcome) -> Outcome:
    """The same failure with as few faults as will do, for whoever looks for its cause."""
    faults = list(outcome.faults)
    for fault in outcome.faults:
        fewer = [each for each in faults if each is not fault]
        again = simulate(outcome.seed, fewer, outcome.way)
        if again.wrong:
            faults, outcome = fewer, again
    return dataclasses.replace(outcome, faults=tuple(faults))
