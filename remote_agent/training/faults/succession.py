"""A coordinator that takes the place of one that was killed: workers and servers go on as they are.

They have outlived it (``rpc.start`` with a name), and are at most two steps ahead of what it had written. Once each has
done what it was given, all have the weights of the same step. What the killed one did not write of the last steps the
workers tell: which slices each has done, and what came of them. So nothing is made again, no sample is left out, and
weights and optimizers stay where they are.

Where that is not so (somebody is gone, or a step lacks a slice that was never issued) nothing is changed: all actors
end, and the run goes on from its newest checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn

from remote_agent.processes import find_named
from remote_agent.protocol import CLUSTER_MARK, CONTROL_FILE, DeviceSpec, RunResumed, Step, run_process_name
from remote_agent.runs import newest_checkpoint
from remote_agent.training import job, rpc
from remote_agent.training.actors import Given, Request, Servers, Workers, run_of
from remote_agent.training.data import record, sources
from remote_agent.training.data.record import SliceRecord, SliceSpan
from remote_agent.training.deadlines import HEARTBEAT_S, SETTLE_S, SETTLE_STEPS
from remote_agent.training.errors import TrainingError
from remote_agent.training.faults.control import Control
from remote_agent.training.faults.estate import Estate
from remote_agent.training.faults.joining import Joining
from remote_agent.training.journal import Journal
from remote_agent.training.messages import Delivery, Settled
from remote_agent.training.placing import placement
from remote_agent.training.rpc import Actor
from remote_agent.training.session import Member, Server, Session
from remote_agent.training.speed.balance import SpeedTrack
from remote_agent.training.strategies.away import Away


class NotTakenOver(Exception):
    """The actors of the killed coordinator can't simply go on; the text says why. Nothing was changed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What a killed coordinator's actors had come to: ``step`` is whole on all of them, and ``position`` is its end.

    ``untold`` are the slices that its record lacks, by step and index, each with its worker.
    """

    step: int
    position: int
    untold: Mapping[int, Mapping[int, tuple[Member, Delivery]]]


def end_all(run: str, but: Collection[str] = ()) -> None:
    """End the lasting actors of ``run``, and of all other runs of our cluster that have no coordinator any more.

    Args:
        run: this coordinator's.
        but: names of actors that stay.
    """
    ended: dict[str, bool] = {run: True}
    folder = os.environ.get(CLUSTER_MARK)  # without it this is no cluster of ours, and others' runs are not on record
    for name in rpc.lasting():
        other = run_of(name)
        if other not in ended:
            ended[other] = folder is not None and find_named(Path(folder), run_process_name(other)) is None
        if ended[other] and name not in but and (actor := rpc.find(name)) is not None:
            actor.kill()


def from_checkpoint(estate: Estate, request: Request, reason: str) -> Request:
    """The run as it can go on all the same: with all devices that it had, from its newest checkpoint.

    Raises:
        TrainingError: it has none.
    """
    if newest_checkpoint(request.folder) is not None:
        request = dataclasses.replace(request, resume=request.folder)
    elif request.resume is None:
        raise TrainingError(
            f"the coordinator was killed, the run has no checkpoint, and a new one can't take over: {reason}",
            hint="start the run again; with checkpoint_every it can go on from there",
        )
    if request.devices != estate.asked[0]:
        return request  # what is to be run was decided anew since then
    devices = (*(worker.seat.spec for worker in estate.workers), *_missing(estate, request))
    return dataclasses.replace(request, devices=tuple(spec for spec in devices if spec.host not in estate.draining))


@contextlib.contextmanager
def taken_over(
    estate: Estate, request: Request, journal: Journal, stopping: Callable[[], bool]
) -> Iterator[tuple[Session, nn.Module]]:
    """The session of the killed coordinator, to go on with; its actors end when the block does.

    Args:
        estate: what it left.
        request: the run.
        journal: where its events are.
        stopping: true once the user wants it to end early.

    Yields:
        The session for a strategy, and a model for its weights, on the CPU.

    Raises:
        NotTakenOver: before the block, and nothing was changed.
        JobError: the job's code fails now, and did not before.
    """
    began = time.monotonic()
    if not _is_as_asked(estate, request):
        raise NotTakenOver("it is to go on in another way")
    crew, servers = _employed(estate)
    found = come_to(_settle(estate, crew, servers), request.folder / record.FILE)
    model = job.create_model(request.job.factory, estate.config.seed)
    with contextlib.closing(sources.source_of(job.guard("create_data", request.job.create_data))) as source:
        try:
            _, order = source.open(estate.config, found.step, found.position)
        except TrainingError as error:
            raise NotTakenOver(error.cause) from error
        end_all(request.run, but=estate.actors)  # whoever was on its way back begins anew
        nodes = placement.living_nodes()
        given = Given(request.job, model, source.for_workers())
        pool = Servers(request, nodes, [member.seat for member in crew], given, servers)
        pool.spare = _spare(estate)
        workers = Workers(request, given, [member.actor for member in crew])
        joining = Joining(
            workers, estate.entry, buffers=estate.buffers, reference=estate.reference, config=estate.config
        )
        try:
            _tell(estate, request, journal, found, time.monotonic() - began)
            with joining:
                yield (
                    Session(
                        config=estate.config,
                        crew=crew,
                        servers=servers,
                        order=order,
                        source=source,
                        weights=None,
                        payload_bytes=estate.payload_bytes,
                        buffer_names=estate.buffers,
                        journal=journal,
                        stopping=stopping,
                        shapes=estate.shapes,
                        stream=estate.stream,
                        first_state=None,
                        pool=pool,
                        joining=joining,
                        away=[Away.new(spec) for spec in _missing(estate, request)],
                        draining=set(estate.draining),
                        control=Control(request.folder / CONTROL_FILE, estate.heeded),
                    ),
                    model,
                )
        finally:
            pool.kill()
            workers.kill()


# --- Who is there, and where they stand ------------------------------------------------------------------------------


def _is_as_asked(estate: Estate, request: Request) -> bool:
    """Whether what is to be run is what was run: with the same settings, and all workers that take part."""
    devices, config = estate.asked
    wanted = request.devices == devices or {worker.seat.spec for worker in estate.workers} <= {*request.devices}
    return wanted and request.config == config


def _employed(estate: Estate) -> tuple[list[Member], tuple[Server, ...]]:
    crew = []
    for worker in estate.workers:
        actor = _living(worker.actor, worker.seat.worker)
        crew.append(Member(worker.seat, actor, SpeedTrack(worker.profile), worker.simulated_speed))
    if not crew:
        raise NotTakenOver("no worker took part")
    servers = tuple(
        Server(host=host, actor=_living(name, f"the parameter server on {host}")) for host, name in estate.servers
    )
    return crew, servers


def _spare(estate: Estate) -> Server | None:
    if estate.spare is None:
        return None
    host, name = estate.spare
    actor = rpc.find(name)
    return Server(host=host, actor=actor) if actor is not None else None


def _living(name: str, who: str) -> Actor:
    actor = rpc.find(name)
    if actor is None:
        raise NotTakenOver(f"{who} is gone")
    return actor


def _settle(estate: Estate, crew: Sequence[Member], servers: Sequence[Server]) -> list[tuple[Member, Settled]]:
    """Wait until all have done what they were given."""
    asked = [(server.host, server.actor.call("ping")) for server in servers]
    settling = [(member, member.actor.call("settled")) for member in crew]
    deadline = time.monotonic() + SETTLE_S + SETTLE_STEPS * estate.step_s
    settled: list[tuple[Member, Settled]] = []
    try:
        for host, ping in asked:
            if rpc.get(ping, HEARTBEAT_S) is not None:
                raise NotTakenOver(f"the parameter server on {host} has failed")
        for member, call in settling:
            answer: Settled | None = rpc.get(call, max(0.0, deadline - time.monotonic()))
            if answer is None:
                raise NotTakenOver(f"{member.name} takes no part")
            settled.append((member, answer))
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
        raise NotTakenOver(rpc.describe(error)) from error
    return settled


def come_to(settled: Sequence[tuple[Member, Settled]], file: Path) -> Found:
    """What the answers of all workers and the record of slices in ``file`` show together.

    Raises:
        NotTakenOver: they do not fit together.
    """
    steps = {answer.step for _, answer in settled}
    if len(steps) > 1:
        raise NotTakenOver(f"the workers have the weights of steps {min(steps)} to {max(steps)}")
    (step,) = steps
    try:
        made = record.read(file)
    except (OSError, ValueError) as error:
        raise NotTakenOver(f"the record of slices can't be read: {error}") from error
    recorded = max(made, default=0)
    if recorded > step:
        raise NotTakenOver(f"step {recorded} is on record, and the workers have the weights of step {step}")
    done: dict[int, dict[int, tuple[Member, Delivery]]] = {}
    for member, answer in settled:
        for delivery in answer.deliveries:
            done.setdefault(delivery.step, {})[delivery.index] = (member, delivery)
    position = max((span.end for span in made.get(recorded, ())), default=0)
    untold = {}
    for number in range(recorded + 1, step + 1):
        slices = done.get(number, {})
        spans = _spans(slices)
        end = max((span.end for span in spans), default=position)
        expected = next((delivery.slices for _, delivery in slices.values()), 0)
        if len(slices) != expected or not slices or record.gaps_and_overlaps(spans, end, position):
            raise NotTakenOver(f"nobody knows who did the slices of step {number}")
        untold[number], position = slices, end
    return Found(step=step, position=position, untold=untold)


def _spans(slices: Mapping[int, tuple[Member, Delivery]]) -> list[SliceSpan]:
    return [
        SliceSpan(member.name, delivery.begin, delivery.begin + delivery.samples)
        for _, (member, delivery) in sorted(slices.items())
    ]


def _missing(estate: Estate, request: Request) -> list[DeviceSpec]:
    """Devices of the run that have no worker now; those of hosts that are to leave get none."""
    there = {(worker.seat.spec.host, worker.seat.spec.device) for worker in estate.workers}
    wanted = {(spec.host, spec.device): spec for spec in (*estate.away, *request.devices)}
    return [spec for key, spec in wanted.items() if key not in there and spec.host not in estate.draining]


# --- What the killed one did not write -------------------------------------------------------------------------------


def _tell(estate: Estate, request: Request, journal: Journal, found: Found, seconds: float) -> None:
    with contextlib.closing(SliceRecord(request.folder / record.FILE)) as slices:
        for step, done in found.untold.items():
            slices.write(step, _spans(done))
    for step, done in found.untold.items():
        if step > journal.step:
            journal.write(Step, **_step(step, [done[index] for index in sorted(done)]))
    whom = f"{len(estate.workers)} workers and {len(estate.servers)} shards"
    journal.write(
        RunResumed,
        step=found.step,
        host=request.host,
        checkpoint="",
        samples=found.position,
        iterations=estate.config.num_iterations,
        cause=journal.ended or "lost its coordinator",
        notes=(f"a new coordinator took over {whom} in {seconds:.1f} s, and nothing is made again",),
    )


def _step(step: int, slices: Sequence[tuple[Member, Delivery]]) -> dict[str, object]:
    """The fields of the event of a step that nobody watched: what it took is what its slowest worker took."""
    results = [(member, delivery.samples, delivery.result) for member, delivery in slices]
    samples = sum(count for _, count, _ in results)
    seconds = max(result.compute_s + result.stamps.left - result.stamps.entered for _, _, result in results)
    return {
        "step": step,
        "loss": sum(count * result.loss for _, count, result in results) / samples,
        "samples": samples,
        "seconds": seconds,
        "bytes_pushed": sum(result.bytes_out for _, _, result in results),
        "bytes_pulled": sum(result.bytes_in for _, _, result in results),
        "workers": tuple(
            member.times(count, seconds, compute_s=result.compute_s, push_s=result.push_s)
            for member, count, result in results
        ),
    }
