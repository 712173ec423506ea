"""Whose code a file is: that of a library, or the user's own."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch

from remote_agent.training.user_code import ownership
from remote_agent.training.user_code.ownership import is_of_users, is_users_own


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    ownership.is_users_own.cache_clear()


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/me/.local/lib/python3.11/site-packages/torchvision/models/resnet.py", False),  # pip --user
        ("/usr/lib/python3/dist-packages/numpy/__init__.py", False),  # a distribution's
        (torch.nn.functional.__file__, False),
        ("/home/me/packages/job.py", True),
    ],
)
def test_what_is_installed_is_no_code_of_the_users_wherever_it_lies(file: str, own: bool) -> None:
    assert is_users_own(file) == own


def test_a_jobs_file_is_the_users_own_also_where_the_folder_of_its_name_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "code"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    assert is_users_own("job.py")


def test_a_module_that_a_library_writes_while_it_runs_is_the_librarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = types.ModuleType("torch.nn.made_by_a_template")
    made.__file__ = str(tmp_path / "made.py")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    assert not is_of_users(made.__name__)
