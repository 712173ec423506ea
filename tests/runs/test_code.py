"""The files that go to the hosts with a job: which, how they lie there, and what is refused before anything starts."""

import io
import os
import zipfile
from pathlib import Path

import pytest

from hetero_tui.errors import OrderError
from hetero_tui.runs.code import MAX_BYTES, collect


def write(root: Path, **files: str) -> Path:
    """Files by name, with ``__`` for ``/`` and no suffix for .py; the job's is ``job``."""
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "job.py"


def names(job: Path, *paths: str) -> list[str]:
    return list(collect(job, paths).files)


def refusal(job: Path, *paths: str) -> str:
    with pytest.raises(OrderError) as error:
        collect(job, paths)
    return str(error.value)


def test_python_files_of_the_jobs_folder_go_with_it(tmp_path: Path) -> None:
    job = write(
        tmp_path, job="", helper="", tools__deep="", tools__in__near="", data__far__x="", venv__lib__y="", tests__t=""
    )
    (tmp_path / "venv/pyvenv.cfg").touch()
    (tmp_path / "tools/.hidden.py").touch()
    (tmp_path / "data/table.csv").touch()
    (tmp_path / "linked").symlink_to(tmp_path / "tools")
    (tmp_path / "tools/around").symlink_to(tmp_path)
    found = names(job)
    assert found[0] == "job.py"
    assert sorted(found) == [
        *("helper.py", "job.py", "linked/deep.py", "linked/in/near.py", "tools/deep.py", "tools/in/near.py"),
    ], "data/ has no module"


def test_packages_of_the_project_are_put_beside_the_job(tmp_path: Path) -> None:
    """So ``import pack.models`` works as from the root of the repository."""
    for name in ("pack/__init__.py", "src/other/__init__.py", "tests/__init__.py", "pyproject.toml", "setup.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    job = write(tmp_path, pack__models="", scripts__job="", scripts__near="", pack__job="").parent
    assert names(job / "scripts/job.py") == [
        "job.py",
        "near.py",
        "pack/__init__.py",
        "pack/job.py",
        "pack/models.py",
        "other/__init__.py",
    ]
    (tmp_path / "pyproject.toml").unlink()
    assert names(job / "pack/job.py") == [
        *("job.py", "__init__.py", "models.py"),
        *("pack/__init__.py", "pack/job.py", "pack/models.py"),
        "other/__init__.py",
    ]
    assert names(job / "scripts/job.py") == ["job.py", "near.py"]


def test_files_and_folders_that_are_named_keep_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = write(tmp_path / "here", job="")
    for name in (
        "data/a.csv",
        "data/in/b.csv",
        "data/.git/x",
        "data/__pycache__/x",
        "data/.env",
        "data/venv/pyvenv.cfg",
    ):
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    (tmp_path / "common").mkdir()
    (tmp_path / "common/c.py").write_text("")
    assert names(job, "data") == ["job.py", "data/a.csv", "data/in/b.csv"]  # from the job's folder
    monkeypatch.chdir(tmp_path)
    assert names(job, "here/data/in") == ["job.py", "data/in/b.csv"]  # from the present one
    assert names(job, "here/data/.env", "common") == ["job.py", "data/.env", "common/c.py"]
    assert names(job, "here") == ["job.py", "data/a.csv", "data/in/b.csv"]


def test_what_can_not_be_sent_is_refused_all_at_once(tmp_path: Path) -> None:
    job = write(tmp_path / "here", job="", data__x="")
    here = tmp_path / "here"
    (here / "data/broken").symlink_to("nowhere")
    (here / "data/good").symlink_to("x.py")
    (here / "empty").mkdir()
    os.mkfifo(here / "pipe")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/job.py").write_text("")
    said = refusal(job, "data", "empty", "pipe", "dat", str(tmp_path), f"{tmp_path}/other/job.py")
    for part in (
        "--with empty: no file in it to send",
        "--with pipe: neither a file nor a folder",
        "--with dat: not there; did you mean 'data'?",
        f"--with {tmp_path}: the job's own folder is in it",
        "job.py: job.py would lie where",
    ):
        assert part in said
    assert sorted(names(job, "data")) == ["data/good", "data/x.py", "job.py"]
    (here / "link").symlink_to(tmp_path / "other")
    assert "link/job.py" in names(job, "link"), "a link that is named is meant"


def test_the_archive_holds_the_files(tmp_path: Path) -> None:
    job = write(tmp_path, job="import helper\n", helper="x = 1\n")
    (tmp_path / "data.csv").write_text("1")
    found = collect(job)
    assert found.others == "helper.py (6 bytes)"
    with zipfile.ZipFile(io.BytesIO(found.archive())) as files:
        assert files.namelist() == ["code/job.py", "code/helper.py"]
        assert files.read("code/helper.py") == b"x = 1\n"


def test_too_much_is_refused_with_the_largest_files_and_what_to_do(tmp_path: Path) -> None:
    job = write(tmp_path, job="")
    (tmp_path / "data").mkdir()
    with (tmp_path / "data/big.bin").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert names(job) == ["job.py"]
    said = refusal(job, "data")
    assert "more than 64.0 MB; the largest: data/big.bin 64.0 MB" in said
    assert "on the hosts' own disks" in said
