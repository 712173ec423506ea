"""Our own runs in the lab, through the command line as a user has it: ``up``, ``train``, ``stop``, ``down``."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from benchmarks.lab import SETUP_DEADLINE, Fleet, Outcome, Plan, Point, job_of, last_line
from remote_agent import protocol
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.strategies import SPECS
from remote_agent.training.worker.device import watching
from remote_agent.training.worker.device.simulation import HEADROOM
from tests.lab.product import HeteroTui, setting


@dataclass(frozen=True)
class OurWay:
    """A strategy of ours with its settings: on a command line ``local_sgd:local_steps=20:codec=int8``."""

    strategy: str
    settings: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> OurWay:
        """From the command line.

        Raises:
            ValueError: a setting without a value.
        """
        strategy, *settings = text.split(":")
        pairs = [setting.partition("=") for setting in settings]
        if any(not equals for _, equals, _ in pairs):
            raise ValueError(f"{text}: expected strategy:setting=value:…")
        return cls(strategy, {key: value for key, _, value in pairs})

    @property
    def name(self) -> str:
        """In the tables."""
        return ":".join(["ours", self.strategy, *(f"{key}={value}" for key, value in self.settings.items())])

    @property
    def about(self) -> str:
        """Its settings in words."""
        chosen = ", ".join(f"{key}={value}" for key, value in self.settings.items()) or "defaults"
        return f"hetero-tui train, strategy {self.strategy}, {chosen}; samples by speed"


def chosen_ways(text: str) -> tuple[OurWay, ...]:
    """Our ways, with commas between; "all" for every strategy that exists with its defaults, "none" for none.

    Raises:
        ValueError: a strategy does not exist, or a setting has no value.
    """
    if text in ("all", "none"):
        return tuple(OurWay(name, {}) for name in SPECS) if text == "all" else ()
    ways = tuple(OurWay.parse(one) for one in text.split(","))
    unknown = [way.strategy for way in ways if way.strategy not in SPECS]
    if unknown:
        raise ValueError(f"no strategy {', '.join(unknown)}; there are {', '.join(SPECS)}")
    return ways


def run(fleet: Fleet, ways: Sequence[OurWay], plan: Plan) -> Iterator[Outcome]:
    """Bring our cluster up, train with each way in turn (each outcome as it is there), and take the cluster down."""
    product = HeteroTui(fleet.lab.laptop, fleet.lab.inventory())
    up = product.run("up", "--json")
    try:
        for way in ways:
            if up.returncode:
                reason = f"`up` gave exit code {up.returncode}: {last_line(up.stderr)}"
                yield Outcome(name=way.name, about=way.about, error=reason)
            else:
                yield _train(fleet, product, way, plan)
    finally:
        product.run("down", "--yes", "--json")


def _train(fleet: Fleet, product: HeteroTui, way: OurWay, plan: Plan) -> Outcome:
    # What a run costs once counts where its loss by time is shown, and not where its speed is.
    passed = 0 if plan.snapshot_every else first_steps(way.strategy)
    settings: dict[str, object] = {
        "strategy": way.strategy,
        "batch_size": plan.batch,
        "seed": plan.seed,
        "num_iterations": plan.steps + passed,
        "checkpoint_every": plan.snapshot_every,
        "local_batch": plan.local_batch,
    }
    if plan.learning_rate:
        settings["learning_rate"] = plan.learning_rate
    settings |= way.settings
    follower = Follower(fleet, product, plan, passed)
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

    Time, samples and bytes count after the first ``passed`` steps.
    """

    def __init__(self, fleet: Fleet, product: HeteroTui, plan: Plan, passed: int = 0) -> None:
        self._fleet, self._product, self._plan, self._passed = fleet, product, plan, passed
        self._job: Any = job_of(plan)
        self._run = ""
        self._head = ""
        self._began: float | None = None
        self._counters: tuple[int, ...] = ()
        self._sent: tuple[int, ...] = ()
        self._samples = self._step = 0
        self._seconds = 0.0
        self._saved: list[tuple[float, int, int, Path]] = []
        self._copies = 0
        self._stopped = False
        self._failure = ""
        self._reference: DeviceProfile | None = None

    def take(self, event: protocol.Event | None) -> None:
        """One event, as it arrives."""
        if isinstance(event, protocol.RunStarted):
            self._run, self._head = event.run, event.host
        elif isinstance(event, protocol.PlanMade):
            self._began = event.time
            self._counters = self._fleet.sent_bytes()
            self._reference = reference_of(event.shares[0])
        elif isinstance(event, protocol.Step) and self._passed:
            self._passed -= 1
            self._began, self._counters = event.time, self._fleet.sent_bytes()
        elif isinstance(event, protocol.Step) and self._began is not None and not self._stopped:
            self._step, self._seconds = self._step + 1, event.time - self._began
            self._samples += event.samples
            over = self._seconds >= self._plan.seconds
            if over or self._step == self._plan.steps:
                self._sent = tuple(
                    now - then for now, then in zip(self._fleet.sent_bytes(), self._counters, strict=True)
                )
            if over:
                self._stopped = True
                self._product.run("stop", self._run, "--json")
        elif isinstance(event, protocol.CheckpointSaved) and self._plan.snapshot_every and self._began is not None:
            if len(event.hosts) > 1:
                return  # it is known already, and on more hosts now
            self._keep(event, event.time - self._began)
        elif isinstance(event, protocol.RunFailed):
            self._failure = f"{event.host}, step {event.step}: {event.cause}"

    def _keep(self, event: protocol.CheckpointSaved, at: float) -> None:
        """Copy a checkpoint out of its host at once: the run may tidy up, and ``down`` will."""
        host = self._fleet.lab.host(event.host)
        inside = Path(event.path).relative_to(Path.home())
        self._copies += 1
        copy = self._fleet.lab.folder / f"checkpoint-{self._run}-{self._copies}.safetensors"
        shutil.copyfile(host.home / inside, copy)
        self._saved.append((at, event.step, self._samples, copy))

    def outcome(self, way: OurWay, stderr: str) -> Outcome:
        """What the run gave, with its checkpoints evaluated now."""
        error = self._failure
        if not error and not self._step:
            error = f"no step was made: {stderr}"
        points = []
        for at, step, samples, path in self._saved:
            model = self._job.create_model()
            model.load_state_dict(safetensors.torch.load_file(path))
            path.unlink()
            model.eval()
            with torch.no_grad():
                points.append(Point(at, step, samples, float(self._job.evaluate(model)["validation_loss"])))
        return Outcome(
            name=way.name,
            about=way.about,
            points=tuple(point for point in points if point.time <= self._plan.seconds),
            seconds=self._seconds,
            steps=self._step,
            samples=self._samples,
            samples_per_second=self._samples / self._seconds if self._seconds else 0.0,
            sent=self._sent,
            error=error,
            reference=self._reference,
        )


def first_steps(strategy: str) -> int:
    """Steps until the loss of each worker's first slices has been looked at, which takes time once in a run."""
    if SPECS[strategy].split:  # nothing is looked at
        return 0
    return 1 if strategy == "local_sgd" else watching.FIRST


def reference_of(share: protocol.Share) -> DeviceProfile:
    """The measurement of this computer behind a share: the inverse of ``SimulatedDevice.profile``."""
    stretch = HEADROOM / (share.simulated_speed or 1.0)
    return DeviceProfile(share.speed * stretch, share.overhead_s / stretch)
