"""A job and its settings as a user gives them."""

from pathlib import Path

import pytest

from hetero_tui.errors import UsageError
from hetero_tui.runs.launch import parse_job, parse_settings


def test_a_ready_job_is_its_name() -> None:
    assert parse_job("digits").reference == "digits"


def test_a_job_of_the_users_is_a_file_and_a_name(tmp_path: Path) -> None:
    file = tmp_path / "My Model.py"
    file.write_text("job = 1\n")
    job = parse_job(f"{file}:job")
    assert (job.reference, job.slug, job.file) == ("My Model.py:job", "my-model", file)


@pytest.mark.parametrize("text", ["digit", "", ":", "a.py", "a.py:", "a.py:not a name", "/no/such.py:Job", "digits:x"])
def test_anything_else_is_refused_with_what_is_possible(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_job(text)
    assert "digits, text" in str(error.value)


def test_settings_are_split_at_the_first_equals_sign_and_all_wrong_ones_named() -> None:
    assert parse_settings(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(UsageError, match="'oops', '=3'"):
        parse_settings(["a=1", "oops", "=3"])
