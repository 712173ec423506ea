"""Defines the request for a run to the coordinator."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_agent.protocol import DeviceSpec, RunSpec
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan import profiles
from remote_agent.training.coordinator.prints import Prints
from remote_agent.training.job import Job


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be run, and where its files go.

    Attributes:
        devices: on which devices.
        away: devices of hosts that have no living node now; each takes part once its host has one.
        small: devices that have no room for the model, and what is said of each in the plan.
        notes: what is to be said in the plan, beside that.
        server_host: host of the parameter server.
        host: the coordinator's own host, for events.
        folder: the run's folder; ``checkpoints/`` is made in it.
        resume: a checkpoint, or a run's folder, that the run goes on from; None: it begins.
        gpus: GPU slots that a worker on a GPU asks Ray for; see
            :class:`~remote_agent.training.coordinator.plan.placement.Placement`.
        prints: brings what the workers print to the user; None: it is not shown.
        logs: workers and servers write logs, in the run's folder on their hosts.
        profile: the file that what was measured is kept in, for later plans; None: it is not kept.
        commands: from where on the user's commands are for this run; None: those that come after its start.
        replanned: how often it was made ready again for a better plan.
        lasting: server and workers outlive the coordinator, for a successor that takes them over (``takeover``).
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
    away: tuple[DeviceSpec, ...] = ()
    lasting: bool = False
    prints: Prints | None = None
    logs: bool = False
    profile: Path | None = None
    commands: int | None = None
    replanned: int = 0
    small: tuple[tuple[DeviceSpec, str], ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: RunSpec, job: Job, config: TrainingConfig, folder: Path, **more: Any) -> Request:
        """What the laptop asks for with ``run.json`` in ``folder``; ``more`` are further fields."""
        return cls(
            run=spec.run,
            job=job,
            config=config,
            devices=spec.devices,
            server_host=spec.server_host,
            host=spec.host,
            folder=folder,
            profile=profiles.place(folder, spec.profile),
            **more,
        )

    @property
    def logged(self) -> str:
        """The run whose logs workers and servers write; empty: they write none."""
        return self.run if self.logs else ""

    def actor_name(self, kind: str) -> str:
        """For an actor of this kind that is to be started; empty where it is not to outlive the coordinator."""
        return f"{self.run}:{kind}:{uuid.uuid4().hex}" if self.lasting else ""
