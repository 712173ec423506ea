"""Decides from measurements how a run is carried out, before anything is opened. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.shares import least_slice
from remote_agent.planning.survey import Survey
from remote_agent.strategies import AUTO, spec_of
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan import surveying
from remote_agent.training.coordinator.plan.measurements import Measurements
from remote_agent.training.coordinator.plan.surveying import Fleet
from remote_agent.training.data import extent
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.errors import JobError, TrainingError
from remote_agent.training.shared import audit, dataplane
from remote_agent.training.shared.audit import Cause, Finding
from remote_agent.training.shared.dataplane import OptimizerFacts

HOOKED = (
    "hooks of the optimizer's step run on each worker: what they keep beside the model, such as an average of the"
    " weights, stays there; the setting ema_decay keeps an average in every checkpoint"
)
BY_WEIGHT = "trains as in plain torch if its step looks at one weight at a time"
SYNC_HINT = "train with strategy=sync, or use float32 and GroupNorm in the place of batch normalisation"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What is known before the first step.

    Attributes:
        dtypes: of the trained parameters, by name.
        max_batches: the most samples that the user lets each device take at a time; None: any.
        fleet: where the devices are; None: not known, and nothing is predicted.
        before: what an earlier run of the job found on the same fleet; None: there was none.
        batch_statistics: the model normalises by the statistics of the samples that are together.
    """

    measured: Measurements
    optimizer: OptimizerFacts
    dtypes: Mapping[str, str]
    max_batches: Sequence[int | None]
    fleet: Fleet | None = None
    before: Survey | None = None
    batch_statistics: bool = False


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What follows from a profile.

    Attributes:
        config: the run's, with all that was left open.
        reasons: for the user: why it is so.
        hosts: that take part; None: all.
        survey: of these hosts, for predictions; None: nothing is known.
        left_out: hosts that take no part, and why.
        measured: of all devices, in the units of ``config``.
    """

    config: TrainingConfig
    measured: Measurements
    reasons: tuple[str, ...]
    hosts: tuple[str, ...] | None = None
    survey: Survey | None = None
    whole: Survey | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FirstCut:
    """The first step, for the plan: samples of each device, its predicted seconds, and what else is to be said."""

    samples: tuple[int, ...]
    seconds: float
    about: tuple[str, ...] = ()


class Planned(Protocol):
    """What a strategy says before the run begins."""

    def fixed(self, config: TrainingConfig, devices: int) -> TrainingConfig:
        """``config`` with what stays as it is at the run's beginning, however many ``devices`` there are later."""

    def first_cut(self, config: TrainingConfig, profiles: Sequence[DeviceProfile], least: int) -> FirstCut:
        """How the first step is cut. Pure.

        Args:
            least: samples of a slice that is not empty.

        Raises:
            ValueError: the batch does not fit into the devices' memory.
        """


def plan(config: TrainingConfig, profile: Profile, order: SampleOrder) -> RunPlan:
    """Decide.

    Raises:
        JobError: the job can't be trained with these settings, or is not the same on all hosts.
        TrainingError: a batch does not fit into the devices' memory.
    """
    measured, devices = profile.measured, len(profile.measured.profiles)
    if measured.usage.changed:
        raise audit.refusal(Finding(Cause.WEIGHTS_CHANGE, name=min(measured.usage.changed)), config.batch_size)
    if measured.audit is not None:
        audit.refuse(measured.audit, config)
    config = audit.with_reduction(config, measured.audit)
    measured = measured.in_units(config.unit)
    profile = dataclasses.replace(profile, measured=measured)
    whole = survey = _survey(config, profile)
    hosts: tuple[str, ...] | None = None
    why: tuple[str, ...] = ()
    left_out: dict[str, str] = {}
    if config.strategy == AUTO:
        if survey is None:
            config = dataclasses.replace(config, strategy="sync")
        else:
            found = surveying.chosen(config, survey)
            config, hosts, why, left_out = found.config, found.hosts, found.reasons, found.left_out
            survey = survey.of(hosts)
            assert profile.fleet is not None, "the survey is made of it"
            measured = measured.of([n for n, spec in enumerate(profile.fleet.specs) if spec.host in hosts])
            devices = len(measured.profiles)
    config, otherwise = _suited(config, profile)
    first = first_cut(config, measured.profiles, least_slice(measured.usage.buffers))
    config = extent.in_rounds(config, order, sum(first.samples))
    config = _strategy(config).fixed(config, devices)
    if survey is not None and not why and not spec_of(config.strategy).split:
        why = surveying.about(config, survey)
    return RunPlan(
        config=config,
        measured=profile.measured,
        reasons=(*why, *otherwise, *measured.notes, *_about_job(config, profile)),
        hosts=hosts,
        survey=survey,
        whole=whole,
        left_out=left_out,
    )


def _about_job(config: TrainingConfig, profile: Profile) -> tuple[str, ...]:
    said = audit.about(config, profile.measured.audit, batch_statistics=profile.batch_statistics)
    if profile.optimizer.hooked:
        said = (*said, HOOKED)
    if spec_of(config.strategy).split and not profile.optimizer.elementwise:
        said = (*said, f"each stage of the pipeline steps its own weights: {profile.optimizer.kind} {BY_WEIGHT}")
    return said


def _survey(config: TrainingConfig, profile: Profile) -> Survey | None:
    if profile.fleet is None:
        return None
    found = dataplane.obstacles(
        config.deterministic, profile.dtypes, profile.optimizer, profile.measured.usage, bool(config.clip_norm)
    )
    least, terms = least_slice(profile.measured.usage.buffers), profile.measured.usage.terms
    fleet = dataclasses.replace(profile.fleet, numel=terms * profile.fleet.numel)  # that is summed in a step
    made = surveying.survey_of(fleet, profile.measured, config, streamable=not found, least=least)
    if not spec_of(config.strategy).split:  # where a model is cut, its notes say why
        made = dataclasses.replace(made, notes=(*made.notes, *_about_job(config, profile)))
    return surveying.with_known(made, profile.before) if profile.before is not None else made


def first_cut(config: TrainingConfig, profiles: Sequence[DeviceProfile], least: int) -> FirstCut:
    """The first step; see :meth:`Planned.first_cut`.

    Raises:
        TrainingError: a batch does not fit into the devices' memory.
    """
    try:
        return _strategy(config).first_cut(config, profiles, least)
    except ValueError as error:
        raise TrainingError(str(error), hint="lower batch_size, or raise the hosts' max_batch") from None


def _strategy(config: TrainingConfig) -> Planned:
    strategy: Planned = spec_of(config.strategy).strategy()
    return strategy


def _suited(config: TrainingConfig, profile: Profile) -> tuple[TrainingConfig, tuple[str, ...]]:
    """The configuration with a strategy that is exact for this model, and why it changed; raises JobError."""
    strategy, optimizer = spec_of(config.strategy), profile.optimizer
    if not strategy.servers:
        return config, ()
    if strategy.rounds:
        # The job's optimizer works on the workers, on whole parameters; what the shards step with is elementwise.
        optimizer = dataclasses.replace(optimizer, elementwise=True)
    found = dataplane.obstacles(
        config.deterministic, profile.dtypes, optimizer, profile.measured.usage, bool(config.clip_norm)
    )
    if not found:
        return config, ()
    if not strategy.otherwise:
        cause = f"strategy={config.strategy} needs a model that can be streamed: {'; '.join(found)}"
        raise JobError(cause, hint=SYNC_HINT)
    reasons = [f"without a server: {'; '.join(found)}"]
    unused = (("codec", config.codec, "fp32"), ("shards", config.shards, 0))
    reasons += [f"{name}={value} has no effect: it is for servers" for name, value, usual in unused if value != usual]
    return without_servers(config), tuple(reasons)


def without_servers(config: TrainingConfig) -> TrainingConfig:
    """``config`` with the strategy that gives the same weights without servers, and without what is set for these."""
    return dataclasses.replace(config, strategy=spec_of(config.strategy).otherwise, codec="fp32", shards=0)
