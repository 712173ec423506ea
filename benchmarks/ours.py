"""Our own runs in the lab, through the command line as a user has it: ``up``, ``train``, ``stop``, ``down``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from benchmarks.lab import SETUP_DEADLINE, Fleet, Outcome, Plan, job_of, last_line
from remote_agent import protocol
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.strategies import SPECS
from remote_agent.training.worker.device.simulation import HEADROOM
from tests.lab.product import HeteroTui, setting

ENDLESS = 1_000_000
"""Steps of a run that is stopped."""


@dataclass(frozen=True)
class OurWay:
    """A strategy of ours with its settings: on a command line ``local_sgd:local_steps=20:codec=int8``."""

    strategy: str
    settings: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> OurWay:
        """From the command line.

        Raises:
            ValueError: there is no such strategy, or a setting has no value.
        """
        strategy, *settings = text.split(":")
        pairs = [setting.partition("=") for setting in settings]
        if strategy not in SPECS or any(not equals for _, equals, _ in pairs):
            raise ValueError(f"{text}: expected strategy:setting=value:…; strategies are {', '.join(SPECS)}")
        return cls(strategy, {key: value for key, _, value in pairs})

    @property
    def name(self) -> str:
        """In the tables."""
        return ":".join(["ours", self.strategy, *(f"{key}={value}" for key, value in self.settings.items())])


def run(fleet: Fleet, ways: Sequence[OurWay], plan: Plan) -> Iterator[Outcome]:
    """Bring our cluster up, train with each way in turn (each outcome as it is there), and take the cluster down."""
    product = HeteroTui(fleet.lab.laptop, fleet.lab.inventory())
    up = product.run("up", "--json")
    try:
        for way in ways:
            if up.returncode:
                reason = f"`up` gave exit code {up.returncode}: {last_line(up.stderr)}"
                yield Outcome(name=way.name, error=reason)
            else:
                yield _train(fleet, product, way, plan)
    finally:
        product.run("down", "--yes", "--json")


def _train(fleet: Fleet, product: HeteroTui, way: OurWay, plan: Plan) -> Outcome:
    settings: dict[str, object] = {
        "strategy": way.strategy,
        "batch_size": plan.batch,
        "num_iterations": ENDLESS,
        "local_batch": plan.local_batch,
    }
    if plan.learning_rate:
        settings["learning_rate"] = plan.learning_rate
    settings |= way.settings
    # What a run costs once counts where its loss after some time is shown, and not where its speed is.
    follower = Follower(fleet, product, plan, 0 if plan.evaluated else first_steps(way.strategy))
    with product.start("train", plan.job, "--json", *setting(settings)) as train:
        assert train.stdout is not None
        assert train.stderr is not None
        guard = threading.Timer(plan.seconds + SETUP_DEADLINE, train.kill)
        guard.start()
        errors: list[str] = []
        reader = threading.Thread(target=lambda pipe: errors.append(pipe.read()), args=(train.stderr,))
        reader.start()
        try:
            for line in train.stdout:
                follower.take(protocol.decode_event(line))
        except BaseException:
            train.kill()
            raise
        finally:
            guard.cancel()
            reader.join()
    return follower.outcome(way, last_line("".join(errors)))


class Follower:
    """Turns the events of one run of ours into an :class:`Outcome`, and stops the run when its time is up.

    Time, samples and bytes count after the first ``passed`` steps, until the time is up; if the loss is wanted, until
    the end, which is some steps later.
    """

    def __init__(self, fleet: Fleet, product: HeteroTui, plan: Plan, passed: int) -> None:
        self._fleet, self._product, self._plan, self._passed = fleet, product, plan, passed
        self._run = self._head = ""
        self._began: float | None = None
        self._counters: tuple[int, ...] = ()
        self._sent: tuple[int, ...] = ()
        self._samples = self._steps = 0
        self._seconds = 0.0
        self._stopped = False
        self._loss: float | None = None
        self._failure = ""
        self._reference: DeviceProfile | None = None

    def take(self, event: protocol.Event | None) -> None:
        """Count one event, as it arrives."""
        if isinstance(event, protocol.RunStarted):
            self._run, self._head = event.run, event.host
        elif isinstance(event, protocol.PlanMade):
            self._began = event.time
            self._counters = self._fleet.sent_bytes()
            self._reference = reference_of(event.shares[0])
        elif isinstance(event, protocol.Step) and self._passed:
            self._passed -= 1
            self._began, self._counters = event.time, self._fleet.sent_bytes()
        elif (
            isinstance(event, protocol.Step) and self._began is not None and (self._plan.evaluated or not self._stopped)
        ):
            self._steps, self._seconds = self._steps + 1, event.time - self._began
            self._samples += event.samples
            if self._seconds >= self._plan.seconds:
                now = self._fleet.sent_bytes()
                self._sent = tuple(after - before for after, before in zip(now, self._counters, strict=True))
                if not self._stopped:
                    self._stopped = True
                    self._product.run("stop", self._run, "--json")
        elif isinstance(event, protocol.RunFinished) and self._plan.evaluated:
            inside = Path(event.checkpoint).relative_to(Path.home())
            self._loss = validation_loss(self._plan, self._fleet.lab.host(self._head).home / inside)
        elif isinstance(event, protocol.RunFailed):
            self._failure = f"{event.host}, step {event.step}: {event.cause}"

    def outcome(self, way: OurWay, stderr: str) -> Outcome:
        """Result of the run, once it has ended."""
        return Outcome(
            name=way.name,
            seconds=self._seconds,
            steps=self._steps,
            samples=self._samples,
            samples_per_second=self._samples / self._seconds if self._seconds else 0.0,
            sent=self._sent,
            loss=self._loss,
            error=self._failure or ("" if self._steps else f"no step was made: {stderr}"),
            reference=self._reference,
        )


def validation_loss(plan: Plan, weights: Path) -> float:
    """The job's validation loss with the weights of a checkpoint."""
    job: Any = job_of(plan)
    model = job.create_model()
    model.load_state_dict(safetensors.torch.load_file(weights))
    model.eval()
    with torch.no_grad():
        return float(job.evaluate(model)["validation_loss"])


def first_steps(strategy: str) -> int:
    """First steps of a run, after each of which the job is audited."""
    if SPECS[strategy].split:
        return 0
    return 1 if strategy == "local_sgd" else 8


def reference_of(share: protocol.Share) -> DeviceProfile:
    """The measurement of this computer behind a share: the inverse of ``SimulatedDevice.profile``."""
    stretch = HEADROOM / (share.simulated_speed or 1.0)
    return DeviceProfile(share.speed * stretch, share.overhead_s / stretch)
