"""The file from which a new coordinator takes over costs a run nothing where it can't be changed."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remote_agent.training.coordinator.recovery.takeover.takeover_file import FILE, TakeoverFile
from remote_agent.training.errors import StorageError


def test_a_disk_that_became_read_only_is_told_as_what_the_run_could_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / FILE))

    (tmp_path / FILE).touch()
    monkeypatch.setattr(Path, "unlink", refused)
    failure = StorageError("can't write step-7", hint="make room there")
    with pytest.raises(StorageError, match="step-7"), TakeoverFile(cast("Any", SimpleNamespace(folder=tmp_path))):
        raise failure
