"""What the workers say and what is on record must fit together; else nothing is taken over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from remote_agent.protocol import DeviceSpec
from remote_agent.training.data import record
from remote_agent.training.data.record import SliceRecord, SliceSpan
from remote_agent.training.faults.succession import NotTakenOver, come_to
from remote_agent.training.messages import Delivery, Settled, Stamps, StreamedResult
from remote_agent.training.placing.placement import Node, Seat
from remote_agent.training.rpc import Actor
from remote_agent.training.session import Member
from remote_agent.training.speed.balance import SpeedTrack
from remote_agent.training.speed.shares import DeviceProfile
from remote_agent.training.working.worker import MOST_DELIVERIES

Cut = Sequence[int]
"""Samples of each worker in a step; 0: it had no slice."""


def member(number: int) -> Member:
    spec = DeviceSpec(host=f"h{number}", device="cpu", name="")
    node = Node(host=spec.host, selector=("", ""), cpus=1.0, gpus=0.0)
    seat = Seat(worker=f"h{number}/cpu", spec=spec, node=node, threads=1)
    return Member(seat, Actor(None), SpeedTrack(DeviceProfile(1.0, 0.0)))


def settled(cuts: Sequence[Cut]) -> list[tuple[Member, Settled]]:
    """What the workers answer after steps that were cut so; each tells of its last slices."""
    answers: list[list[Delivery]] = [[] for _ in cuts[0]]
    position = 0
    for step, cut in enumerate(cuts, start=1):
        having = [worker for worker, samples in enumerate(cut) if samples]
        for index, worker in enumerate(having):
            stamps = Stamps(entered=0.0, left=1.0)
            result = StreamedResult(
                step=step, loss=1.0, compute_s=0.1, pushed=0.1, bytes_out=1, bytes_in=1, stamps=stamps
            )
            answers[worker].append(
                Delivery(step=step, slices=len(having), index=index, begin=position, samples=cut[worker], result=result)
            )
            position += cut[worker]
    return [
        (member(worker), Settled(step=len(cuts), deliveries=tuple(deliveries[-MOST_DELIVERIES:])))
        for worker, deliveries in enumerate(answers)
    ]


def recorded(path: Path, cuts: Sequence[Cut], steps: int) -> Path:
    """The record of the first ``steps`` of them."""
    file = path / record.FILE
    file.unlink(missing_ok=True)
    written = SliceRecord(file)
    position = 0
    for step, cut in enumerate(cuts[:steps], start=1):
        spans = []
        for worker, samples in enumerate(cut):
            if samples:
                spans.append(SliceSpan(f"h{worker}/cpu", position, position + samples))
                position += samples
        written.write(step, spans)
    written.close()
    return file


some_cuts = some.integers(1, 4).flatmap(
    lambda workers: some.lists(some.lists(some.integers(0, 9), min_size=workers, max_size=workers), min_size=1).filter(
        lambda cuts: all(sum(cut) for cut in cuts)
    )
)


@given(cuts=some_cuts, unwritten=some.integers(0, 3))
def test_what_is_not_on_record_is_told_by_the_workers(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[list[int]], unwritten: int
) -> None:
    known = max(0, len(cuts) - unwritten)
    file = recorded(tmp_path_factory.mktemp("run"), cuts, known)
    found = come_to(settled(cuts), file)
    assert found.step == len(cuts)
    assert found.position == sum(map(sum, cuts))
    assert list(found.untold) == list(range(known + 1, len(cuts) + 1))
    for step, slices in found.untold.items():
        assert [delivery.samples for _, delivery in slices.values()] == [
            samples for samples in cuts[step - 1] if samples
        ]


def test_a_slice_that_nobody_tells_of_is_not_made_up(tmp_path: Path) -> None:
    cuts = [[3, 2], [4, 1], [2, 3]]
    answers = settled(cuts)
    silent = (answers[1][0], Settled(step=3, deliveries=()))
    with pytest.raises(NotTakenOver, match="step 3"):
        come_to([answers[0], silent], recorded(tmp_path, cuts, 2))
    assert come_to([answers[0], silent], recorded(tmp_path, cuts, 3)).untold == {}


def test_workers_that_stand_elsewhere_can_not_go_on(tmp_path: Path) -> None:
    cuts = [[3, 2], [4, 1], [2, 3]]
    ahead, behind = settled(cuts)[0], settled(cuts[:2])[1]
    with pytest.raises(NotTakenOver, match="steps 2 to 3"):
        come_to([ahead, behind], recorded(tmp_path, cuts, 2))
    with pytest.raises(NotTakenOver, match="step 3 is on record"):
        come_to(settled(cuts[:2]), recorded(tmp_path, cuts, 3))
