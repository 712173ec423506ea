"""What a run's files show to be impossible is refused at once: to load torch takes many seconds on a small machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.specs import write_run

_EXPORT = """
import sys
from remote_agent import weights
sys.argv = ["weights", *sys.argv[1:]]
status = weights.main()
print("torch" in sys.modules, status)
"""


@pytest.mark.parametrize(
    ("config", "words", "said"),
    [
        (None, ["--format", "pt"], "it has no checkpoint -> a run gets"),
        ({}, ["--format", "hf"], "the model of digits is no model of Hugging Face's -> export it with --format saf"),
        ({}, ["--format", "merged"], "this run trained no adapters -> export it with --format safetensors, or"),
        ({"lora_rank": 4}, ["--format", "hf"], "this run trained adapters -> export it with --format peft"),
        ({"keep_best": ""}, ["--format", "pt", "--weights", "best"], "no best checkpoint was kept -> set keep_best"),
        ({}, ["--format", "pt", "--weights", "average"], "no average of the weights was kept -> set ema_decay"),
    ],
)
def test_what_can_not_be_exported_is_said_without_torch(
    tmp_path: Path, config: dict[str, Any] | None, words: list[str], said: str
) -> None:
    place = tmp_path / "runs" / "digits-1"
    (place / "checkpoints").mkdir(parents=True)
    write_run(place, "digits")
    if config is not None:
        (place / "checkpoints" / "step-00000003.json").write_text(json.dumps({"config": config}))
    command = [sys.executable, "-c", _EXPORT, "--folder", str(tmp_path), "--run", place.name, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["False", "1"], done.stderr
    assert done.stderr.startswith(said)
