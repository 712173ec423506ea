"""The bytes of a frame."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.training.wire import frames
from remote_agent.training.wire.errors import MalformedFrame
from remote_agent.training.wire.frames import Header, Kind, Reason

SMALL, LARGE = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@given(
    header=st.builds(
        Header,
        kind=st.sampled_from(Kind),
        step=LARGE,
        slice=SMALL,
        slices=SMALL,
        samples=LARGE,
        chunk=SMALL,
        codec=st.integers(0, 255),
        length=SMALL,
        options=st.binary(max_size=20),
    )
)
def test_a_header_comes_back_as_it_was(header: Header) -> None:
    packed = header.pack()
    assert len(packed) == frames.HEADER_BYTES + len(header.options)
    assert frames.unpack(packed[: frames.HEADER_BYTES], lambda size: packed[-size:]) == header


@given(data=st.binary(min_size=frames.HEADER_BYTES, max_size=frames.HEADER_BYTES))
def test_any_bytes_are_a_header_or_a_clear_error(data: bytes) -> None:
    with contextlib.suppress(MalformedFrame):
        assert frames.unpack(data, bytes).kind in Kind


@given(bits=st.lists(st.booleans(), max_size=200))
def test_bits_come_back_as_they_were(bits: list[bool]) -> None:
    packed = frames.pack_bits(bits)
    assert frames.unpack_bits(packed, len(bits)) == bits
    with pytest.raises(MalformedFrame):
        frames.unpack_bits(packed + b"\0", len(bits))


def test_a_failure_says_why_and_a_reason_of_a_later_version_is_just_a_failure() -> None:
    text = "shard 1: zu spät"
    assert frames.unpack_failure(frames.pack_failure(Reason.FELL_BEHIND, text)) == (Reason.FELL_BEHIND, text)
    assert frames.unpack_failure(bytes([77]) + text.encode()) == (Reason.OTHER, text)
    assert frames.unpack_failure(b"") == (Reason.OTHER, "")
