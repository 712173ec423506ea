"""Ours and torchft through the same schedule, in one table."""

from __future__ import annotations

from benchmarks.faulty import ours, torchft
from benchmarks.faulty.schedule import REACHABLE, TAKING_PART, Course

NOTES = (
    "Kept, for both: samples of new steps / (samples/s without a fault in the same run * seconds, each counted with",
    "the part of the devices' summed speed that was alive in it). The devices are alike, as torchft cuts evenly.",
    "Taking part: not known to be lost. Reachable: with power and cable, so the time to start a process counts, too.",
    "torchft: a loop starts replicas and lighthouse again, with the host too (simulated: no torchrun, no systemd);",
    "its left-out samples are the parts of replicas that were away, by its own count of participants in each step.",
    "Ours: samples by the record of slices. Manual steps: what had to be done by hand in the run.",
)


def lines(ours_: ours.Outcome, peer: torchft.Outcome) -> list[str]:
    """The table, and what has to be said about it."""
    course = ours_.course
    verdict = ours_.verdict
    rows = [
        ("", f"ours, {ours_.strategy}", peer.about),
        ("samples/s without a fault", *(f"{max(one.rates):.0f}" for one in (course, peer.course))),
        ("samples/s through the faults", *(f"{one.samples / one.seconds:.0f}" for one in (course, peer.course))),
        ("throughput kept among what takes part", *(_percent(one, TAKING_PART) for one in (course, peer.course))),
        ("throughput kept among what is reachable", *(_percent(one, REACHABLE) for one in (course, peer.course))),
        ("longest stall", *(f"{one.stall:.1f} s" for one in (course, peer.course))),
        ("samples left out or counted twice", verdict.samples_words, f"{peer.left_out} out, {peer.twice} twice"),
        ("weights from a plain loop", verdict.error_words, "-"),
        ("manual steps", "0", "0"),
        ("processes that others had to start again", "0", f"{peer.ended}, by a loop"),
        ("went wrong", "; ".join(course.torn) or "nothing", "; ".join(peer.course.torn) or "nothing"),
    ]
    return [f"{name:42} {left:>24}  {right:>24}" for name, left, right in rows] + list(NOTES)


def _percent(course: Course, meaning: str) -> str:
    return f"{100 * course.kept[meaning]:.1f} %"
