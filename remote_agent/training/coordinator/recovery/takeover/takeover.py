"""Takes over a run whose coordinator was killed; workers and servers keep running.

Workers and servers outlive their coordinator (``rpc.start`` with a name), and are at most two steps ahead of its
record. The new coordinator asks each worker for its state; from then on a worker ignores tasks of the killed one
(``Worker.account``). The answers show which steps are complete, and which worker got which slices of the newest step
(``worker_status``). The strategy first finishes this step, as if it had issued it itself. So no step is repeated, no
sample is left out, and weights and optimizers stay where they are. A worker that ended together with the coordinator
counts as lost, as at any other time.

If a shard is gone, or a worker can't be asked and may still be working, nothing is changed: all actors end, and the run
continues from its newest checkpoint, or from its beginning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn

from remote_agent.host.processes import find_named
from remote_agent.protocol import (
    CLUSTER_MARK,
    CONTROL_FILE,
    DeviceSpec,
    RunResumed,
    Step,
    WorkerLost,
    run_process_name,
)
from remote_agent.training import job
from remote_agent.training.coordinator import lazy, resuming, sources, validation
from remote_agent.training.coordinator.control import Control
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.members import MembershipRecord, Rejoining, Server, WorkerHandle
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.plan.placement import Placement
from remote_agent.training.coordinator.processes.actors import WORKER, Servers, WorkerInit, Workers, of_name
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.processes.joining import Joining
from remote_agent.training.coordinator.recovery import restart
from remote_agent.training.coordinator.recovery.takeover import takeover_file
from remote_agent.training.coordinator.recovery.takeover.takeover_file import TakeoverState
from remote_agent.training.coordinator.recovery.takeover.worker_status import (
    TakeoverPoint,
    TakeoverRefused,
    UnreportedStep,
    takeover_point,
)
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.schedule import Schedule
from remote_agent.training.coordinator.session import EvaluationRecord, Session, Takeover
from remote_agent.training.data import record
from remote_agent.training.data.extent import Begin
from remote_agent.training.data.record import SliceRecord
from remote_agent.training.deadlines import ACCOUNT_S, PULSE_S
from remote_agent.training.errors import JobError, TrainingError
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import PING, Failed, WorkerStatus
from remote_agent.training.shared.slices import SliceSpan

LOG = logging.getLogger(__name__)

RECORDED_STEPS = 16
"""Number of last steps whose slices are read from the record; workers are fewer steps apart than this."""


def attempt(
    stack: contextlib.ExitStack, request: Request, journal: Journal, stopping: Callable[[], bool], crashes: Crashes
) -> tuple[tuple[Session, nn.Module] | None, Request]:
    """Take over the workers and servers of a killed coordinator, if there was one and they can continue.

    If they can't continue, they end, with all other actors that earlier coordinators of this cluster have left.

    Args:
        stack: the actors that are taken over end with it.
        stopping: returns True once the user wants the run to end early.

    Returns:
        The session to continue with, and a model for its weights, on the CPU; None: there is no takeover. And the
        request for a start in that case.

    Raises:
        JobError: the job's code fails now, but did not before.
    """
    state = takeover_file.read(request.folder)
    if state is not None:
        try:
            return stack.enter_context(_taken_over(state, request, journal, stopping, crashes)), request
        except TakeoverRefused as reason:
            LOG.info("the killed coordinator's workers are not taken over: %s", reason)
            request = _with_all_devices(state, request)
    _end_all(request.run)
    return None, request


def _end_all(run: str, but: Collection[str] = ()) -> None:
    """End the named actors of ``run``, and of all other runs of our cluster whose coordinator is gone."""
    ended: dict[str, bool] = {run: True}
    folder = os.environ.get(CLUSTER_MARK)  # without it this is not our cluster, and other runs are unknown
    for name in rpc.lasting():
        other, _ = of_name(name)
        if other not in ended:
            ended[other] = folder is not None and find_named(Path(folder), run_process_name(other)) is None
        if ended[other] and name not in but and (actor := rpc.find(name)) is not None:
            LOG.info("actor %s of an earlier coordinator is ended", name)
            actor.kill()


def _with_all_devices(state: TakeoverState, request: Request) -> Request:
    """The request for a start with all devices of the run, which may have come and gone since its beginning."""
    if request.devices != state.asked[0]:
        return request  # the request was decided again since then
    seats = [worker.seat for worker in state.workers]
    devices = (*(seat.spec for seat in seats), *_missing(state, request, seats))
    return dataclasses.replace(request, devices=tuple(spec for spec in devices if spec.host not in state.draining))


@contextlib.contextmanager
def _taken_over(
    state: TakeoverState, request: Request, journal: Journal, stopping: Callable[[], bool], crashes: Crashes
) -> Iterator[tuple[Session, nn.Module]]:
    """The result of :func:`attempt`, from the ``state`` that the killed coordinator left.

    Raises:
        TakeoverRefused: before the block; nothing was changed.
        JobError: the job's code fails now, but did not before.
    """
    began = time.monotonic()
    if not _is_as_asked(state, request):
        raise TakeoverRefused("it is to go on in another way")
    coordinator = uuid.uuid4().hex
    statuses, lost = _ask_workers(state, request.run, coordinator)
    at = takeover_point(statuses, _on_record(request.folder / record.FILE))
    servers = _servers(state, at)
    members = [member for member, _ in statuses if member not in at.behind]
    lost += [(member.seat, "it was behind when its coordinator was killed") for member in at.behind]
    model = job.create_model(request.job.factory, state.config.seed, state.config)
    given_data = sources.given_by(request.job, state.config.seed, state.config.batch_size)
    with contextlib.closing(sources.source_of(given_data)) as source:
        try:
            # The original setting, since without a batch size a loader's own batches are the steps.
            asked = dataclasses.replace(state.config, batch_size=request.config.batch_size)
            begin = Begin(
                folder=request.folder,
                done=at.step,
                start=at.position,
                batch=state.config.batch_size,
                earlier=request.folder,
            )
            _, order = source.open(asked, begin)
        except TrainingError as error:
            raise TakeoverRefused(error.cause) from error
        kept = (*(member.actor for member in members), *(server.actor for server in servers))
        lazy.give_shapes(model, request.job.factory, source)
        # Returning workers and the spare process start again.
        _end_all(request.run, but={actor.name for actor in kept})
        nodes = placement.living_nodes()
        schedule = _schedule(state, request, model)
        given = WorkerInit(request.job, model, source.for_workers(), schedule.base)
        pool = Servers(request, nodes, [member.seat for member in members], given, servers)
        workers = Workers(request, given, [member.actor for member in members])
        joining = Joining(
            workers,
            state.entry,
            buffers=state.buffers,
            reference=state.reference,
            config=state.config,
            options=schedule.base,
        )
        away = [Rejoining.new(spec) for spec in _missing(state, request, [member.seat for member in members])]
        try:
            _report(state, request, journal, at, lost, time.monotonic() - began)
            with joining:
                yield (
                    Session(
                        config=state.config,
                        membership=MembershipRecord(members, away, set(state.draining)),
                        servers=servers,
                        order=order,
                        source=source,
                        payload_bytes=state.payload_bytes,
                        buffer_names=state.buffers,
                        journal=journal,
                        stopping=stopping,
                        shapes=state.shapes,
                        stream=state.stream,
                        first_state=None,
                        pool=pool,
                        joining=joining,
                        control=Control(request.folder / CONTROL_FILE, state.control_offset),
                        takeover=Takeover(
                            coordinator=coordinator,
                            open_step=at.open_step,
                            last_reported_step=at.last_reported(journal.step)[0],
                            rebalance_reason="a new coordinator took over",
                        ),
                        validation=validation.of_job(request, state.config),
                        evaluations=EvaluationRecord(state.watched),
                        crashes=crashes,
                        schedule=schedule,
                    ),
                    model,
                )
        finally:
            pool.kill()
            workers.kill()


def _schedule(state: TakeoverState, request: Request, model: nn.Module) -> Schedule:
    """The job's scheduler, as in the newest checkpoint; it is stepped from there on."""
    found = None
    with contextlib.suppress(JobError):  # without one it is stepped from the beginning on
        found = resuming.find(restart.from_newest(request).resume, request.folder)
    return Schedule(request.job.factory, model, state.config, resuming.scheduler_state(found, state.config))


# --- The workers and shards, and where they stand --------------------------------------------------------------------


def _is_as_asked(state: TakeoverState, request: Request) -> bool:
    """Whether the request has the same settings as the killed run, and all workers that take part."""
    devices, config = state.asked
    wanted = request.devices == devices or {worker.seat.spec for worker in state.workers} <= {*request.devices}
    return wanted and request.config == config


def _ask_workers(
    state: TakeoverState, run: str, coordinator: str
) -> tuple[list[tuple[WorkerHandle, WorkerStatus]], list[tuple[Placement, str]]]:
    """The state of the workers, which from now on accept only tasks of ``coordinator``; and dead ones with the causes.

    Raises:
        TakeoverRefused: a worker can't be asked, and may still be working.
    """
    deadline = time.monotonic() + ACCOUNT_S
    strangers = [name for name in rpc.lasting() if of_name(name) == (run, WORKER) and name not in state.actors]
    # These were about to take part, or just started to. Living ones answer at once and end with the others.
    others = [actor.call_in(PING, "account", coordinator) for actor in map(rpc.find, strangers) if actor is not None]
    asked, lost = [], []
    for worker in state.workers:
        actor = rpc.find(worker.actor)
        if actor is None:
            lost.append((worker.seat, "its process ended"))
            continue
        member = WorkerHandle(worker.seat, actor, SpeedTrack(worker.profile), worker.simulated_speed, worker.clock)
        asked.append((member, actor.call_in(PING, "account", coordinator)))
    statuses = []
    for member, call in asked:
        try:
            status: WorkerStatus | None = rpc.get(call, max(0.0, deadline - time.monotonic()))
        except rpc.NoAnswer as error:
            if not rpc.gone(error):
                raise TakeoverRefused(f"{member.name}: {rpc.describe(error)}") from error
            lost.append((member.seat, rpc.describe(error)))
            continue
        if status is None:
            raise TakeoverRefused(f"{member.name} takes no part")
        statuses.append((member, status))
    if not statuses:
        raise TakeoverRefused("no worker is left")
    if others:
        rpc.wait_all(others, PULSE_S)
    return statuses, lost


def _servers(state: TakeoverState, at: TakeoverPoint) -> tuple[Server, ...]:
    """The shards, if they have no slice of a step that no living worker knows; only a dead worker can have sent one.

    Raises:
        TakeoverRefused: they have such a slice, or a shard is gone.
    """
    servers, asked = [], []
    for host, name in state.servers:
        actor = rpc.find(name)
        if actor is None:
            raise TakeoverRefused(f"the parameter server on {host} is gone")
        servers.append(Server(host=host, actor=actor))
        asked.append(actor.call("begun_step"))
    try:
        for server, answer in zip(servers, rpc.get_all(asked, ACCOUNT_S), strict=True):
            if isinstance(answer, Failed):
                raise TakeoverRefused(f"the parameter server on {server.host}: {answer.cause}")
            if answer > at.newest:
                raise TakeoverRefused(f"no worker knows how step {answer} was cut")
    except rpc.NoAnswer as error:
        raise TakeoverRefused(f"the parameter server: {rpc.describe(error)}") from error
    return tuple(servers)


def _on_record(file: Path) -> Mapping[int, Sequence[SliceSpan]]:
    try:
        return record.read(file, RECORDED_STEPS)
    except (OSError, ValueError) as error:
        raise TakeoverRefused(f"the record of slices can't be read: {error}") from error


def _missing(state: TakeoverState, request: Request, seats: Sequence[Placement]) -> list[DeviceSpec]:
    """Devices of the run without a worker on these seats, except those of drained hosts."""
    there = {(seat.spec.host, seat.spec.device) for seat in seats}
    lost = (worker.seat.spec for worker in state.workers)
    wanted = {(spec.host, spec.device): spec for spec in (*state.away, *lost, *request.devices)}
    return [spec for key, spec in wanted.items() if key not in there and spec.host not in state.draining]


# --- What the killed one did not write -------------------------------------------------------------------------------


def _report(
    state: TakeoverState,
    request: Request,
    journal: Journal,
    at: TakeoverPoint,
    lost: Sequence[tuple[Placement, str]],
    seconds: float,
) -> None:
    with contextlib.closing(SliceRecord(request.folder / record.FILE)) as slices:
        for step, unreported in at.unreported.items():
            slices.write(step, unreported.counted)
    for step, unreported in at.unreported.items():
        if step > journal.step:
            journal.write(Step, **step_fields(step, unreported))
    reported, samples = at.last_reported(journal.step)
    workers, shards = len(state.workers) - len(lost), len(state.servers)
    whom = f"{workers} worker{'' if workers == 1 else 's'} and {shards} shard{'' if shards == 1 else 's'}"
    journal.write(
        RunResumed,
        step=reported,
        host=request.host,
        checkpoint="",
        samples=samples,
        iterations=state.config.num_iterations,
        cause=journal.ended or "lost its coordinator",
        notes=(f"a new coordinator took over {whom} in {seconds:.1f} s, and nothing is made again",),
    )
    for seat, cause in lost:
        spec = seat.spec
        journal.write(WorkerLost, worker=seat.worker, host=spec.host, device=spec.device, step=reported, cause=cause)


def step_fields(step: int, unreported: UnreportedStep) -> dict[str, object]:
    """The event's fields for a step that had no coordinator; its time is that of its slowest worker."""
    results = [
        (member, unreported.spans[index].end - unreported.spans[index].begin, result)
        for index, (member, result) in sorted(unreported.results.items())
    ]
    known = sum(result.weight for _, _, result in results)
    seconds = max(result.stamps.left - result.stamps.entered for _, _, result in results)
    return {
        "step": step,
        "loss": sum(result.weight * result.loss for _, _, result in results) / known if known else 0.0,
        "samples": unreported.spans[-1].end - unreported.spans[0].begin,
        "seconds": seconds,
        "bytes_pushed": sum(result.bytes_out for _, _, result in results),
        "bytes_pulled": sum(result.bytes_in for _, _, result in results),
        "workers": tuple(
            member.times(count, seconds, compute_s=result.compute_s, push_s=result.push_s)
            for member, count, result in results
        ),
    }
