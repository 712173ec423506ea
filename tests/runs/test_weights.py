"""Exported weights do not mix with those of another export."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero_tui.errors import UsageError
from hetero_tui.runs.weights import refuse_others

NAMES = ("config.json", "model.safetensors")


def test_a_folder_with_files_of_another_export_is_refused(tmp_path: Path) -> None:
    refuse_others(tmp_path / "new", NAMES)
    refuse_others(tmp_path, NAMES)
    for name in (*NAMES, ".model.safetensors.part"):
        (tmp_path / name).touch()
    refuse_others(tmp_path, NAMES)  # the same export once more
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(UsageError, match=r"not of this export, such as adapter_config\.json") as error:
        refuse_others(tmp_path, NAMES)
    assert "--output" in error.value.hint
