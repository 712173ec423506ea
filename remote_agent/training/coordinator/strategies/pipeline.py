"""Trains a model that is cut by layers: each worker has some blocks, and all compute each sample together. Exact.

Before the first step, each device measures the model's blocks one by one. ``planning.cuts`` then chooses the devices,
their order and the cut, with the links between them; devices that would make a step longer get no blocks. In a step,
every stage gets the same task and computes its part of all micro-batches (``worker.stage``). The stages exchange
activations and gradients directly. The last stage reports the loss and the weight of the samples; every stage reports
the sum of squares of its gradients. So the coordinator knows the mean gradient's divisor and its norm over all stages,
and the next task lets every stage make its optimizer's step with these.

When a stage is lost, the run returns to its newest checkpoint, and the model is cut again over the remaining workers
(:class:`~remote_agent.training.errors.StageLost`, ``recovery.recut``), which keep their processes and what they
measured. The steps since the checkpoint are repeated with the same samples and random numbers, so the weights equal
those of a run without the loss. The lost worker restarts meanwhile. A device that comes back or is added gets blocks in
the same way, after the next checkpoint. When a host is drained, a checkpoint is saved at once, and the host leaves in
the same way. A device that became slow is named, and the next cut counts on its present speed.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from remote_agent.models.blocks import blocks_of
from remote_agent.planning.blocks import DeviceBlocks
from remote_agent.planning.cuts import Links
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.sites import DoesNotFit
from remote_agent.protocol import PlanMade, WorkerSlow
from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import Packed, Snapshot, TrainingState, unpacked
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan import profiles
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery import apart, policy
from remote_agent.training.coordinator.recovery.liveness import fetched
from remote_agent.training.coordinator.session import Session, StepReport
from remote_agent.training.coordinator.share_balancer import ShareBalancer
from remote_agent.training.coordinator.strategies import pipeline_plan
from remote_agent.training.coordinator.strategies.base import Strategy
from remote_agent.training.coordinator.strategies.driver import Answered, Driver, Lost, Owed, Stalled
from remote_agent.training.deadlines import HUNG_DEADLINES, PING_S, SERVER_S, TRANSFER_S, given_up_after
from remote_agent.training.errors import StageLost, TrainingError
from remote_agent.training.shared.figures import whole
from remote_agent.training.shared.flat import Payload
from remote_agent.training.shared.messages import PING, Slice
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.shared.slices import SliceSpan
from remote_agent.training.shared.stages import (
    Commit,
    StageBroken,
    StageDone,
    StageTask,
    commit_of,
)
from remote_agent.training.wire.errors import NothingCounts

LOG = logging.getLogger(__name__)

_HINT = "look at the hosts and the network between them, then resume the run"


@dataclass(eq=False)
class _Call:
    """A stage's part in the current step."""

    member: WorkerHandle
    answer: Ref[Any]
    expected_s: float
    since: float


class _Undivided(ShareBalancer):
    """Cuts no batch: every stage computes all samples."""

    def recut(self, step: int, reason: str) -> None:
        LOG.info("step %d: %s", step, reason)


class Pipeline(Strategy):
    """See the module."""

    @classmethod
    def check(cls, model: nn.Module, factory: Any) -> None:
        """Raise CannotCut if the model has no known blocks, before anything is started."""
        own = getattr(factory, "layers", None)
        if own is None:
            blocks_of(model)
        else:
            job.guard("layers", blocks_of, model, own)

    def steps(self, session: Session) -> Iterator[StepReport]:
        self._session = session
        self._commit: Commit | None = None
        self._missing = ""  # why checkpoints have no optimizer state
        self._tracks: list[SpeedTrack] = []  # of the stages, since the model was cut
        with Heartbeat() as self._heartbeat:
            self._driver = Driver(session, _Undivided(session), self._heartbeat, on_server=False)
            self._open()
            yield from self._reports()

    def _reports(self) -> Iterator[StepReport]:
        session, step = self._session, self._session.order.done
        ended = time.monotonic()
        while True:
            step += 1
            self._step = step
            first, last = session.order.span(step)
            batch = Slice.whole(session.order.take(first, last), begin=first)
            options = session.options(step)
            done = self._made(step, batch)
            commit = commit_of(step, done, options)
            if commit is None:
                raise NothingCounts.of(step)
            self._commit = commit
            goes_on = session.goes_on(step, last)
            if not goes_on or session.saves(step, first, last):
                self._settle()
            now = time.monotonic()
            yield self._report(step, done, (first, last), now - ended, commit)
            if not session.goes_on(step, last):
                self._settle()  # a stop may have been requested since
                return
            ended = now
            self._tell_slow(step, done, last - first)
            self._cut_anew(step)

    # --- The stages --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Cut the model, and let each stage load its part.

        Raises:
            TrainingError: the model does not fit into the devices' memory, or a stage can't be opened.
        """
        began, session = time.monotonic(), self._session
        self._step = session.order.done
        for member in self._leaving():
            self._driver.membership.handle_failure(self._step, member, policy.Drained(), newest=self._step)
        self._stages = members = list(session.members)  # each of them may be lost before there are stages
        freed = [_Call(each, each.call_in(PING, "abandon"), PING_S, began) for each in members]
        self._within(freed, PING_S)  # before anything of the new cut, which it would end
        for member, evidence in apart.leaving(members, self._heartbeat).items():
            self._lose(member, evidence)
        self._all(members, TRANSFER_S, "release")
        costs: list[DeviceBlocks] = self._all(members, SERVER_S, "costs")
        survey = session.survey
        self._links = links = Links.of(survey)
        if survey is not None and survey.hosts[0].up:
            profiles.keep(session.profile, pipeline_plan.with_blocks(survey, session.config, members, costs))
        try:
            plan = pipeline_plan.decided(session.config, members, costs, links)
        except DoesNotFit as error:
            raise TrainingError(str(error), hint="add a host, set a smaller micro_batch or batch_size") from None
        self._stages = [members[stage.device] for stage in plan.cut.stages]
        session.journal.write(PlanMade, **plan.fields(session.config, members, session.reasons))
        secret = secrets.token_bytes(32)
        bounds = plan.cut.bounds
        addresses: list[tuple[str, int]] = self._each(SERVER_S, "listen", lambda number: (number, secret))
        there: list[dict[str, str]] = self._each(SERVER_S, "fingerprints", lambda number: (bounds, number))
        weights = pipeline_plan.differing(session.first_weights, there)
        assert session.first_state is not None, "no shard has it"
        states = pipeline_plan.apart(session.first_state.optimizer, there)
        done = session.order.done
        self._each(
            TRANSFER_S,
            "take",
            lambda number: (plan.role(number, addresses, secret), weights[number], done, states[number]),
        )
        self._names: tuple[str, ...] = self._all(self._stages[:1], SERVER_S, "names")[0]
        planned = [stage.seconds * plan.micro_batches for stage in plan.cut.stages]
        self._tracks = [SpeedTrack(DeviceProfile(session.config.batch_size / seconds)) for seconds in planned]

    def _tell_slow(self, step: int, done: Sequence[StageDone], samples: int) -> None:
        """Name stages whose device became slow in a step, or is back; not one that was slow when the model was cut."""
        longest = max(each.compute_s for each in done)
        for number, (member, each) in enumerate(zip(self._stages, done, strict=True)):
            before = self._tracks[number]
            track = self._tracks[number] = before.observe(samples, each.compute_s).told(longest)
            if track.named is not before.named:
                factor = track.speed if track.named else 1.0
                self._session.journal.write(WorkerSlow, worker=member.name, host=member.host, step=step, factor=factor)

    def _cut_anew(self, step: int) -> None:
        """After a checkpoint, cut the model again if a device is back, was added, or has to leave.

        If a device has to leave, the next checkpoint is saved at once.

        Raises:
            StageLost: the run continues from the checkpoint, with another cut.
        """
        session, membership = self._session, self._driver.membership
        leaving = self._leaving()
        if leaving and not session.is_checkpoint(step):
            session.keeping.checkpoint_due = step + 1
        if not session.is_checkpoint(step):
            return
        newcomers = membership.ready(step)
        changed = [f"{member.name} leaves" for member in leaving]
        changed += [f"{member.name} is there again" for member in newcomers]
        if not changed:
            return
        error = self._lost(f"{', '.join(changed)}: the model is cut anew")
        known = {host.name for host in self._links.hosts} or {member.host for member in newcomers}
        error.unmeasured = any(each.host not in known for each in newcomers)
        membership.readmit(step + 1)
        raise error

    def _leaving(self) -> list[WorkerHandle]:
        """The workers on drained hosts; none if every host is drained."""
        members, draining = self._session.members, self._session.membership.draining
        leaving = [member for member in members if member.host in draining]
        return leaving if len(leaving) < len(members) else []

    def _lost(self, cause: str, host: str = "") -> StageLost:
        """Make the error that ends this cut; the next cut uses the present speeds of the devices."""
        for member, track in zip(self._stages, self._tracks, strict=False):
            member.slowness /= track.speed
        self._tracks = []
        return StageLost(cause, hint=_HINT, host=host)

    def _made(self, step: int, batch: Slice) -> list[StageDone]:
        """The stages' reports of a step; raises as :meth:`_answers`."""
        task = StageTask(
            step=step,
            batch=batch,
            commit=self._commit,
        )
        now = time.monotonic()
        calls = [_Call(each, each.call("step", task), each.usual_call_s, now) for each in self._stages]

        def owed(member: WorkerHandle, computed: int) -> Owed | None:
            patience_s = given_up_after(self._session.config.slice_deadline_s, member.usual_call_s)
            return Owed(now, patience_s, patience_s) if computed < step else None

        return self._answers(calls, owed)

    def _all(self, members: Sequence[WorkerHandle], seconds: float, method: str, *arguments: Any) -> list[Any]:
        """The members' answers to a call with a time limit; raises as :meth:`_answers`."""
        calls = [_Call(each, each.call(method, *arguments), seconds, time.monotonic()) for each in members]
        return self._within(calls, seconds)

    def _each(self, seconds: float, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        """The stages' answers to a call; ``arguments`` gives those of a stage; raises as :meth:`_answers`."""
        calls = [
            _Call(each, each.call(method, *arguments(number)), seconds, time.monotonic())
            for number, each in enumerate(self._stages)
        ]
        return self._within(calls, seconds)

    def _within(self, calls: Sequence[_Call], seconds: float) -> list[Any]:
        owed = Owed(time.monotonic(), seconds / HUNG_DEADLINES, seconds)
        return self._answers(calls, lambda *_: owed)

    def _answers(self, calls: Sequence[_Call], owed: Callable[[WorkerHandle, int], Owed | None]) -> list[Any]:
        """The answers to the calls, in their order.

        Raises:
            StageLost: a member was lost, or lost its connection to another one.
            TrainingError: the job failed.
        """
        answers: dict[WorkerHandle, Any] = {}
        broken: list[tuple[WorkerHandle, str]] = []
        awaited = list(calls)
        self._driver.begin()
        while awaited:
            match self._driver.next(
                self._step,
                awaited,
                lambda member, computed: None if member in answers else owed(member, computed),
                list(answers),  # a member may wait for one that has answered
            ):
                case Answered(call, answer):
                    awaited.remove(call)
                    answers[call.member] = answer
                    if isinstance(answer, StageBroken):
                        broken.append((call.member, answer.cause))
                case Lost(member, evidence):
                    self._lose(member, evidence)
                case Stalled():
                    self._lose(awaited[0].member, policy.Hung(time.monotonic() - awaited[0].since))
        if broken:
            # A lost process or host is detected as such; the remaining cause is a connection.
            member, cause = broken[0]
            raise self._lost(f"{member.name} lost another stage: {cause}", member.host)
        return [answers[call.member] for call in calls]

    def _lose(self, member: WorkerHandle, evidence: policy.Evidence) -> None:
        """End a stage that failed.

        Raises:
            StageLost: always, unless it was the last worker.
            WeightsGone: it was.
        """
        decision = policy.decide(evidence, policy.RunStatus(others=1, coming=0, on_server=False))
        error = self._lost(f"{member.name} was lost: {decision.cause}", member.host)
        self._driver.membership.handle_failure(self._step, member, evidence, newest=self._step)
        raise error

    # --- Accounting --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Apply the last step now."""
        self._all(self._stages, SERVER_S, "commit", self._commit)

    def _weights(self) -> Payload:
        """The weights after the last step, as one flat buffer per dtype in the model's order."""
        parts = self._kept("own_weights")()
        flats = {name: (dtype, array) for part in parts for name, (dtype, array) in part.items()}
        dtypes = dict.fromkeys(flats[name][0] for name in self._names)
        return tuple(
            np.concatenate([flats[name][1] for name in self._names if flats[name][0] == dtype]) for dtype in dtypes
        )

    def _snapshot(self) -> Snapshot:
        fetched_states = self._kept("remembered")

        def fetch() -> TrainingState:
            states: list[tuple[Packed, str]] = fetched_states()
            optimizer = {name: kept for state, _ in states for name, kept in unpacked(state, copied=True).items()}
            self._missing = "".join(sorted({missing for _, missing in states}))
            return TrainingState(optimizer=optimizer, missing=self._missing)

        return fetch

    def _kept(self, method: str) -> Callable[[], list[Any]]:
        """Call ``method`` of all stages before any later call; returns what fetches the answers."""
        stages, members, heartbeat = self._stages, self._session.members, self._heartbeat
        refs = [member.call(method) for member in stages]

        def is_lost() -> bool:
            beats = [heartbeat.of(member.actor) for member in stages]
            return any(member not in members for member in stages) or any(b.ended or b.is_silent for b in beats)

        return lambda: fetched(refs, TRANSFER_S, is_lost)

    def _report(
        self, step: int, done: Sequence[StageDone], span: tuple[int, int], seconds: float, commit: Commit
    ) -> StepReport:
        samples = span[1] - span[0]
        times = []
        for member, each in zip(self._stages, done, strict=True):
            member.took(each.stamps)
            self._driver.membership.worked(member)
            moved = {"push_s": each.sending_s, "pull_s": each.receiving_s}
            times.append(member.times(samples, seconds, compute_s=each.compute_s, **moved))
        sent = max(each.sent for each in done)
        return StepReport(
            step=step,
            loss=done[-1].loss,
            samples=samples,
            seconds=seconds,
            bytes_pushed=sent,
            bytes_pulled=sent,
            workers=tuple(times),
            weights=self._weights,
            slices=(SliceSpan(self._stages[-1].name, *span),),
            snapshot=self._snapshot,
            scalars=whole(each.scalars for each in done),
            gradient_norm=commit.norm,
            options=commit.options,
        )
