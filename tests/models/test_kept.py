"""What a host keeps of quantized models is whole, and what an ended process left of one goes."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from remote_agent.models import kept


def test_contents_that_were_not_written_are_read_anew(tmp_path: Path) -> None:
    weights, folder = tmp_path / "model.safetensors", tmp_path / "kept"
    weights.write_bytes(b"weights")
    expected = kept.key_of([weights], folder)
    (known,) = folder.iterdir()
    known.write_text("")  # as a kill or a full disk leaves it
    assert kept.key_of([weights], folder) == expected
    assert known.read_text()
    assert [known] == list(folder.iterdir()), "no draft is left"


def test_drafts_of_ended_processes_are_removed_and_those_under_way_are_not(tmp_path: Path) -> None:
    old, new = tmp_path / "old.1.part", tmp_path / "new.1.part"
    for draft in (old, new):
        draft.touch()
    os.utime(old, (1, 1))
    kept.keep(nn.Linear(2, 2), tmp_path, "key")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key.safetensors", "new.1.part"]
