"""Hosts, processes and messages of a simulation: what Ray and gloo are to the engine, as far as it asks."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from ray import exceptions
from torch import Tensor

from remote_agent.training.deadlines import GROUP_S, REDUCE_S
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import PING, GroupMembership
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.wire.deadlines import SILENCE_S
from remote_agent.training.worker.process_group import GroupBroken, levels
from tests.simulation.kernel import Condition, Kernel, Killed, Owner, Waiters

LATENCY_S = (0.0002, 0.003)
"""Of a message."""

_SOONEST_S, _RANGE_S = LATENCY_S[0], LATENCY_S[1] - LATENCY_S[0]

NOTICED_S = (0.01, 0.3)
"""Until Ray says that a process has ended."""

ENDS_S = (0.1, 1.5)
"""Until a host that wakes, and was given up by Ray, has ended its processes."""

DEAD_NODE_S = 5.0
"""Silence after which Ray gives up a node, and ends what is on it."""


class Breakable(Protocol):
    """A connection's end on a host."""

    owner: Owner | None
    peer: str

    def closed_by_system(self) -> None:
        """Its process ended."""

    def break_off(self) -> None:
        """Both ends are no more, and what was under way is lost."""


class Direction:
    """One direction of a host's link: those that send take turns, a message each, as TCP connections share a link."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: dict[object, deque[tuple[float, Callable[[], None], Callable[[], None]]]] = {}
        self._carries = False

    def carry(self, sender: object, size: float, begins: Callable[[], None], ends: Callable[[], None]) -> None:
        """Carry so many bytes; it is told when that begins, and when it has ended."""
        self._waiting.setdefault(sender, deque()).append((size, begins, ends))
        if not self._carries:
            self._next()

    def _next(self) -> None:
        self._carries = bool(self._waiting)
        if not self._carries:
            return
        sender = next(iter(self._waiting))
        queue = self._waiting.pop(sender)
        size, begins, ends = queue.popleft()
        if queue:
            self._waiting[sender] = queue  # behind the others
        begins()

        def carried() -> None:
            ends()
            self._next()

        self._host.kernel.after(size / self._host.rate if self._host.rate else 0.0, carried)


@dataclass(eq=False)
class Host:
    """A machine.

    Attributes:
        name: of it.
        kernel: of the simulation.
        slowness: a slice takes so many times as long.
        rate: bytes/s that its link carries in each direction; 0: any.
        is_deaf, is_mute: messages to it wait; messages from it do.
        apart: hosts that it does not reach, and that do not reach it; messages between them wait.
        node: Ray's node is there.
        tears: the process on it that next sends something to several others dies when some of it is sent.
        connections: their ends here.
        groups: what gloo has between processes here and others.
    """

    name: str
    kernel: Kernel
    slowness: float = 1.0
    rate: float = 0.0
    is_deaf: bool = False
    is_mute: bool = False
    node: bool = True
    tears: bool = False
    apart: set[str] = field(default_factory=set)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    actors: list[SimulatedActor] = field(default_factory=list)
    ended: list[SimulatedActor] = field(default_factory=list)
    connections: set[Breakable] = field(default_factory=set)
    _cuts: int = 0

    def __post_init__(self) -> None:
        self.out, self.into = Direction(self), Direction(self)

    @property
    def is_cut(self) -> bool:
        """Whether messages from or to it wait."""
        return self.is_deaf or self.is_mute

    def message(self, arrives: Callable[[], None], *, out: bool = False) -> None:
        """From Ray's head to this host, or back: it arrives after a while, and not while that way is cut off."""
        between(self, self, arrives, out=out)

    def cut(self, seconds: float, *, into: bool = True, out: bool = True) -> None:
        """Pull its cable for so long, or lose what goes one way; Ray gives the node up where that is long, and
        connections break."""
        number = self._silent(seconds, into=into, out=out)
        self.kernel.after(DEAD_NODE_S, lambda: self._give_up(number))

    def sleep(self, seconds: float, *, has_head: bool) -> None:
        """It stops with all its processes; what it was sent arrives when it wakes.

        Ray gives the node up where that is long, and its processes live on for a moment then: they carry out what they
        were given. A host that has Ray's head gives nobody up, as the head sleeps as well.
        """
        number = self._silent(seconds)
        sleeping, kernel = [actor.owner for actor in self.actors], self.kernel
        for owner in sleeping:
            owner.frozen = True
        if not has_head:
            kernel.after(DEAD_NODE_S, lambda: self._give_up_asleep(number))
        for owner in sleeping:
            kernel.after(seconds, functools.partial(kernel.thaw, owner))

    def part(self, other: Host, seconds: float) -> None:
        """Nothing passes between this host and another one for so long; Ray's head reaches both."""
        for one, another in ((self, other), (other, self)):
            one.apart.add(another.name)
        self.kernel.after(SILENCE_S, lambda: self._tear_from(other) if other.name in self.apart else None)
        self.kernel.after(seconds, lambda: self._reach(other))

    def _tear_from(self, other: Host) -> None:
        for actor in self.actors:
            for group in actor.groups:
                if other.name in group.hosts:
                    group.torn.add(self)
                    group.changed.notify_all()
        for connection in sorted(self.connections, key=str):
            if connection.peer == other.name:
                connection.break_off()

    def _reach(self, other: Host) -> None:
        for one, another in ((self, other), (other, self)):
            one.apart.discard(another.name)
            one.deliver()

    def _silent(self, seconds: float, *, into: bool = True, out: bool = True) -> int:
        self._cuts += 1
        number, self.is_deaf, self.is_mute = self._cuts, self.is_deaf or into, self.is_mute or out
        self.kernel.after(SILENCE_S, lambda: self.reset() if self.is_cut and self._cuts == number else None)
        self.kernel.after(seconds, lambda: self._mend(number))
        return number

    def reset(self) -> None:
        """All connections break, and what was under way on them is lost."""
        for actor in self.actors:
            for group in actor.groups:
                group.torn.add(self)
                group.changed.notify_all()
        for connection in sorted(self.connections, key=lambda each: str(each)):
            connection.break_off()
        self.connections.clear()

    def lose_calls(self, part: float) -> None:
        """Ray does not know what becomes of some calls that are under way to processes here."""
        for actor in self.actors:
            actor.lose_calls(part)

    def _give_up(self, number: int) -> None:
        if self.is_cut and self._cuts == number:
            self.node = False
            for actor in list(self.actors):
                actor.end()
            for actor in self.ended:
                actor.all_dead()

    def _give_up_asleep(self, number: int) -> None:
        if not self.is_cut or self._cuts != number:
            return
        self.node = False
        for actor in self.actors:
            actor.is_given_up = True
            actor.all_dead()

    def _mend(self, number: int) -> None:
        if self._cuts != number:
            return
        self.is_deaf, self.is_mute = False, False
        given_up = [actor for actor in self.actors if actor.is_given_up]
        if given_up:  # its raylet is told that it is dead, and ends what it started
            self.kernel.after(self.kernel.random.uniform(*ENDS_S), lambda: self._come_back(given_up))
        else:
            self.node = True
        self.deliver()

    def _come_back(self, ended: Sequence[SimulatedActor]) -> None:
        for actor in ended:
            actor.end()
        self.node = True

    def deliver(self) -> None:
        """What waited arrives, unless it still has to wait."""
        waiting, self.waiting = self.waiting, []
        for arrives in waiting:
            self.kernel.after(self.kernel.random.uniform(*LATENCY_S), arrives)


def between(
    here: Host,
    there: Host,
    arrives: Callable[[], None],
    size: float = 0.0,
    sender: object = None,
    *,
    out: bool = False,
) -> None:
    """A message of so many bytes: it arrives after a while, and not while one of the two is cut off.

    Between two hosts it goes out of the one's link and, from when that begins, into the other's. From a host to itself
    means between it and Ray's head, with ``out`` to there.
    """
    kernel = here.kernel
    message = _Message(None if here is there and not out else here, None if here is there and out else there, arrives)

    if here is there or not size or not (here.rate or there.rate):
        kernel.after(_SOONEST_S + _RANGE_S * kernel.random.random(), message)
        return
    left = 2

    def through() -> None:
        nonlocal left
        left -= 1
        if not left:
            kernel.after(_SOONEST_S + _RANGE_S * kernel.random.random(), message)

    here.out.carry(sender, size, lambda: there.into.carry(sender, size, lambda: None, through), through)


class _Message:
    """What is under way; an object, since a function that names itself would be left for the garbage collector."""

    __slots__ = ("_arrives", "_here", "_there")

    def __init__(self, here: Host | None, there: Host | None, arrives: Callable[[], None]) -> None:
        self._here, self._there, self._arrives = here, there, arrives

    def __call__(self) -> None:
        if self._here is not None and self._here.is_mute:
            self._here.waiting.append(self)
        elif self._there is not None and self._there.is_deaf:
            self._there.waiting.append(self)
        elif self._here is not None and self._there is not None and self._there.name in self._here.apart:
            self._here.waiting.append(self)
        else:
            self._arrives()


class Promise:
    """What a call will answer."""

    __slots__ = ("error", "is_there", "value", "waiters")

    def __init__(self, kernel: Kernel) -> None:
        self.waiters = Waiters(kernel)
        self.is_there = False
        self.value: Any = None
        self.error: Exception | None = None

    def set(self, value: Any, error: Exception | None = None) -> None:
        """It is there; the first word counts."""
        if not self.is_there:
            self.is_there, self.value, self.error = True, value, error
            self.waiters.wake()


class SimulatedActor:
    """A process on a host that answers calls, as :class:`rpc.Actor` has it: one thread for each group of calls.

    Args:
        host: where it is.
        make: makes what answers.
        key: its id.
        name: under which it can be found; with one it outlives the process that started it.
    """

    def __init__(self, host: Host, make: Callable[[], Any], key: str, name: str = "") -> None:
        self.host, self._kernel = host, host.kernel
        self.key, self.name = key, name
        self.owner = Owner(key, process=self)
        self._hosted: Any = None
        self._make = make
        self._sent: dict[str, deque[tuple[str, tuple[Any, ...], Promise]]] = {}
        self._queues: dict[str, deque[tuple[str, tuple[Any, ...], Promise]]] = {}
        self._wakes: dict[str, Waiters] = {}
        self._busy: set[str] = set()
        self._promised: list[Promise] = []
        self.is_closed = self.is_given_up = False
        self.groups: list[_Group] = []
        host.actors.append(self)

    def call(self, method: str, *arguments: Any) -> Ref[Any]:
        """See :meth:`rpc.Actor.call`."""
        return self.call_in("", method, *arguments)

    def call_in(self, group: str, method: str, *arguments: Any) -> Ref[Any]:
        """See :meth:`rpc.Actor.call_in`."""
        promise = Promise(self._kernel)
        if len(self._promised) > 20:
            self._promised = [each for each in self._promised if not each.is_there]
        self._promised.append(promise)
        if self.owner.dead or self.is_given_up:
            self._tell_dead(promise)
        else:
            self._sent.setdefault(group, deque()).append((method, arguments, promise))
            self.host.message(lambda: self._arrive(group))
        return Ref(promise)

    def kill(self) -> None:
        """See :meth:`rpc.Actor.kill`."""
        self.host.message(self.end)

    def end(self) -> None:
        """The process ends, however it came to that."""
        if self.owner.dead:
            return
        self._kernel.kill(self.owner)
        self.host.actors.remove(self)
        self.host.ended.append(self)
        for promise in self._promised:
            self._tell_dead(promise)
        for connection in sorted(self.host.connections, key=str):
            if connection.owner is self.owner:
                connection.closed_by_system()
        # What it sent last arrives before that its connections are closed.
        self._kernel.after(2 * LATENCY_S[1], lambda: self.host.message(self._close, out=True))

    def all_dead(self) -> None:
        """Ray has given the host up."""
        for promise in self._promised:
            promise.set(None, exceptions.ActorDiedError())

    def lose_calls(self, part: float) -> None:
        """See :meth:`Host.lose_calls`."""
        for promise in self._promised:
            if not promise.is_there and self._kernel.random.random() < part:
                promise.set(None, exceptions.ActorUnavailableError("connection lost", None))

    def _close(self) -> None:
        self.is_closed = True
        for group in self.groups:
            group.changed.notify_all()

    def _tell_dead(self, promise: Promise) -> None:
        seconds = self._kernel.random.uniform(*NOTICED_S)

        def tell() -> None:
            promise.set(None, exceptions.ActorDiedError())

        if self.host.node:  # what is on the host says so, and not while it is cut off
            self._kernel.after(seconds, lambda: self.host.message(tell, out=True))
        else:
            self._kernel.after(seconds, tell)

    def _arrive(self, group: str) -> None:
        """The next call of a group arrives: they do so in their order, as Ray's do."""
        method, arguments, promise = self._sent[group].popleft()
        if self.owner.dead:
            self._tell_dead(promise)
            return
        if group not in self._queues:
            self._queues[group], self._wakes[group] = deque(), Waiters(self._kernel)
            self._kernel.spawn(f"{self.key} {group}", lambda: self._serve(group), self.owner)
        queue = self._queues[group]
        is_idle = not queue and group not in self._busy and not self.owner.frozen
        if group == PING and method == "ping" and self._hosted is not None and is_idle:
            self._carry_out(method, arguments, promise)  # it waits for nothing: a thread would only cost time
            return
        queue.append((method, arguments, promise))
        self._wakes[group].wake()

    def _serve(self, group: str) -> None:
        queue, wakes = self._queues[group], self._wakes[group]
        while True:
            while not queue:
                wakes.wait(None)
            self._busy.add(group)
            self._carry_out(*queue.popleft())
            self._busy.discard(group)

    def _carry_out(self, method: str, arguments: tuple[Any, ...], promise: Promise) -> None:
        is_called = False
        try:
            given = [rpc.get(each, GROUP_S) if isinstance(each, Ref) else each for each in arguments]
            if self._hosted is None:
                self._hosted = self._make()
            is_called = True
            value, error = getattr(self._hosted, method)(*given), None
        except Killed:
            raise
        except Exception as raised:  # noqa: BLE001 - as Ray tells it
            if is_called:  # actors of the product answer with what went wrong
                self._kernel.errors.append(f"the call {method!r} of {self.key} ended with {raised!r}")
            value, error = None, exceptions.RayTaskError(method, str(raised), raised, ip=self.host.name)
        self.host.message(lambda: promise.set(value, error), out=True)


class Cluster:
    """What :mod:`~remote_agent.training.shared.rpc` asks of Ray.

    Args:
        kernel: of the simulation.
        hosts: by name.
        make: from a host, the actor's class and the arguments of its constructor to what answers its calls.
    """

    def __init__(self, kernel: Kernel, hosts: dict[str, Host], make: Callable[..., Any]) -> None:
        self.kernel, self.hosts, self._make = kernel, hosts, make
        self._numbers = itertools.count()
        self._named: dict[str, SimulatedActor] = {}
        self.unnamed: list[SimulatedActor] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Have ``rpc`` mean this cluster, until the block ends."""
        names = ("get", "first_ready", "wait_all", "get_all", "put", "start", "find", "lasting", "run")
        ours = {name: getattr(rpc, name) for name in names}
        for name in names:
            setattr(rpc, name, getattr(self, name))
        try:
            yield
        finally:
            for name, function in ours.items():
                setattr(rpc, name, function)

    # --- Actors ------------------------------------------------------------------------------------------------------

    def start(self, cls: type, options: dict[str, Any], *arguments: Any, groups: Sequence[str], name: str = "") -> Any:
        del groups
        host = self.hosts[next(iter(options["label_selector"].values()))]
        key = f"{host.name}-{cls.__name__}-{next(self._numbers)}"
        actor = SimulatedActor(host, lambda: self._make(host, cls, *arguments), key, name)
        if name:
            self._named[name] = actor
        else:
            self.unnamed.append(actor)
        return actor

    def find(self, name: str) -> Any:
        actor = self._named.get(name)
        return None if actor is None or actor.owner.dead or actor.is_given_up else actor

    def lasting(self) -> list[str]:
        return [name for name in self._named if self.find(name) is not None]

    def run(self, function: Callable[..., Any], options: dict[str, Any], *arguments: Any) -> Ref[Any]:
        """The calls that there are ask what a process was at, and nobody knows."""
        del function, arguments
        promise = Promise(self.kernel)
        host = self.hosts[next(iter(options["label_selector"].values()))]
        host.message(lambda: host.message(lambda: promise.set(None), out=True))
        return Ref(promise)

    # --- Values ------------------------------------------------------------------------------------------------------

    def _wait_until(self, done: Callable[[], bool], promises: Sequence[Promise], deadline_s: float) -> bool:
        kernel = self.kernel
        end = kernel.now + max(0.0, deadline_s)
        while not done():
            if kernel.now >= end:
                return False
            task = kernel.current
            for promise in promises:
                if not promise.is_there:
                    promise.waiters.add(task, done)
            kernel.wait(end)
        return True

    def get(self, ref: Ref[Any], deadline_s: float) -> Any:
        promise: Promise = ref.raw
        if not promise.is_there and not self._wait_until(lambda: promise.is_there, [promise], deadline_s):
            raise exceptions.GetTimeoutError
        if promise.error is not None:
            raise promise.error
        return promise.value

    def first_ready(self, refs: Sequence[Ref[Any]], deadline_s: float) -> int | None:
        promises: list[Promise] = [ref.raw for ref in refs]
        self._wait_until(lambda: any(each.is_there for each in promises), promises, deadline_s)
        return next((number for number, each in enumerate(promises) if each.is_there), None)

    def wait_all(self, refs: Sequence[Ref[Any]], deadline_s: float) -> set[int]:
        promises: list[Promise] = [ref.raw for ref in refs]
        self._wait_until(lambda: all(each.is_there for each in promises), promises, deadline_s)
        return {number for number, each in enumerate(promises) if each.is_there}

    def get_all(self, refs: Sequence[Ref[Any]], deadline_s: float) -> list[Any]:
        end = self.kernel.now + deadline_s
        return [self.get(ref, end - self.kernel.now) for ref in refs]

    def put(self, value: Any) -> Ref[Any]:
        promise = Promise(self.kernel)
        promise.set(value)
        return Ref(promise)


# --- gloo ------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Group:
    """One group, as its members see it.

    Attributes:
        hosts: of the members, by rank.
        present: hosts of those that have come, by rank.
        verdict: the group is complete, or was given up before.
        sent: what each has contributed to an operation: (number, from, to) -> tensor.
        torn: hosts whose connections to others broke.
    """

    hosts: tuple[str, ...]
    changed: Condition
    present: dict[int, SimulatedActor] = field(default_factory=dict)
    verdict: str = ""
    sent: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)
    torn: set[Host] = field(default_factory=set)


class Network:
    """All groups of a simulation; :meth:`meeting` and :meth:`group` are what the engine has gloo for."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.numbers = kernel, itertools.count(1)
        self._groups: dict[int, _Group] = {}

    def meeting(self, address: str) -> Meeting:
        """In the place of :class:`Rendezvous`."""
        del address
        return Meeting(self)

    def group(self, membership: GroupMembership, address: str) -> Gloo:
        """In the place of :class:`ProcessGroup`; ``address`` is the actor's own."""
        return Gloo(self, membership, address)

    def of(self, membership: GroupMembership) -> _Group:
        """The group."""
        if membership.number not in self._groups:
            self._groups = {number: each for number, each in self._groups.items() if number > membership.number - 5}
            self._groups[membership.number] = _Group(membership.hosts, Condition(self.kernel))
        return self._groups[membership.number]


class Meeting:
    """See :class:`~remote_agent.training.worker.rendezvous.Rendezvous`."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def invite(self, hosts: Sequence[str]) -> tuple[GroupMembership, ...]:
        number, there = next(self._network.numbers), tuple(hosts)
        return tuple(
            GroupMembership(number=number, secret=b"", address="", port=0, rank=rank, hosts=there)
            for rank in range(len(there))
        )

    def give_up(self, membership: GroupMembership) -> None:
        group = self._network.of(membership)
        group.verdict = group.verdict or "given up"
        group.changed.notify_all()


class Gloo:
    """See :class:`~remote_agent.training.worker.process_group.ProcessGroup`."""

    def __init__(self, network: Network, membership: GroupMembership, address: str) -> None:
        self.membership, self._kernel = membership, network.kernel
        self._group, self._given_up, self._number = network.of(membership), False, 0
        owner = self._kernel.current.owner
        assert owner is not None, "a worker is a process"
        actor: SimulatedActor = owner.process
        self._me, group = actor, self._group
        with group.changed:
            group.present[membership.rank] = actor
            actor.groups = [group]
            if len(group.present) == len(group.hosts):
                group.verdict = group.verdict or "complete"
            group.changed.notify_all()
            if not group.changed.wait_for(lambda: bool(group.verdict), GROUP_S) or group.verdict != "complete":
                raise GroupBroken("a worker was lost while the group was formed")

    def give_up(self) -> None:
        self._given_up = True
        with self._group.changed:
            self._group.changed.notify_all()

    def close(self) -> None:
        self.give_up()

    def sum(self, tensors: Sequence[Tensor], moved: Callable[[], None]) -> None:
        for tensor in tensors:
            self._reduce(tensor, lambda parts: functools.reduce(torch.add, parts))
            moved()

    def largest(self, tensor: Tensor) -> None:
        self._reduce(tensor, lambda parts: torch.stack(parts).amax(0))

    def from_first(self, tensor: Tensor, moved: Callable[[], None]) -> None:
        here, leaders = levels(self.membership)
        for ranks in (leaders, here):
            tensor.copy_(self._exchange(tensor, ranks)[0])
        moved()

    def _reduce(self, tensor: Tensor, combined: Callable[[list[Tensor]], Tensor]) -> None:
        here, leaders = levels(self.membership)
        for ranks in (here, leaders):
            tensor.copy_(combined(self._exchange(tensor, ranks)))
        if len(leaders) > 1:
            tensor.copy_(self._exchange(tensor, here)[0])

    def _exchange(self, tensor: Tensor, ranks: tuple[int, ...]) -> list[Tensor]:
        """What the members with these ranks give; its own, where this one is none of them.

        Raises:
            GroupBroken: it was given up, a connection broke, or nothing came for too long.
        """
        if self._given_up:
            raise GroupBroken("the group was given up")
        group, mine, self._number = self._group, self.membership.rank, self._number + 1
        if mine not in ranks:
            return [tensor]
        number, given = self._number, tensor.clone()
        members = {rank: group.present[rank] for rank in ranks}
        for rank, actor in members.items():
            if self._me.host.tears and actor is not self._me and self._kernel.random.random() < 0.25:
                self._me.host.tears = False
                self._me.end()
                self._kernel.wait(None)
            self._send(number, rank, actor, given, len(ranks))

        def all_there() -> bool:
            return all((number, rank, mine) in group.sent for rank in ranks)

        def lost() -> bool:
            hosts = {actor.host for actor in members.values()}
            return (len(hosts) > 1 and bool(hosts & group.torn)) or any(
                actor.is_closed and (number, rank, mine) not in group.sent for rank, actor in members.items()
            )

        with group.changed:
            if not group.changed.wait_for(lambda: self._given_up or all_there() or lost(), REDUCE_S):
                raise GroupBroken(f"nothing arrived within {REDUCE_S:g} s")
        if self._given_up:
            raise GroupBroken("the group was given up")
        if not all_there():
            raise GroupBroken("a connection was closed")
        return [group.sent.pop((number, rank, mine)) for rank in ranks]

    def _send(self, number: int, rank: int, actor: SimulatedActor, tensor: Tensor, size: int) -> None:
        group, mine = self._group, self.membership.rank

        def arrives() -> None:
            group.sent[number, mine, rank] = tensor
            group.changed.notify_all()

        if actor is self._me:
            arrives()
        else:  # over both hosts' links: as much as a ring has on each of them, 2 (m - 1) / m, to m - 1 others
            between(self._me.host, actor.host, arrives, 2 / size * tensor.numel() * tensor.element_size())
