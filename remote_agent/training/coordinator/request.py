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
    """The run's job and settings, its devices, and the folder of its files.

    Attributes:
        away: devices of hosts without a living node now; each takes part once its host has one.
        small: devices without room for the model, and what the plan says about each.
        moving: all that is not trained counts as changed by the model's code.
        host: the coordinator's own host, for events.
        folder: the run's folder; ``checkpoints/`` is made in it.
        resume: a checkpoint, or a run's folder, from which the run resumes; None: a new run.
        same_job: what it resumes from was made with this job's code.
        follows: without ``resume``: an earlier coordinator of this run was lost, and the run goes on.
        gpus: GPU slots that a worker on a GPU requests from Ray; see
            :class:`~remote_agent.training.coordinator.plan.placement.Placement`.
        prints: brings the workers' prints to the user; None: they are not shown.
        logs: workers and servers write logs, in the run's folder on their hosts.
        profile: where measurements are kept for later plans; None: they are not stored.
        commands: offset of the first user command for this run; None: those after its start.
        given: names of the settings of ``--set``.
        swept: names of the settings in which the trials of a sweep differ, if this is one of them.
        lasting: servers and workers outlive the coordinator, so that a new one can take over (``takeover``).
    """

    run: str
    job: Job
    config: TrainingConfig
    devices: tuple[DeviceSpec, ...]
    server_host: str
    host: str
    folder: Path
    resume: Path | None = None
    same_job: bool = False
    follows: bool = False
    gpus: int = 0
    away: tuple[DeviceSpec, ...] = ()
    lasting: bool = False
    prints: Prints | None = None
    logs: bool = False
    profile: profiles.Place | None = None
    commands: int | None = None
    small: tuple[tuple[DeviceSpec, str], ...] = ()
    moving: bool = False
    notes: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    swept: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: RunSpec, job: Job, config: TrainingConfig, folder: Path, **more: Any) -> Request:
        """The laptop's request in ``run.json`` in ``folder``; ``more`` are further fields."""
        return cls(
            run=spec.run,
            job=job,
            config=config,
            devices=spec.devices,
            server_host=spec.server_host,
            host=spec.host,
            folder=folder,
            same_job=True,  # it lies in the run's folder
            profile=profiles.place(folder, spec.profile),
            given=tuple(spec.config),
            **more,
        )

    @property
    def logged(self) -> str:
        """The run whose logs workers and servers write; empty: they write none."""
        return self.run if self.logs else ""

    def actor_name(self, kind: str) -> str:
        """The name for a new actor of this kind; empty if it should not outlive the coordinator."""
        return f"{self.run}:{kind}:{uuid.uuid4().hex}" if self.lasting else ""
