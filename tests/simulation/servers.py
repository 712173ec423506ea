"""A parameter server of a simulation, and the workers' way to it: what TCP and the shards are to the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from remote_agent.training.wire.errors import ExchangeError, FellBehind, StepIncomplete
from remote_agent.training.wire.steps import Timings
from tests.simulation.cluster import Host, SimulatedActor
from tests.simulation.kernel import Condition, Kernel


class Pipe:
    """Messages from one host to another, which arrive in their order."""

    def __init__(self, here: Host, there: Host) -> None:
        self._here, self._there = here, there
        self._under_way: deque[Callable[[], None]] = deque()

    def send(self, arrives: Callable[[], None]) -> None:
        """One more."""
        self._under_way.append(arrives)
        self._here.message(lambda: self._there.message(lambda: self._under_way.popleft()()))


class Server:
    """All the weights: it applies a step once all its slices are there, each once, and sends the new weights to all.

    Args:
        host: where it is.
        weights: the first ones; it steps them.
        optimizer: over them.
    """

    def __init__(self, host: Host, weights: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        self.host, self._weights, self._optimizer, self.step = host, weights, optimizer, 0
        self._slices: dict[int, int] = {}
        self._gradients: dict[int, dict[int, tuple[Tensor, float]]] = {}
        self._listeners: list[SimulatedChannel] = []

    def listen(self, channel: SimulatedChannel) -> None:
        """A worker gets the weights as they are, and all that follow."""
        self._listeners.append(channel)
        channel.send_back(self.step, self._weights.detach().clone())

    def begin(self, step: int, slices: int) -> None:
        """A step is of so many slices."""
        if slices:
            self._slices[step] = slices
            self._apply()

    def push(self, step: int, index: int, gradient: Tensor, weight: float) -> None:
        """A slice's gradient sum; the first one counts."""
        if step > self.step:
            self._gradients.setdefault(step, {}).setdefault(index, (gradient, weight))
            self._apply()

    def _apply(self) -> None:
        following = self.step + 1
        there = self._gradients.get(following, {})
        if following not in self._slices or len(there) < self._slices[following]:
            return
        total = sum(weight for _, weight in there.values())
        self._weights.grad = torch.stack([there[index][0] for index in sorted(there)]).sum(0) / total
        self._optimizer.step()
        del self._gradients[following], self._slices[following]
        self.step = following
        for listener in self._listeners:
            listener.send_back(self.step, self._weights.detach().clone())
        self._apply()


class SimulatedChannel:
    """As :class:`~remote_agent.training.worker.channels.Channel` has it."""

    kind = "simulated"
    offering = None

    def __init__(self, kernel: Kernel, server: Server, actor: SimulatedActor, first: Tensor, step: int | None) -> None:
        self._actor, self._server = actor, server
        self._there, self._back = Pipe(actor.host, server.host), Pipe(server.host, actor.host)
        self._inbox: dict[int, Tensor] = {}
        self._changed, self._abandoned = Condition(kernel), False
        self.step = step or 0
        self._wanted = self.step
        self.gradient = torch.zeros_like(first)
        self.weights = (torch.zeros_like(first), torch.zeros_like(first))
        self.weights[self.step % 2].copy_(first)
        self._there.send(lambda: server.listen(self))

    def send_back(self, step: int, weights: Tensor) -> None:
        """The server's."""

        def arrives() -> None:
            self._inbox[step] = weights
            self._changed.notify_all()

        self._back.send(arrives)

    def begin(self, step: int, slices: int, samples: int) -> None:
        del samples
        self._wanted = step
        self._there.send(lambda: self._server.begin(step, slices))

    def contribute(self, index: int, weight: float | None = None) -> None:
        self.contribute_spare(index, self.gradient, weight)

    def spare(self) -> Tensor:
        return torch.zeros_like(self.gradient)

    def contribute_spare(self, index: int, gradient: Tensor, weight: float | None = None) -> None:
        step, given = self._wanted, gradient.clone()
        self._there.send(lambda: self._server.push(step, index, given, weight or 0.0))

    def ready(self) -> bool:
        return self._wanted in self._inbox

    def finish(self, deadline: float) -> Timings:
        with self._changed:
            self._changed.wait_for(
                lambda: self._abandoned or self.ready() or any(step > self._wanted for step in self._inbox), deadline
            )
        if self._abandoned:
            raise ExchangeError("the exchange was given up")
        if self.ready():
            self._take(self._wanted, self._inbox[self._wanted])
            return Timings(push_s=0.0, pull_s=0.0, bytes_out=0, bytes_in=0)
        if any(step > self._wanted for step in self._inbox):
            raise FellBehind("the weights are gone")
        raise StepIncomplete("not all is there")

    def _take(self, step: int, weights: Tensor) -> None:
        self.step = step
        self.weights[step % 2].copy_(weights)
        self._inbox = {number: each for number, each in self._inbox.items() if number > step}

    def abandon(self) -> None:
        self._abandoned = True
        self._changed.notify_all()

    def fetch(self) -> Tensor | None:
        self._newest = max(self._inbox)
        return self._inbox[self._newest]

    def fetched(self, newest: Tensor) -> None:
        self._take(self._newest, newest)

    def close(self) -> None:
        """It is never used again."""


class Alive:
    """The server's process, as far as the coordinator asks."""

    def ping(self) -> None:
        """It is well."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody asks a server for {name} in a step")
