"""Cuts each step's batch into the workers' shares by their measured speed; devices that are too slow get none."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Sequence

from remote_agent.planning import shares, units
from remote_agent.protocol import Rebalanced, WorkerSlow
from remote_agent.strategies import spec_of
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan import balance, benched
from remote_agent.training.coordinator.plan.benched import Benched
from remote_agent.training.coordinator.session import Session
from remote_agent.training.errors import TrainingError
from remote_agent.training.shared.messages import Result, Slice

LAST_HINT = "look at the host, then start the run again"


class ShareBalancer:
    """Cuts the next step's batch among the members of a session."""

    _in_units = True
    """Whether a step is one batch, of which each device gets whole units."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._benched: dict[WorkerHandle, Benched] = {}
        self._trial: tuple[WorkerHandle, tuple[int, ...]] | None = None  # a benched device, the cut
        self._adapted_at = time.monotonic()
        self._announced: dict[int, list[tuple[WorkerHandle, int, int]]] = {}
        self._take(self._fresh_cut(), balance.FIRST_STEPS - balance.STEPS_BETWEEN)

    @property
    def cut(self) -> tuple[int, ...]:
        """Samples of the next step for each living worker, in the session's order."""
        return self._trial[1] if self._trial is not None else self._regular

    def slices(self, total: int) -> list[tuple[WorkerHandle, int, int]]:
        """(worker, begin, end) of each slice of the batch that is not empty, in order.

        Args:
            total: number of samples: a whole batch, fewer at the end, or those of the data's own batch.
        """
        result, begin = [], 0
        cut = (
            shares.scaled(self.cut, total, self._session.least_slice) if total <= sum(self.cut) else self._larger(total)
        )
        if self._session.config.unit and self._in_units:
            cut = units.aligned(cut, self._session.config.unit)
        for member, samples in zip(self._session.members, cut, strict=True):
            if samples:
                result.append((member, begin, begin + samples))
                begin += samples
        return result

    def slices_of(self, step: int, total: int) -> list[tuple[WorkerHandle, int, int]]:
        """The slices of ``step``, as they were announced to workers that read ahead, if they were."""
        announced = self._announced.pop(step, [])
        members = set(self._session.members)
        fits = announced and announced[-1][2] == total and {member for member, _, _ in announced} <= members
        return announced if fits else self.slices(total)

    def coming(self, step: int) -> dict[WorkerHandle, tuple[Slice, ...]]:
        """Announce the slices of the steps after ``step``, which workers may read ahead."""
        found: dict[WorkerHandle, tuple[Slice, ...]] = {}
        order, config = self._session.order, self._session.config
        for later in range(step + 1, step + 1 + self._session.source.ahead * (not spec_of(config.strategy).rounds)):
            first, last = order.span(later)
            if first == last:
                break
            cut = self._announced.setdefault(later, self.slices(last - first))
            indices = order.take(first, last)
            for index, (member, begin, end) in enumerate(cut):
                part, place = indices[begin:end], first + begin
                its = Slice(index=index, indices=part, begin=place, first=first, total=last - first)
                found[member] = (*found.get(member, ()), its)
        return found

    def recut(self, step: int, reason: str) -> None:
        """Cut again from ``step`` on, since a worker joined, or left (it may have been the last one).

        Raises:
            TrainingError: the batch does not fit into the members' memory.
        """
        session = self._session
        self._announced.clear()
        if not session.members:
            self._take((), step)
            return
        room = sum(member.track.profile.max_batch or math.inf for member in session.members)
        if room < session.config.batch_size:
            # A worker takes more than fits in several parts: slower than a cut within the limits, better than none.
            for member in session.members:
                member.track = member.track.without_limit()
        self._take(self._fresh_cut(), step)
        self.announce(step, reason)

    def _take(self, cut: tuple[int, ...], step: int) -> None:
        """Use this cut from now on."""
        self._regular, self._cut_at = cut, step
        self._trial = None
        idle = [member for member, samples in zip(self._session.members, cut, strict=True) if not samples]
        self._benched = {member: self._benched.get(member, Benched()) for member in idle}

    def substitute(
        self,
        size: int,
        busy: dict[WorkerHandle, float],
        step: int,
        among: Sequence[WorkerHandle] | None = None,
    ) -> WorkerHandle:
        """The living worker that can finish a lost slice of ``size`` samples first, if possible one with room for it.

        A worker that joined after ``step`` is not used: it gets the weights only when this step is complete.

        Args:
            busy: seconds of earlier work of a worker.
            among: the workers to choose from; None: all.
        """

        def cost(member: WorkerHandle) -> tuple[bool, float]:
            profile = member.track.current
            small = profile.max_batch is not None and profile.max_batch < size
            return small, busy.get(member, 0.0) + profile.seconds(size)

        members = self._session.members if among is None else among
        return min([member for member in members if member.entered <= step] or members, key=cost)

    def adapt(self, step: int, observed: Iterable[tuple[WorkerHandle, int, float]]) -> None:
        """Update speeds with a step's (worker, samples, compute seconds); cut again if better; report slow devices."""
        session = self._session
        seen = set[WorkerHandle]()
        for member, samples, seconds in observed:
            if member not in session.members:
                continue
            seen.add(member)
            member.observe(samples, seconds, rested=member in self._benched)
        self._tell_slow(step)
        if not session.config.rebalance:
            return
        better = self._better_cut(step - self._cut_at)
        for member in session.members:
            member.track = member.track.noticed()
        if better is not None:
            self._take(better, step)
            self.announce(step, "the devices' speeds changed")
        elif self._trial is not None:
            tried, _ = self._trial
            if tried in seen:
                self._trial, self._benched[tried] = None, self._benched[tried].after_trial()
                self.announce(step, f"{tried.name} is still too slow to take part")
        elif self._benched:
            self._try_again(step)

    def _tell_slow(self, step: int) -> None:
        """Write which devices became slow, or are back, once that has lasted."""
        now = time.monotonic()
        passed_s, self._adapted_at = now - self._adapted_at, now
        for member in self._session.members:
            was_named, member.track = member.track.named, member.track.told(passed_s)
            if member.track.named is not was_named:
                factor = member.track.speed if member.track.named else 1.0
                self._session.journal.write(WorkerSlow, worker=member.name, host=member.host, step=step, factor=factor)

    def _try_again(self, step: int) -> None:
        """After a step without some devices, give one of them a trial slice if it is time."""
        session = self._session
        self._benched = {member: rest.after_step() for member, rest in self._benched.items()}
        step_s = shares.step_seconds(self._regular, [track.current for track in session.tracks])
        for member, rest in self._benched.items():
            if rest.is_over(step_s, member.track.current.seconds(session.least_slice)):
                cut = benched.trial_cut(self._regular, session.members.index(member), session.least_slice)
                if cut is not None:
                    self._trial = member, cut
                    self.announce(step, f"{member.name} is tried again")
                    return

    def take_notice(self, step: int, member: WorkerHandle, result: Result) -> None:
        """Let a worker's share follow its new speed if its memory was full."""
        if result.at_most and member in self._session.members:
            full = f"{member.name}'s memory was full: it computes {result.at_most} samples at a time from now on"
            self.announce(step, full)

    def _fresh_cut(self) -> tuple[int, ...]:
        session = self._session
        try:
            profiles = [member.track.current for member in session.members]
            return shares.split(session.config.batch_size, profiles, session.least_slice)
        except ValueError as error:
            raise TrainingError(str(error), hint="lower batch_size, or raise the hosts' max_batch") from None

    def _larger(self, total: int) -> tuple[int, ...]:
        """The cut of a batch larger than the configuration's, in several parts if a device has too little memory."""
        profiles = [dataclasses.replace(track.current, max_batch=None) for track in self._session.tracks]
        return shares.split(total, profiles, self._session.least_slice)

    def _better_cut(self, steps_since: int) -> tuple[int, ...] | None:
        """A better cut than the present one, which is ``steps_since`` steps old; None: there is none."""
        session = self._session
        return balance.recut(session.config.batch_size, self._regular, session.tracks, steps_since, session.least_slice)

    def announce(self, step: int, reason: str) -> None:
        """Write the event about the new cut, with the reason."""
        cut = tuple(member.share(samples) for member, samples in zip(self._session.members, self.cut, strict=True))
        self._session.journal.write(Rebalanced, step=step, shares=cut, reason=reason)
