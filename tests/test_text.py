"""Text from hosts can neither move the cursor nor disguise itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_tui.text import HostText, duration, last_lines, meant, one_line, plain


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07rest", "rest"),
        ("\x1bP1;2q sixel \x1b\\after", "after"),
        ("bell\x07 back\x08", "bell back"),
        ("right\u202eleft", "rightleft"),
        ("a\r\nb", "a\nb"),
        ("a\rb", "ab"),
        ("\x9b31m", "31m"),
        ("hid\u3164den\ufe0f\u115f", "hidden"),
    ],
)
def test_escape_sequences_are_stripped(raw: str, shown: str) -> None:
    assert plain(raw) == shown


@given(st.text())
def test_no_control_character_is_ever_shown(raw: str) -> None:
    shown = one_line(raw)
    assert all(ord(character) >= 32 and not 0x7F <= ord(character) <= 0x9F for character in shown)
    assert len(shown) <= 200


def test_a_heap_of_marks_does_not_reach_into_other_lines_and_what_people_write_stays() -> None:
    assert plain("e" + "\u0301\u0334" * 5_000 + "x") == "e\u0301\u0334\u0301x"
    assert plain("\u0e01" + "\u0e49" * 50) == "\u0e01" + "\u0e49" * 3
    assert plain("a\U0001f44d\U0001f3fd|") == "a\U0001f44d|", "drawn in two cells by some terminals, in four by others"
    for written in ("Zürich, naïve e\u0301te\u0301", "กู้ภัย", "בְּרֵאשִׁית", "حَرَكَات", "Tiê\u0323\u0301ng", "が\u3099"):
        assert plain(written) == written


def test_long_text_has_an_end() -> None:
    assert plain("x" * 5000, 10) == "xxxxxxxxx…"


def test_last_lines_are_the_ones_with_something_in_them() -> None:
    assert last_lines("one\n\ntwo\n  \nthree\n\n", 2) == "two\nthree"


@given(st.integers(0, 10**6))
def test_a_time_span_says_its_seconds_to_the_unit_that_people_look_at(seconds: int) -> None:
    numbers = [int(word.replace(",", "")) for word in duration(seconds).split()[::2]]
    units = duration(seconds).split()[1::2]
    assert units == (["h", "min"] if seconds >= 3600 else ["min", "s"] if seconds >= 60 else ["s"])
    total = sum(n * {"h": 3600, "min": 60, "s": 1}[unit] for n, unit in zip(numbers, units, strict=True))
    assert total == (seconds // 60 * 60 if seconds >= 3600 else seconds)
    assert duration(-3.0) == "0 s"


def test_the_last_line_of_some_kind_is_found_wherever_it_is() -> None:
    assert HostText("{1}\nx\n{2}\ny").last("{") == "{2}"
    assert HostText("{1}\nx").last("{") == "{1}"
    assert HostText("x\n{1}").last("{") == "{1}"
    assert HostText("x {1}\n").last("{") is None


def test_the_nearest_word_is_the_one_that_is_meant() -> None:
    assert meant("mercy", ("nas", "mercer", "mercedes")) == "; did you mean 'mercer'?"
    assert meant("xyz", ("nas", "mercer")) == ""
