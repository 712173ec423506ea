"""Compares a run's steps with its plan: how wrong is it, by which term, and is another plan better now? Pure.

A step shows two times: its own, and how long the device computed that took longest. So ``compute`` has a ratio of its
own, and ``exchange``, ``handling``, ``update`` and ``calls`` have one together: that of all that is not computing.
Where next to nothing was predicted of that, there is nothing to multiply: what is left becomes a term by itself
(``other``).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass

from remote_agent.planning.choice import Limits, choose
from remote_agent.planning.simulator import predict
from remote_agent.planning.sites import DoesNotFit
from remote_agent.planning.survey import Survey
from remote_agent.planning.verdicts import MANIFOLD, names, pace, seconds
from remote_agent.planning.ways import CALLS, COMPUTE, EXCHANGE, HANDLING, UPDATE, Prediction, Way, ratio_name
from remote_agent.wording import number

OFF = 0.15
"""A prediction that is off by more than this part ..."""

STEPS = 20
"""... for so many steps ..."""

LASTING_S = 2.0
"""... and seconds is corrected: where steps are short, other programs on a busy computer do that again and again ..."""

ODD_STEPS = 2
"""... of which so many may be as predicted: a prediction that holds is off in a step now and then."""

FIRST_STEPS = 3
"""Steps at a plan's beginning that are not looked at: nothing was in flight before them, and shares settle."""

GAIN = 0.05
"""Another plan is taken if a step is shorter by more than this part ..."""

WORTH = 2.0
"""... and the run gains so many times what it costs to be made ready again."""

PERSISTS = 5.0
"""... and has been better for so many times that cost: what slows a link or a device is often over by itself."""

MOST_PAUSED = 0.05
"""Part of the run's time that it is made ready again in for better plans."""

LEAST_PART = 0.05
"""A term of a smaller part of the step is not multiplied: what is left of the step has another cause."""

LEAST_RATIO = 0.2
"""No term is corrected to less: that would be the noise of computing, and what is 0 once stays 0."""

SAID = 0.1
"""A link whose speed has changed by more than this part is named."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A step as it was measured: its seconds, and those that the device computed that took longest."""

    seconds: float
    compute_s: float


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """What the last steps say about a prediction.

    Attributes:
        seen: the last steps, the newest last.
        differing_s: seconds for which they have differed from the prediction.
        passed: steps since the prediction was made.
    """

    predicted: Prediction
    seen: tuple[Seen, ...] = ()
    differing_s: float = 0.0
    passed: int = 0

    def after(self, step: Seen) -> SelfCheck:
        """With a further step."""
        if self.passed < FIRST_STEPS:
            return dataclasses.replace(self, passed=self.passed + 1)
        now = dataclasses.replace(self, seen=(*self.seen, step)[-STEPS:], passed=self.passed + 1)
        so_far = self.differing_s or now.seconds - step.seconds
        differs = now._differs  # noqa: SLF001 - its own class
        return dataclasses.replace(now, differing_s=so_far + step.seconds if differs else 0.0)

    @property
    def median(self) -> Seen:
        """Of the last steps; of each time by itself."""
        return Seen(
            seconds=statistics.median(step.seconds for step in self.seen),
            compute_s=statistics.median(step.compute_s for step in self.seen),
        )

    @property
    def seconds(self) -> float:
        """Seconds of the last steps together."""
        return sum(step.seconds for step in self.seen)

    @property
    def is_off(self) -> bool:
        """The prediction is to be corrected."""
        return self._differs and self.differing_s >= LASTING_S

    @property
    def _differs(self) -> bool:
        """The last :data:`STEPS` steps took longer than predicted, or all of them shorter, by more than :data:`OFF`."""
        if len(self.seen) < STEPS:
            return False
        ratios = [step.seconds / self.predicted.seconds for step in self.seen]
        return max(sum(each > 1 + OFF for each in ratios), sum(each < 1 - OFF for each in ratios)) >= STEPS - ODD_STEPS

    @property
    def ratios(self) -> dict[str, float]:
        """Measured over predicted seconds: of computing, and of the rest where enough of that was predicted."""
        found, (compute_s, rest_s) = self.median, apart(self.predicted)
        ratios = {COMPUTE: found.compute_s / compute_s} if compute_s > 0 else {}
        if rest_s > LEAST_PART * self.predicted.seconds:
            ratios[EXCHANGE] = max(LEAST_RATIO, (found.seconds - found.compute_s) / rest_s)
        return ratios


def apart(predicted: Prediction) -> tuple[float, float]:
    """Seconds of computing, and of all that is not."""
    compute_s = predicted.term(COMPUTE)
    return compute_s, predicted.seconds - compute_s


def explains(predicted: Prediction, found: Seen) -> bool:
    """Whether a prediction is right about these steps."""
    return abs(found.seconds / predicted.seconds - 1) <= OFF


def corrected(survey: Survey, way: Way, found: Seen) -> tuple[Survey, Prediction]:
    """The survey with which a step of ``way`` is as measured, and that step; raises DoesNotFit."""
    check = SelfCheck(predicted=predict(survey, way), seen=(found,))
    ratios = dict(survey.ratios)
    for name, ratio in check.ratios.items():
        for term in (name,) if name == COMPUTE else (EXCHANGE, HANDLING, UPDATE, CALLS):
            each = ratio_name(way.strategy, term)
            ratios[each] = ratios.get(each, 1.0) * ratio
    survey = dataclasses.replace(survey, ratios=ratios, other_s=survey.other_s * check.ratios.get(EXCHANGE, 1.0))
    if EXCHANGE not in check.ratios:
        left = found.seconds - predict(dataclasses.replace(survey, other_s=0.0), way).seconds
        survey = dataclasses.replace(survey, other_s=max(0.0, left))
    return survey, predict(survey, way)


def remembered(first: Survey, now: Survey) -> Survey:
    """What a run's steps have shown, for the job's later plans: half of what its own plan was corrected by.

    By half (of the logarithm): what was off may have had a cause that is no more, and a way that is not taken any more
    would never be seen to be better. Of computing nothing: devices are measured anew.

    Args:
        first: what the run was planned with.
        now: the same, as it was corrected.
    """
    ratios = {
        name: math.sqrt(ratio * first.ratios.get(name, 1.0)) for name, ratio in now.ratios.items() if name != COMPUTE
    }
    ratios |= {COMPUTE: first.ratios[COMPUTE]} if COMPUTE in first.ratios else {}
    return dataclasses.replace(now, ratios=ratios, other_s=(first.other_s + now.other_s) / 2)


def better(survey: Survey, now: Prediction, limits: Limits, samples_left: float, pause_s: float) -> Prediction | None:
    """Another plan that is worth to be carried out; None: there is none.

    Args:
        now: what a step takes now.
        pause_s: what it costs to make the run ready again.
    """
    try:
        best = choose(survey, limits).best
    except DoesNotFit:
        return None
    return best if pays(1 / now.speed, 1 / best.speed, samples_left, pause_s) else None


def pays(now_s: float, best_s: float, left: float, pause_s: float) -> bool:
    """Whether it is worth to make the run ready again.

    Args:
        now_s: seconds of a step, or of a sample, as it is planned now.
        best_s: the same with another plan.
        left: how many of them are left.
        pause_s: what it costs to make the run ready again.
    """
    return now_s > (1 + GAIN) * best_s and left * (now_s - best_s) > WORTH * pause_s


def has_lasted(since_s: float, pause_s: float) -> bool:
    """Whether another plan has been better for long enough.

    Args:
        since_s: for so many seconds.
        pause_s: what it costs to make the run ready again.
    """
    return since_s >= PERSISTS * pause_s


def is_soon(times: int, since_s: float, pause_s: float) -> bool:
    """Whether the run was made ready again for a better plan just now.

    Args:
        times: how often that was done.
        since_s: seconds since the run was made ready, for whatever reason.
        pause_s: what that costs.
    """
    return times > 0 and since_s < pause_s / MOST_PAUSED


# --- In words --------------------------------------------------------------------------------------------------------


def what_was_off(check: SelfCheck) -> str:
    """``a step takes 1.4 s, 40% more than predicted (computing as predicted, all else 3.1 times as long)``."""
    found, planned = check.median, check.predicted.seconds
    called = {COMPUTE: "computing", EXCHANGE: "all else"}
    times = ((called[name], number(ratio, 2)) for name, ratio in check.ratios.items())
    terms = ", ".join(f"{what} {'as predicted' if often == '1' else f'{often} times as long'}" for what, often in times)
    return f"a step takes {seconds(found.seconds)}, {_than_predicted(found.seconds / planned)} ({terms})"


def _than_predicted(ratio: float) -> str:
    """``40% more than predicted``, and of more than that ``3.1 times as long as predicted``."""
    if ratio >= MANIFOLD:
        return f"{number(ratio, 2)} times as long as predicted"
    return f"{ratio - 1:.0%} more than predicted" if ratio > 1 else f"{min(0.99, 1 - ratio):.0%} less than predicted"


def what_changed(before: Survey, now: Survey) -> tuple[str, ...]:
    """Devices and links that are faster or slower than they were."""
    found, known = list[str](), {host.name: host for host in before.hosts}
    speeds = {device.name: device.profile for host in before.hosts for device in host.devices}
    for host in now.hosts:
        for device in host.devices:
            if device.name in speeds and abs(device.speed / speeds[device.name].speed - 1) > SAID:
                found.append(pace(device.name, device.speed / speeds[device.name].speed))
        old = known.get(host.name)
        pairs = (("sends", old.up, host.up), ("receives", old.down, host.down)) if old is not None else ()
        changed = [
            f"{verb} {number(new / 1e6)} MB/s, {number(was / 1e6)} before"
            for verb, was, new in pairs
            if was and new and abs(new / was - 1) > SAID
        ]
        found += [f"the link of {host.name} {' and '.join(changed)}"] if changed else []
    return tuple(found)


def what_lasts(check: SelfCheck, since_s: float) -> str:
    """``a step takes 1.4 s for 90 s now``."""
    return f"a step takes {seconds(check.median.seconds)} for {seconds(since_s)} now"


def what_is_better(best: Prediction, *, at_once: bool = True) -> str:
    """``planned anew: sync on a and b, 0.9 s a step``; or, if not ``at_once``, ``planned anew if that lasts: ...``."""
    condition = "" if at_once else " if that lasts"
    return f"planned anew{condition}: {best.way.title} on {names(best.way.hosts)}, {seconds(best.seconds)} a step"
