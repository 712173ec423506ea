"""Makes some steps before a plan is reported, since only whole steps show the full cost of a step.

Threads and processes wait for each other, processors compute, sum and send at once, and the coordinator works too. On a
busy machine this takes many times the sum of the parts. So the predictions of all ways to train are corrected by the
times of steps with all machines (``simulator.corrected``).
"""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence

from remote_agent.planning.simulator import corrected
from remote_agent.planning.survey import Survey
from remote_agent.planning.ways import EXACT, Prediction
from remote_agent.strategies import spec_of
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan import surveying
from remote_agent.training.coordinator.session import Session
from remote_agent.training.deadlines import TRIAL_S
from remote_agent.training.errors import TrainingError

LOG = logging.getLogger(__name__)

STEPS = 20
"""Most steps that are made."""

CERTAIN = 0.03
"""Once the median step is known so well (its standard error, as a part of it), no more are made."""

CERTAIN_STEPS = 6
"""Of fewer their spread says nothing."""

LEAST_STEPS = 3
"""A step that is predicted to leave time for fewer is not tried. If steps take so long, the correction is small."""

SKIPPED = 2
"""First steps that are not used, since a gradient is streamed only from the second slice on."""


def to_try(config: TrainingConfig, survey: Survey) -> Prediction | None:
    """The step that is to be tried, as it is predicted; None: it takes too long, does not fit, or is no batch."""
    if config.strategy not in EXACT:
        return None
    found = surveying.predicted(config, survey)
    return None if found is None or (SKIPPED + LEAST_STEPS) * found.seconds > TRIAL_S else found


def used(made: Sequence[float]) -> Sequence[float]:
    """The steps that count: where they take so much longer than predicted that there are few, even the first ones."""
    return made[SKIPPED:] or made


def is_certain(seconds: Sequence[float]) -> bool:
    """Whether so many more steps would not change the median of these much.

    The standard error of a normal distribution's median, with its deviation from the median absolute one: a step that
    met something else counts as one.
    """
    if len(seconds) < CERTAIN_STEPS:
        return False
    median = statistics.median(seconds)
    deviation = 1.4826 * statistics.median(abs(each - median) for each in seconds)
    return 1.2533 * deviation / math.sqrt(len(seconds)) <= CERTAIN * median


def surveyed(session: Session, tell: Callable[[str], None]) -> Survey:
    """The data of the plan, corrected by steps; the session can't be used afterwards.

    Args:
        session: before its first step, with all machines.
        tell: called with the progress.
    """
    survey = session.survey
    assert survey is not None, "the fleet is known"
    way = surveying.way_of(session.config, survey)
    predicted = to_try(session.config, survey)
    if predicted is None:
        return survey
    seconds: list[float] = []
    computing: list[float] = []
    tell(f"trying steps of {way.strategy} with all of them")
    deadline = time.monotonic() + TRIAL_S
    session = dataclasses.replace(session, stopping=lambda: time.monotonic() > deadline)
    try:
        for report in spec_of(way.strategy).strategy()().steps(session):
            if report.samples == predicted.samples and report.workers:  # an epoch's last one may be shorter
                seconds.append(report.seconds)
                computing.append(max(worker.compute_s for worker in report.workers))
            if len(seconds) >= SKIPPED + STEPS or is_certain(seconds[SKIPPED:]):
                break
    except TrainingError as error:  # such as machines that only one of the ways can't use together
        LOG.info("no steps were tried: %s", error)
    if not seconds:
        return survey
    return corrected(survey, way, statistics.median(used(seconds)), statistics.median(used(computing)))
