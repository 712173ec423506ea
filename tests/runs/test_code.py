"""The files that go to the hosts with a job: which, how they lie there, and what is refused before anything starts."""

import io
import json
import os
import zipfile
from pathlib import Path

import pytest

from hetero_tui.errors import OrderError
from hetero_tui.runs.code import collect


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


def test_modules_beside_the_job_go_with_it_and_those_that_they_import(tmp_path: Path) -> None:
    job = write(
        tmp_path,
        job="import torch, helper, remote_agent.x\nfrom tools.deep import thing\ndef later():\n    import lazy\n",
        helper="from parts import first\nimport importlib\nimportlib.import_module('named')\n",
        lazy="",
        named="import job",
        unused="",
        tools__deep="from . import near\nfrom .. import nothing\n",
        tools__near="",
        tools__far="",
        remote_agent__x="",
        json="",  # Python's own is meant
        torch__x="",
    )
    (tmp_path / "parts").mkdir()
    for name in ("__init__", "first", "second"):
        (tmp_path / f"parts/{name}.py").write_text("import late" if name == "second" else "")
    (tmp_path / "late.py").write_text("")
    (tmp_path / "parts/.hidden.py").write_text("")
    found = names(job)
    assert found[0] == "job.py"
    assert sorted(found) == [
        "helper.py", "job.py", "late.py", "lazy.py", "named.py",
        "parts/__init__.py", "parts/first.py", "parts/second.py", "tools/deep.py", "tools/near.py",
    ]  # fmt: skip


def test_a_module_that_does_not_parse_is_refused_and_one_that_nobody_imports_is_not(tmp_path: Path) -> None:
    job = write(tmp_path, job="import p.good, bad\n", p__good="", p__old="print 'x'\n", bad="\nx = (\n")
    (tmp_path / "p/__init__.py").write_text("")
    assert "bad.py:2: '(' was never closed" in refusal(job)
    (tmp_path / "bad.py").write_text("")
    assert "p/old.py" in names(job)


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
    (here / "data/out").symlink_to("/etc")
    (here / "data/broken").symlink_to("nowhere")
    (here / "data/good").symlink_to("x.py")
    (here / "empty").mkdir()
    os.mkfifo(here / "pipe")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/job.py").write_text("")
    said = refusal(job, "data", "empty", "pipe", "dat", str(tmp_path), f"{tmp_path}/other/job.py")
    for part in (
        f"{here}/data/out is a link to /etc; name what it leads to",
        f"{here}/data/broken is a link to nothing",
        "--with empty: no file in it to send",
        "--with pipe: neither a file nor a folder",
        "--with dat: not there; did you mean 'data'?",
        f"--with {tmp_path}: the job's own folder is in it",
        "job.py: job.py would lie where",
    ):
        assert part in said
    assert "data/good" not in said
    (here / "data/out").unlink()
    (here / "data/broken").unlink()
    assert names(job, "data") == ["job.py", "data/good", "data/x.py"]
    (here / "link").symlink_to(tmp_path / "other")
    assert names(job, "link") == ["job.py", "link/job.py"], "a link that is named is meant"


def test_the_archive_holds_the_files_and_what_was_left(tmp_path: Path) -> None:
    job = write(tmp_path, job="import helper\nopen('data.csv')\n", helper="x = 1\n")
    (tmp_path / "data.csv").write_text("1")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/a.png").write_text("1")
    found = collect(job)
    assert found.left == ("data.csv", "pictures/a.png")
    assert found.others == "helper.py (6 bytes)"
    with zipfile.ZipFile(io.BytesIO(found.archive())) as files:
        assert files.namelist() == ["code/job.py", "code/helper.py", "left.json"]
        assert files.read("code/helper.py") == b"x = 1\n"
        assert json.loads(files.read("left.json")) == ["data.csv", "pictures/a.png"]
