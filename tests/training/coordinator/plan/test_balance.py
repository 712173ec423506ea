from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

import pytest

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.shares import split
from remote_agent.training.coordinator.plan.balance import (
    MAX_LASTING_STEPS,
    NAMED_S,
    STEPS_BETWEEN,
    SpeedTrack,
    recut,
)


def observed(track: SpeedTrack, samples: int, seconds: float, steps: int) -> SpeedTrack:
    for _ in range(steps):
        track = track.observe(samples, seconds)
    return track


def test_within_ten_steps_the_shares_follow_a_device_that_is_half_as_fast_as_measured() -> None:
    fast, slow = SpeedTrack(DeviceProfile(100)), SpeedTrack(DeviceProfile(100))
    cut = split(90, [fast.current, slow.current])
    for _ in range(10):
        fast, slow = fast.observe(cut[0], cut[0] / 100), slow.observe(cut[1], cut[1] / 50)
        cut = recut(90, cut, [fast, slow], 0) or cut
    assert abs(cut[0] - 60) <= 2


@pytest.mark.parametrize("speed", [0.6, 0.3])
def test_within_ten_steps_a_slowdown_is_named_and_the_shares_follow(speed: float) -> None:
    noise = random.Random(1)
    tracks = [SpeedTrack(DeviceProfile(100)), SpeedTrack(DeviceProfile(100))]
    cut: tuple[int, ...] = (45, 45)

    def step(speeds: tuple[float, float]) -> None:
        nonlocal cut
        for index, now in enumerate(speeds):
            seconds = cut[index] / (100 * now) * noise.uniform(0.95, 1.1)
            tracks[index] = tracks[index].observe(cut[index], seconds)
        cut = recut(90, cut, tracks, 1) or cut

    for _ in range(40):
        step((1, 1))
    assert cut == (45, 45)
    for _ in range(10):
        step((1, speed))
    assert [track.slow for track in tracks] == [False, True]
    assert tracks[1].speed == pytest.approx(speed, rel=0.15)
    assert cut[1] == pytest.approx(90 * speed / (1 + speed), abs=4)


def test_noise_hardly_moves_shares_and_names_nobody_slow() -> None:
    noise = random.Random(7)
    tracks = [SpeedTrack(DeviceProfile(100)) for _ in range(3)]
    cut: tuple[int, ...] = (30, 30, 30)
    moves = since = 0
    for number in range(2000):
        for index in range(3):
            hiccup = noise.choice((2.0, 4.0)) if noise.random() < 0.1 else 1.0
            tracks[index] = tracks[index].observe(cut[index], cut[index] * 0.01 * noise.uniform(0.9, 1.3) * hiccup)
            assert not tracks[index].slow, f"step {number}"
        since += 1
        better = recut(90, cut, tracks, since)
        if better is not None:
            cut, since, moves = better, 0, moves + 1
    assert moves <= 5


def test_a_burst_of_another_program_is_no_slowdown_where_steps_are_short() -> None:
    track = observed(SpeedTrack(DeviceProfile(1000)), 10, 0.01, 100)
    assert not observed(track, 10, 0.02, 8).slow
    assert observed(track, 10, 0.02, 60).slow


@pytest.mark.parametrize("step_s", [0.06, 0.2, 1.0])
def test_a_device_that_does_four_tenths_is_named_within_ten_steps_and_said_to_be_back_as_soon(step_s: float) -> None:
    track = SpeedTrack(DeviceProfile(100 / step_s))
    for _ in range(30):
        track = track.observe(100, step_s).told(step_s)
    for _ in range(10):
        track = track.observe(100, 2.5 * step_s).told(2.5 * step_s)
    assert track.named
    for _ in range(10):
        track = track.observe(100, step_s).told(step_s)
    assert not track.named


def test_where_steps_are_short_a_device_is_named_once_it_was_slow_for_seconds_and_said_to_be_back_likewise() -> None:
    track = observed(SpeedTrack(DeviceProfile(1000)), 10, 0.01, 100)
    for pace, named in ((0.05, True), (0.01, False)):
        last = track.named
        seconds = 0.0
        while track.named is last:
            track = track.observe(10, pace).told(pace)
            seconds += pace
        assert track.named is named
        assert NAMED_S < seconds < NAMED_S + 1
    waiting = observed(track, 10, 0.05, 20)
    for _ in range(round(NAMED_S / 0.05) + 1):
        waiting = waiting.told(0.05)
    assert waiting.named, "without a slice, too"


def test_shares_rest_between_two_cuts() -> None:
    tracks = [observed(SpeedTrack(DeviceProfile(100)), 45, seconds, 12) for seconds in (0.45, 0.55)]
    assert recut(90, (45, 45), tracks, STEPS_BETWEEN - 1) is None
    assert recut(90, (45, 45), tracks, STEPS_BETWEEN) == (50, 40)


def test_a_gain_that_is_not_worth_it_moves_nothing() -> None:
    tracks = [observed(SpeedTrack(DeviceProfile(100)), 45, seconds, 12) for seconds in (0.45, 0.48)]
    assert recut(90, (45, 45), tracks, 1000) is None


def test_a_weak_device_that_is_back_gets_its_share_again_though_it_adds_little() -> None:
    """Five devices of which the last was slow: 84 ms a step with it as it is cut, 81 ms with what it could do."""
    pace = (0.004, 0.006, 0.009, 0.006, 0.012)
    tracks = [SpeedTrack(DeviceProfile(1 / each)) for each in pace]
    cut = (21, 14, 9, 14, 2)
    tracks = [
        observed(track, samples, samples * each, 100) for track, samples, each in zip(tracks, cut, pace, strict=True)
    ]
    assert recut(60, cut, tracks, 1000) is None, "for so little nothing moves by itself"
    slow = observed(tracks[-1], 2, 2 * 0.03, 40)
    back = slow.noticed()
    for _ in range(20):
        back = back.noticed().observe(2, 2 * 0.012)
        if back.jumped:
            break
    assert recut(60, cut, [*tracks[:-1], back], 1) == (20, 13, 8, 13, 6)
    assert recut(60, cut, [*tracks[:-1], back.noticed()], 1000) is None


def test_a_slow_drift_is_the_new_usual_speed_and_names_nobody_slow() -> None:
    track = observed(SpeedTrack(DeviceProfile(100)), 12, 0.12, 100)
    for step in range(1000):
        track = track.noticed().observe(12, 0.12 * 1.001**step)
        assert not track.slow, f"step {step}"
    assert track.factor > 2.5


def test_steps_far_off_to_both_sides_are_no_change() -> None:
    track = observed(SpeedTrack(DeviceProfile(100)), 12, 0.12, 100)
    for step in range(40):
        track = track.observe(12, 0.12 * (1.6 if step % 2 else 0.6))
        assert not track.jumped, f"step {step}"


def test_however_short_steps_are_a_change_is_followed_within_sixty() -> None:
    track = observed(SpeedTrack(DeviceProfile(1e6)), 10, 1e-5, 200)
    assert any((track := track.observe(10, 3e-5)).jumped for _ in range(MAX_LASTING_STEPS))


def test_a_fall_is_told_once_and_taken_back_when_the_speed_is_back() -> None:
    track = observed(SpeedTrack(DeviceProfile(100)), 10, 0.1, 20)
    told = []
    for seconds in [0.2] * 50 + [0.12] * 50 + [0.1] * 50:
        after = track.observe(10, seconds)
        if after.slow is not track.slow:
            told.append(after.slow)
        track = after
    assert told == [True, False]
    assert track.speed == pytest.approx(1, abs=0.05)


def hiccups(noise: random.Random, sigma: float, part: float) -> Iterator[float]:
    """Ratios of a device whose steps differ by ``sigma``; a ``part`` of them begins a hiccup of one step or two."""
    while True:
        hiccup = noise.choice((1, 2)) if noise.random() < part else 0
        for _ in range(hiccup):
            yield noise.lognormvariate(0, sigma) * noise.uniform(2, 4)
        if not hiccup:
            yield noise.lognormvariate(0, sigma)


@pytest.mark.parametrize(("sigma", "part"), [(0.1, 0.02), (0.2, 0.04)])
def test_hiccups_one_by_one_and_in_pairs_are_no_change(sigma: float, part: float) -> None:
    for seed in range(3):
        track, changes = SpeedTrack(DeviceProfile(100)), 0
        for ratio in islice(hiccups(random.Random(seed), sigma, part), 4000):
            track = track.noticed().observe(12, 0.12 * ratio)
            changes += track.jumped
        assert changes == 0


def test_shares_follow_a_fall_in_one_cut_and_stay() -> None:
    noise = random.Random(5)
    tracks = [SpeedTrack(DeviceProfile(100)) for _ in range(3)]
    cut: tuple[int, ...] = (20, 20, 20)
    since, cuts = 0, list[int]()
    for number in range(400):
        for index, factor in enumerate((1, 1, 2.5 if number >= 200 else 1)):
            seconds = cut[index] * 0.01 * factor * noise.lognormvariate(0, 0.02)
            tracks[index] = tracks[index].observe(cut[index], seconds)
        since += 1
        better = recut(60, cut, tracks, since)
        tracks = [track.noticed() for track in tracks]
        if better is not None:
            cut, since = better, 0
            cuts.append(number)
    assert len(cuts) == 1
    assert 206 <= cuts[0] <= 209
    assert cut == (25, 25, 10)


@pytest.mark.parametrize(("samples", "seconds"), [(0, 1.0), (-1, 1.0), (10, 0.0), (10, -1.0)])
def test_a_slice_without_samples_or_time_says_nothing_about_a_device(samples: int, seconds: float) -> None:
    track = SpeedTrack(DeviceProfile(100, 0.1))
    assert track.observe(samples, seconds) is track
    assert track.anew(samples, seconds) is track


def test_a_device_that_takes_twice_as_long_is_predicted_to_in_all_that_it_does() -> None:
    track = observed(SpeedTrack(DeviceProfile(100, 0.1, 64)), 20, 2 * 0.3, 30)
    assert track.factor == pytest.approx(2.0)
    for samples in (1, 20, 50):
        assert track.current.seconds(samples) == pytest.approx(2 * DeviceProfile(100, 0.1).seconds(samples))
    assert track.current.max_batch == 64


def test_after_a_rest_the_first_slice_alone_says_how_fast_a_device_is() -> None:
    before = observed(SpeedTrack(DeviceProfile(100)), 50, 0.5, 40)
    after = before.anew(50, 2.0)
    assert after.factor == pytest.approx(4.0)
    assert after.jumped
    assert after.steps == before.steps + 1
    assert after.slow
    back = after.anew(50, 0.5)
    assert back.factor == pytest.approx(1.0)
    assert not back.slow
