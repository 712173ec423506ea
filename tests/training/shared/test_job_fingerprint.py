"""What is taken for another job on another machine, and what for the same one computed a little differently. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from remote_agent.training.errors import JobError
from remote_agent.training.shared.job_fingerprint import (
    FirstLoss,
    JobFingerprint,
    Numbers,
    refuse,
    refuse_one,
)

NOTHING = JobFingerprint()


def made_of(*some: float, exact: str = "", shape: tuple[int, ...] | None = None, **more: Any) -> JobFingerprint:
    found = Numbers(shape=shape if shape is not None else (len(some),), some=some, exact=exact)
    return JobFingerprint(samples={"batch[0] of sample 7": found}, **more)


def refusal(*workers: JobFingerprint, head: JobFingerprint = NOTHING) -> JobError | None:
    """Of workers on hosts a, b, c, ..."""
    try:
        refuse([(f"{host}/cpu", each) for host, each in zip("abcd", workers, strict=False)], head)
    except JobError as error:
        return error
    return None


def image(seed: int, change: Callable[[float], float] = lambda value: value) -> JobFingerprint:
    """64 numbers of a larger image, between 0 and 255."""
    drawn = random.Random(seed)
    return made_of(*(change(float(drawn.randrange(256))) for _ in range(64)), shape=(1, 3, 32, 32))


def log(value: float, allowed: float = 0.01, **more: Any) -> JobFingerprint:
    return JobFingerprint(loss=FirstLoss(values=(1.0, value), allowed=allowed), **more)


def test_samples_that_are_the_same_or_not_known_are_no_difference() -> None:
    assert refusal() is None
    assert refusal(image(1)) is None
    assert refusal(image(1), image(1)) is None
    assert refusal(image(1), NOTHING) is None
    assert refusal(NOTHING, image(1), image(1)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made_of(3.0, exact="x"), made_of(4.0, exact="y")),  # a label
        (made_of(0.5, 1.5), made_of(0.5, 1.6)),  # a feature
        (made_of(0.5, 1.5), made_of(0.5, 1.5, shape=(1, 2))),
        (made_of(0.0, 100.0), made_of(0.03, 100.0)),  # more than what is rounded beside a large number
        (made_of(*range(64)), made_of(*range(63), 70.0)),  # one of a few numbers
        (image(1), image(2)),
        (image(1), image(1, lambda value: 255 - value)),
    ],
)
def test_another_sample_is_refused_with_both_hosts_and_both_values(one: JobFingerprint, other: JobFingerprint) -> None:
    error = refusal(one, other)
    assert error is not None
    assert error.cause.startswith("b/cpu and a/cpu would not train the same: batch[0] of sample 7 is ")
    assert error.host == "b"
    assert "by_host" in error.hint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made_of(0.5, 1.5, math.nan), made_of(0.5 + 1e-6, 1.5 - 1e-6, math.nan)),
        (made_of(0.0, 100.0), made_of(1e-6, 100.0)),  # what is rounded beside a large number
        (made_of(0.0, 100.0), made_of(0.02, 100.0)),
        (made_of(math.nan), made_of(math.nan)),
        (made_of(3.0, exact="x"), made_of(3.0)),  # of one it is not known
        (image(1), image(1, lambda value: value + 2)),  # another decoder
        (image(1), image(1, lambda value: value * (1 + 1e-3))),
        (made_of(*[0.0] * 64, shape=(1, 3, 32, 32)), made_of(*[0.0] * 64, shape=(1, 3, 32, 32))),
    ],
)
def test_a_sample_that_another_library_or_processor_computes_a_little_differently_is_the_same(
    one: JobFingerprint, other: JobFingerprint
) -> None:
    assert refusal(one, other) is None
    assert refusal(other, one) is None


def test_a_loss_may_differ_by_what_either_device_allows() -> None:
    assert refusal(log(2.0), log(2.009)) is None
    assert refusal(log(2.0), log(2.1, allowed=0.2)) is None
    assert refusal(log(2.0), JobFingerprint(loss=FirstLoss(values=(9.0,), allowed=0.01, evaluating=False))) is None
    error = refusal(log(2.0), log(2.1))
    assert error is not None
    assert error.cause == (
        "b/cpu and a/cpu would not train the same: the loss of the same samples with the first weights is 2.1 on b/cpu,"
        " and 2 on a/cpu"
    )


@pytest.mark.parametrize(
    ("kind", "drawn", "refused"), [("cuda", True, False), ("cuda", False, True), ("cpu", True, True)]
)
def test_random_numbers_that_are_the_same_each_time_are_others_on_another_kind_of_device(
    kind: str, drawn: bool, refused: bool
) -> None:
    usual = JobFingerprint(loss=FirstLoss(values=(2.0,), allowed=0.01, drawn=drawn))
    other = JobFingerprint(loss=FirstLoss(values=(3.0,), allowed=0.01, kind=kind))
    assert (refusal(usual, other) is not None) is refused


def test_of_several_hosts_the_one_is_named_that_is_unlike_the_most_others() -> None:
    for odd in range(3):
        losses = [log(9.0 if number == odd else 2.0) for number in range(3)]
        error = refusal(*losses)
        assert error is not None
        assert error.host == "abc"[odd]


def test_tensors_that_modules_hold_have_to_be_alike_in_all_processes_and_numbers_on_all_workers() -> None:
    one = JobFingerprint(held={"model.table": (100, 3.0, 100.0), "model.only": (1, 1.0, 1.0)})
    near = JobFingerprint(held={"model.table": (100, 3.001, 100.002)})
    assert refusal(one, near, head=one) is None
    for others in ((100, -9.0, 104.0), (100, 3.0, 120.0), (99, 3.0, 100.0)):
        another = JobFingerprint(held={"model.table": others})
        for found in (refusal(one, another), refusal(one, near, head=another)):
            assert found is not None
            assert "model.table is 100 numbers with the sum 3" in found.cause or "and 100 numbers" in found.cause
            assert "register_buffer" in found.hint
    for mine, theirs, alike in (
        ((5, 0.0, 0.0), (5, 0.0, 0.0), True),
        ((100, 3.0, 100.0), (100, 3.4, 100.0), True),
        ((2, 0.0, 0.01), (2, 0.14, 0.01), False),
        ((2, 0.0, 0.5), (2, 0.0, 0.1), False),
    ):
        found = refusal(JobFingerprint(held={"model.table": mine}), JobFingerprint(held={"model.table": theirs}))
        assert (found is None) is alike, (mine, theirs)
    pair = JobFingerprint(held={"model.pair": (2, 1.0, 1.0)})
    assert refusal(pair, pair, head=JobFingerprint(held={"model.pair": (2, -1.0, 1.0)})) is not None
    cores = JobFingerprint(held={"model.only": (1, 16.0, 256.0)})
    assert refusal(one, cores) is not None
    assert refusal(one, one, head=cores) is None, "the coordinator's machine may have another number of cores"


def test_a_worker_that_comes_later_has_to_make_the_same_of_the_job() -> None:
    first = [("a/cpu", image(1))]
    refuse_one(("b/cpu", image(1)), first)
    refuse_one(("b/cpu", image(2)), ())
    with pytest.raises(JobError, match="b/cpu and a/cpu would not train the same") as caught:
        refuse_one(("b/cpu", image(2)), first)
    assert caught.value.host == "b"
