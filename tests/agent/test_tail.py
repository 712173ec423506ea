"""Lines from the end are those from the beginning, in the other order, whatever their lengths."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_agent import tail


@settings(max_examples=1000)
@given(
    text=st.lists(st.sampled_from([b"", b"\n", b"a", b"bc\n", b"d" * 9, b"\n\n"])).map(b"".join),
    block=st.integers(1, 12),
)
def test_they_are_the_whole_lines_with_their_places(text: bytes, block: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tail, "BLOCK_BYTES", block)
        found = list(tail.lines_from_end(io.BytesIO(text)))
    whole = text.split(b"\n")[:-1]
    assert [line for _, line in reversed(found)] == whole
    assert all(text[offset:].startswith(line + b"\n") for offset, line in found)
    assert [offset for offset, _ in found] == sorted({offset for offset, _ in found}, reverse=True)
    assert tail.end_of_lines(io.BytesIO(text)) == text.rfind(b"\n") + 1


def test_the_last_lines_of_a_large_file_are_read_alone() -> None:
    class Counting(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1, /) -> bytes:
            part = super().read(size)
            self.taken += len(part)
            return part

    file = Counting(b"".join(b"line %d\n" % number for number in range(1_000_000)))
    lines = tail.lines_from_end(file)
    assert [next(lines)[1] for _ in range(2)] == [b"line 999999", b"line 999998"]
    assert file.taken <= tail.BLOCK_BYTES
