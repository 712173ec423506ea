from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.shares import (
    balanced_time,
    fit,
    least_slice,
    scaled,
    split,
    step_seconds,
)

profiles = st.lists(
    st.builds(
        DeviceProfile,
        speed=st.floats(0.1, 1e5),
        overhead_s=st.floats(0, 1),
        max_batch=st.none() | st.integers(1, 5000),
    ),
    min_size=1,
    max_size=8,
)


def room(devices: list[DeviceProfile], batch: int) -> int:
    return sum(batch if device.max_batch is None else device.max_batch for device in devices)


@given(st.integers(1, 2000), profiles)
def test_slices_sum_to_the_batch_and_keep_within_memory(batch: int, devices: list[DeviceProfile]) -> None:
    if room(devices, batch) < batch:
        with pytest.raises(ValueError, match="does not fit"):
            split(batch, devices)
        return
    cut = split(batch, devices)
    assert sum(cut) == batch
    assert all(share >= 0 for share in cut)
    assert all(
        device.max_batch is None or share <= device.max_batch for share, device in zip(cut, devices, strict=True)
    )


@given(st.integers(1, 500), profiles)
def test_moving_one_sample_to_another_device_never_ends_the_step_sooner(
    batch: int, devices: list[DeviceProfile]
) -> None:
    if room(devices, batch) < batch:
        return
    cut = split(batch, devices)
    best = step_seconds(cut, devices)
    for giver in range(len(cut)):
        for taker in range(len(cut)):
            limit = devices[taker].max_batch
            if giver != taker and cut[giver] and (limit is None or cut[taker] < limit):
                other = list(cut)
                other[giver] -= 1
                other[taker] += 1
                assert step_seconds(other, devices) >= best * (1 - 1e-6) - 1e-9


few = st.lists(
    st.builds(
        DeviceProfile,
        speed=st.floats(0.1, 1e3),
        overhead_s=st.floats(0, 1),
        max_batch=st.none() | st.integers(1, 8),
    ),
    min_size=1,
    max_size=3,
)


@given(st.integers(1, 10), few)
def test_of_all_ways_to_cut_a_batch_no_other_ends_sooner(batch: int, devices: list[DeviceProfile]) -> None:
    if room(devices, batch) < batch:
        return
    limits = [batch if device.max_batch is None else device.max_batch for device in devices]
    every = [cut for cut in itertools.product(*(range(min(limit, batch) + 1) for limit in limits)) if sum(cut) == batch]
    best = min(step_seconds(cut, devices) for cut in every)
    assert step_seconds(split(batch, devices), devices) == pytest.approx(best, rel=1e-6)


@given(st.integers(1, 500), profiles, st.data())
def test_a_small_change_of_speeds_changes_the_step_as_little(
    batch: int, devices: list[DeviceProfile], data: st.DataObject
) -> None:
    """No share jumps in a way that costs time: as profiles are measured, they are never quite the same."""
    if room(devices, batch) < batch:
        return
    factors = data.draw(st.lists(st.floats(0.98, 1.02), min_size=len(devices), max_size=len(devices)))
    near = [
        DeviceProfile(device.speed * factor, device.overhead_s / factor, device.max_batch)
        for device, factor in zip(devices, factors, strict=True)
    ]
    before, after = (step_seconds(split(batch, each), each) for each in (devices, near))
    assert before / 1.021 <= after <= before * 1.021


@given(st.integers(2, 500), profiles)
def test_no_slice_is_a_single_sample_where_batch_normalisation_needs_two(
    batch: int, devices: list[DeviceProfile]
) -> None:
    if room(devices, batch) < batch:
        return
    cut = split(batch, devices, least=2)
    assert sum(cut) == batch
    limits = [batch if device.max_batch is None else device.max_batch for device in devices]
    assert all(0 <= share <= limit for share, limit in zip(cut, limits, strict=True))
    if all(limit >= batch for limit in limits):
        assert 1 not in cut


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.data())
def test_the_last_batch_of_an_epoch_is_cut_into_slices_of_two_or_more_too(
    shares: list[int], data: st.DataObject
) -> None:
    batch = data.draw(st.integers(0, sum(shares)))
    cut = scaled(shares, batch, least=2)
    assert sum(cut) == batch
    assert all(0 <= part <= share for part, share in zip(cut, shares, strict=True))


def test_a_single_sample_goes_to_who_has_room_and_is_made_two_where_nobody_has() -> None:
    assert split(10, [DeviceProfile(9.0), DeviceProfile(1.0)], least=2) == (10, 0)
    assert split(10, [DeviceProfile(9.0, max_batch=9), DeviceProfile(1.0)], least=2) == (8, 2)
    assert scaled([9, 1], 5, least=2) == (5, 0)


@pytest.mark.parametrize(
    ("batch", "devices", "expected"),
    [
        (70, [DeviceProfile(1.0), DeviceProfile(0.5), DeviceProfile(0.25)], (40, 20, 10)),
        (10, [DeviceProfile(100), DeviceProfile(100, 5.0)], (10, 0)),  # it starts when the other is done
        (90, [DeviceProfile(100, max_batch=10), DeviceProfile(10), DeviceProfile(10)], (10, 40, 40)),
    ],
)
def test_shares_follow_speed_fixed_cost_and_memory(
    batch: int, devices: list[DeviceProfile], expected: tuple[int, ...]
) -> None:
    assert split(batch, devices) == expected


@given(st.integers(1, 2000), profiles)
def test_at_the_balanced_time_the_devices_have_done_the_batch_within_their_limits(
    batch: int, devices: list[DeviceProfile]
) -> None:
    if room(devices, batch) <= batch:
        return
    time = balanced_time(batch, devices)
    done = 0.0
    for device in devices:
        alone = device.speed * max(0.0, time - device.overhead_s)
        done += alone if device.max_batch is None else min(alone, device.max_batch)
    assert done == pytest.approx(batch, rel=1e-6, abs=1e-6)


def test_a_measured_line_is_found_again_and_noise_that_only_adds_time_is_ignored() -> None:
    points = [(b, 0.01 + b / 200) for b in (4, 32)]
    profile = fit([*points, (32, 0.9), (4, 0.5)])
    assert profile.speed == pytest.approx(200)
    assert profile.overhead_s == pytest.approx(0.01)


def test_a_measurement_without_a_slope_still_gives_a_speed() -> None:
    assert fit([(2, 0.2), (16, 0.1)]) == DeviceProfile(160.0)


def test_one_measured_size_gives_a_speed_and_no_fixed_cost() -> None:
    assert fit([(16, 0.1)]) == DeviceProfile(160.0)
    assert fit([(16, 0.1)], max_batch=8).max_batch == 8


def test_sizes_and_times_of_zero_are_no_measurement() -> None:
    assert fit([(0, 0.5), (16, 0.1), (8, 0.0)]) == DeviceProfile(160.0)
    with pytest.raises(ValueError, match="no measurement"):
        fit([(0, 0.5), (8, 0.0)])


def test_a_batch_is_scaled_to_any_smaller_one_and_to_no_other() -> None:
    assert scaled((1, 2), 0) == (0, 0)
    assert scaled((1, 2), 3) == (1, 2)
    assert scaled((10, 20), 3) == (1, 2)
    assert scaled((0, 0), 0) == (0, 0)
    for batch in (-1, 4):
        with pytest.raises(ValueError, match=f"a batch of {batch} samples is not a part of one of 3"):
            scaled((1, 2), batch)


def test_slices_have_two_samples_where_something_is_computed_of_all_of_them() -> None:
    assert least_slice([]) == 1
    assert least_slice(["running_mean"]) == 2
