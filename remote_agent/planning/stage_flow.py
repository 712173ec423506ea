"""A step of a pipeline, simulated: stages that compute, and links that carry what they exchange. Pure.

Each stage does what :mod:`remote_agent.training.worker.stage` does: backwards whose gradients have come and forwards in
turn, where both can be done, and no forward while ``in_flight`` micro-batches are held. All that a host sends shares
its link, and all that it receives (:mod:`~remote_agent.planning.channels`). On slow links more micro-batches in flight
than there are stages hide the way there and back: so how many is a variable. A formula would be off by up to 43 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from remote_agent.planning.channels import Agenda, Network

_Then = Callable[[int, float], None]


@dataclass(frozen=True, kw_only=True)
class StageLoad:
    """What a stage does for one micro-batch.

    Attributes:
        given: bytes of activations that come from the stage before it; as many of gradients go back.
        in_flight: micro-batches whose activations it may hold.
        before_s: seconds from the step's beginning until it can compute: of the optimizer's step before.
    """

    host: str
    forward_s: float
    backward_s: float
    given: float
    in_flight: int
    before_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What a step was like.

    Attributes:
        seconds: until all stages have all gradients.
        held: the most micro-batches whose activations each stage held.
    """

    seconds: float
    held: tuple[int, ...]


@dataclass(eq=False)
class _Stage:
    load: StageLoad
    computes: bool = False
    turned: bool = False
    begun: int = 0
    done: int = 0
    come: int = 0
    returned: int = 0
    held: int = 0
    ended: float = 0.0


@dataclass(eq=False)
class _Pipeline:
    stages: list[_Stage]
    micro_batches: int
    network: Network
    latency: Mapping[str, float]
    agenda: Agenda = field(default_factory=Agenda)

    def look(self, number: int, at: float) -> None:
        """Have a stage begin what it can."""
        stage, last = self.stages[number], number == len(self.stages) - 1
        if stage.computes:
            return
        load, flying = stage.load, stage.begun - stage.done
        may_forward = stage.begun < self.micro_batches and stage.come > stage.begun and flying < load.in_flight
        if flying and stage.returned > stage.done and not (stage.turned and may_forward):
            stage.computes = stage.turned = True
            self.agenda.add(at + load.backward_s, partial(self._backward_done, number))
            return
        stage.turned = False
        if may_forward:
            stage.computes = True
            stage.begun += 1
            stage.held = max(stage.held, stage.begun - stage.done)
            done = self._backward_done if last else self._forward_done
            self.agenda.add(at + load.forward_s + (load.backward_s if last else 0.0), partial(done, number))

    def ready(self, number: int, at: float) -> None:
        """A stage has its weights."""
        self.stages[number].computes = False
        self.look(number, at)

    def _forward_done(self, number: int, at: float) -> None:
        self._send(number, number + 1, self.stages[number + 1].load.given, at, self._come)
        self.ready(number, at)

    def _backward_done(self, number: int, at: float) -> None:
        stage = self.stages[number]
        stage.done += 1
        stage.ended = at
        if number:
            self._send(number, number - 1, stage.load.given, at, self._returned)
        self.ready(number, at)

    def _send(self, sender: int, receiver: int, amount: float, at: float, then: _Then) -> None:
        here, there = self.stages[sender].load.host, self.stages[receiver].load.host
        late = max(self.latency.get(here, 0.0), self.latency.get(there, 0.0)) / 2
        if not self.network.are_apart(here, there):
            late = 0.0
        self.network.send(
            self.agenda, here, there, amount, at, lambda now: self.agenda.add(now + late, partial(then, receiver))
        )

    def _come(self, number: int, at: float) -> None:
        self.stages[number].come += 1
        self.look(number, at)

    def _returned(self, number: int, at: float) -> None:
        self.stages[number].returned += 1
        self.look(number, at)


def flow(
    stages: Sequence[StageLoad], micro_batches: int, network: Network, latency: Mapping[str, float] | None = None
) -> Flow:
    """A step.

    Args:
        stages: in their order.
        network: between the stages' hosts; nothing was sent through it yet.
        latency: seconds of a small message there and back, by host.
    """
    pipeline = _Pipeline([_Stage(load) for load in stages], micro_batches, network, latency or {})
    pipeline.stages[0].come = micro_batches
    for number, stage in enumerate(pipeline.stages):
        stage.computes = True
        pipeline.agenda.add(stage.load.before_s, partial(pipeline.ready, number))
    pipeline.agenda.run()
    return Flow(
        seconds=max(stage.ended for stage in pipeline.stages), held=tuple(stage.held for stage in pipeline.stages)
    )
