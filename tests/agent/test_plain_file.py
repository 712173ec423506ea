"""What lies in the place of a file of ours and is none is not waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from remote_agent import plain_file
from remote_agent.host import layout, mesh, processes, supervision


@pytest.mark.parametrize(
    ("place", "read"),
    [
        (layout.spec_path, layout.read_spec),
        (layout.mesh_path, mesh.read_spec),
        (supervision.path, supervision.read),
        (lambda folder: processes.record_path(folder, "ray"), lambda folder: processes.read_record(folder, "ray")),
    ],
)
@pytest.mark.timeout(60, method="signal")  # a pipe that nothing is written to would be waited for without end
def test_a_pipe_in_the_place_of_a_file_of_ours_is_as_if_there_were_none(
    tmp_path: Path, place: Callable[[Path], Path], read: Callable[[Path], object]
) -> None:
    place(tmp_path).parent.mkdir(exist_ok=True)
    os.mkfifo(place(tmp_path))
    assert read(tmp_path) is None


def test_a_device_is_no_file_and_a_plain_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no plain file"):
        plain_file.read_text(Path("/dev/zero"))
    (tmp_path / "größe").write_text("größe\n")
    assert plain_file.read_text(tmp_path / "größe") == "größe\n"
