"""Whose code a file is: what an installer has copied is a library's, wherever it lies."""

from __future__ import annotations

import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch

from remote_agent.training.user_code import ownership, side_effects
from remote_agent.training.user_code.ownership import is_of_users, is_users_own


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    ownership.is_users_own.cache_clear()
    ownership._installed.cache_clear()


def installed(folder: Path, *files: str, name: str = "library") -> None:
    """What ``pip install --target`` leaves of a distribution with these files."""
    record = folder / f"{name}-1.0.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.write_text("".join(f'"{file}",sha256=abc,1\n' for file in (*files, f"{record.parent.name}/RECORD")))
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")


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


def test_what_an_installer_copied_into_a_folder_of_pythonpath_is_a_librarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "transformers/__init__.py", "transformers/models/bert.py", name="transformers")
    installed(tmp_path, "six.py", "my, own/__init__.py", name="six")
    (tmp_path / "job.py").write_text("")  # as where a user installs into the folder of the job
    (tmp_path / "transformers" / "mine.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for file in ("transformers/__init__.py", "transformers/models/bert.py", "six.py", "my, own/__init__.py"):
        assert not is_users_own(str(tmp_path / file)), file
    for file in ("job.py", "transformers/mine.py"):
        assert is_users_own(str(tmp_path / file)), file


def test_a_folder_of_libraries_counts_from_where_python_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative, with a link on the way, and of files that are links to an installer's store (Bazel, uv)."""
    store, libs = tmp_path / "store" / "six.py", tmp_path / "libs"
    installed(libs, "six.py")
    store.parent.mkdir()
    (libs / "six.py").rename(store)
    (libs / "six.py").symlink_to(store)
    (tmp_path / "link").symlink_to(libs)
    monkeypatch.chdir(tmp_path)
    for entry in ("libs", "link", str(libs) + "/", "./store/../libs"):
        ownership.is_users_own.cache_clear()
        monkeypatch.setattr(sys, "path", [entry, *sys.path])
        assert not is_users_own(f"{entry.rstrip('/')}/six.py"), entry
        assert not is_users_own(str(libs / "six.py")), entry


def test_a_zip_file_with_libraries_is_such_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "app.pyz"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("__main__.py", "")
        out.writestr("six.py", "")
        out.writestr("six-1.0.dist-info/RECORD", "six.py,,\n")
    monkeypatch.setattr(sys, "path", [str(path), *sys.path])
    assert not is_users_own(f"{path}/six.py")
    assert is_users_own(f"{path}/__main__.py")


def test_what_is_installed_in_place_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder has a list of its files, and the record of the installation has what leads to it alone."""
    (tmp_path / "src" / "mine.egg-info").mkdir(parents=True)
    (tmp_path / "src" / "mine.egg-info" / "SOURCES.txt").write_text("mine/__init__.py\n")
    (tmp_path / "src" / "mine.egg-info" / "PKG-INFO").write_text("Name: mine\nVersion: 1\n")
    installed(tmp_path / "libs", "__editable__.mine-1.0.pth", name="mine")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "src"), str(tmp_path / "libs"), *sys.path])
    assert is_users_own(str(tmp_path / "src" / "mine" / "__init__.py"))


def test_a_record_that_cannot_be_read_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "damaged.py", name="damaged")
    (tmp_path / "damaged-1.0.dist-info" / "RECORD").write_bytes(b"\xff\xfe\x00damaged.py")
    installed(tmp_path, "six.py", name="six")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert is_users_own(str(tmp_path / "damaged.py"))
    assert not is_users_own(str(tmp_path / "six.py"))


def test_a_module_that_a_library_writes_while_it_runs_is_the_librarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = types.ModuleType("torch.nn.made_by_a_template")
    made.__file__ = str(tmp_path / "made.py")
    exec(compile("def propagate(): pass", made.__file__, "exec"), vars(made))
    monkeypatch.setitem(sys.modules, made.__name__, made)
    assert not is_of_users(made.__name__)
    assert not side_effects._is_users(made.propagate)
    vars(made)["__name__"] = "mine"
    assert side_effects._is_users(made.propagate)
