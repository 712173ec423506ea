from __future__ import annotations

from remote_agent.training.balance import SpeedTrack, recut
from remote_agent.training.shares import DeviceProfile, split


def observed(track: SpeedTrack, samples: int, seconds: float, steps: int) -> SpeedTrack:
    for _ in range(steps):
        track = track.observe(samples, seconds)
    return track


def test_after_ten_steps_the_shares_follow_a_device_that_is_half_as_fast_as_measured() -> None:
    fast, slow = SpeedTrack(DeviceProfile(100)), SpeedTrack(DeviceProfile(100))
    cut = split(90, [fast.current, slow.current])
    for step in range(10):
        fast, slow = fast.observe(cut[0], cut[0] / 100), slow.observe(cut[1], cut[1] / 50)
        cut = recut(90, cut, [fast, slow], step + 1) or cut
    assert abs(cut[0] - 60) <= 2


def test_small_noise_does_not_move_the_shares() -> None:
    tracks = [SpeedTrack(DeviceProfile(100)).observe(45, 0.45 * noise) for noise in (1.1, 0.95)]
    assert recut(90, (45, 45), tracks, 10) is None


def test_shares_rest_for_some_steps_after_a_cut() -> None:
    tracks = [observed(SpeedTrack(DeviceProfile(100)), 45, seconds, 10) for seconds in (0.45, 1.8)]
    assert recut(90, (45, 45), tracks, 1) is None
    assert recut(90, (45, 45), tracks, 5) is not None


def test_one_hiccup_does_not_name_a_device_slow_but_a_lasting_slowdown_does_within_ten_steps() -> None:
    track = observed(SpeedTrack(DeviceProfile(100)), 10, 0.1, 12)
    assert track.observe(10, 0.2).slowdown() is None
    factor = observed(track, 10, 0.2, 10).slowdown()
    assert factor is not None
    assert 0.45 < factor < 0.6


def test_a_slowdown_is_reported_once() -> None:
    track = observed(observed(SpeedTrack(DeviceProfile(100)), 10, 0.1, 12), 10, 0.3, 20)
    assert track.slowdown() is not None
    assert track.accepted().slowdown() is None
