"""Exported weights do not mix with those of another export."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero_tui.errors import UsageError
from hetero_tui.runs.weights import _NAME, SINGLE, refuse_kind, refuse_others

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


@pytest.mark.parametrize("form", ["safetensors", "pt", "hf", "peft", "merged"])
def test_a_file_in_a_folders_place_is_refused_and_so_is_a_folder_in_a_files(tmp_path: Path, form: str) -> None:
    (file := tmp_path / "file").touch()
    (folder := tmp_path / "folder").mkdir()
    wrong, right = (folder, file) if form in SINGLE else (file, folder)
    with pytest.raises(UsageError, match=f"--format {form} is ") as error:
        refuse_kind(wrong, form)
    assert "--output" in error.value.hint
    refuse_kind(right, form)
    refuse_kind(tmp_path / "new", form)


def test_files_may_be_in_a_folder_of_the_export_and_nowhere_else(tmp_path: Path) -> None:
    names = (*NAMES, "additional_chat_templates/tools.jinja")
    assert all(map(_NAME.fullmatch, names))
    for name in ("../x", "/x", "a/../x", "a/b/c", "./x", "a//b", ".x", "a/.x"):
        assert not _NAME.fullmatch(name), name
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tools.jinja").touch()
    refuse_others(tmp_path, names)
    (tmp_path / "additional_chat_templates" / "old.jinja").touch()
    with pytest.raises(UsageError, match=r"such as additional_chat_templates/old\.jinja"):
        refuse_others(tmp_path, names)
