"""`hf-lm` on a real cluster: a folder's model learns a text, with the weights of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remote_agent import jobs
from remote_agent.training import job
from tests.training import plain
from tests.training.conftest import Launch

tiny_models = pytest.importorskip("tests.jobs.tiny_models", reason="needs transformers: pip install -e '.[hf]'")


@pytest.mark.ray
@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "sync"},
        pytest.param(
            {"strategy": "allreduce", "lora_rank": 4, "lora_targets": "q_proj,up_proj", "quantize": "nf4"},
            marks=pytest.mark.long,
        ),
    ],
    ids=lambda given: given["strategy"],
)
def test_a_folders_model_is_trained_as_in_one_process(launch: Launch, tmp_path: Path, given: dict[str, Any]) -> None:
    tiny_models.save(tmp_path / "llama")
    (tmp_path / "text.txt").write_text(tiny_models.text(120))
    own = {"model": str(tmp_path / "llama"), "data": str(tmp_path / "text.txt"), "context": "8"}
    settings = {"num_iterations": "6", "batch_size": "8", "seed": "3", "measure_seconds": "0.05"}
    settings = own | settings | {name: str(value) for name, value in given.items()}
    run = launch("hf-lm", "ab", limits={"a": 6, "b": 6}, **settings)
    assert run.finish() == (0, ""), run.events()[-1]
    made = job.from_object("hf-lm", jobs.ready("hf-lm"))
    config = job.configured(made, settings)
    plain.assert_equal(plain.weights_of(run), plain.train(made.factory, config, loss=made.factory.loss))
    (evaluated,) = run.of_kind("run_finished")[-1:]
    assert evaluated["evaluation"]["perplexity"] > 1
