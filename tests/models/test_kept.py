"""What a host keeps of quantized models is whole."""

from __future__ import annotations

from pathlib import Path

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
