"""What `export` makes is read by the libraries that it is for, and gives what the run's model gave."""

from __future__ import annotations

import base64
import copy
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from remote_agent import jobs, protocol, weights
from remote_agent.serving import Served
from remote_agent.training import job
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.checkpoint.optimizer_state import TrainingState
from tests.specs import write_run

tiny_models = pytest.importorskip("tests.jobs.tiny_models", reason="needs transformers: pip install -e '.[hf]'")
TOKENS = torch.arange(20)[None] % 17


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tiny_models.save(tmp_path_factory.mktemp("weights") / "llama", tie_word_embeddings=True)
    (place.parent / "text.txt").write_text(tiny_models.text(40))
    return place


def run_of(folder: Path, model: Path, **given: Any) -> tuple[Path, torch.nn.Module]:
    """A run's folder with a checkpoint of a model whose trained weights are random, and that model."""
    place = folder / "hf-lm-1"
    config = {"model": str(model), "data": str(model.parent / "text.txt"), **{k: str(v) for k, v in given.items()}}
    write_run(place, "hf-lm", config)
    made = job.from_object("hf-lm", jobs.ready("hf-lm"))
    settings = job.configured(made, config)
    trained = job.create_model(made.factory, settings.seed, settings)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
    about = {"position": 0, "seed": 0, "config": dataclasses.asdict(settings)}
    checkpoint.save(place / "checkpoints", 7, trained, about)
    return place, trained.eval()


def exported(place: Path, form: str) -> Path:
    return place / weights.EXPORTS / weights.export(place, form).name


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=TOKENS).logits
        return found


def test_trained_weights_come_back_bit_for_bit_in_every_form(tmp_path: Path, model: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, trained = run_of(tmp_path, model)
    assert weights.export(place, "safetensors").step == 7
    safetensors, pt, hf = (exported(place, form) for form in ("safetensors", "pt", "hf"))
    read = AutoModelForCausalLM.from_pretrained(hf)
    for found in (
        load_file(safetensors / "hf-lm-1.safetensors"),
        torch.load(pt / "hf-lm-1.pt", weights_only=True),
        read.state_dict(),
    ):
        assert found.keys() == trained.state_dict().keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in trained.state_dict().items())
    assert torch.equal(logits(read), logits(trained))
    assert AutoTokenizer.from_pretrained(hf)("the cat")["input_ids"] == [2, 4]


@pytest.mark.parametrize(
    "given", [{}, {"lora_targets": "q_proj,down_proj", "lora_alpha": 3}, {"lora_targets": "lm_head"}]
)
def test_an_adapter_is_read_by_peft_and_merged_gives_the_same(
    tmp_path: Path, model: Path, given: dict[str, Any]
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    place, trained = run_of(tmp_path, model, lora_rank=4, **given)
    merged_into, peft_into = exported(place, "merged"), exported(place, "peft")
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    assert (logits(base) - logits(trained)).abs().max() > 1e-3, "the adapter does something"
    merged = AutoModelForCausalLM.from_pretrained(merged_into)
    assert (logits(merged) - logits(trained)).abs().max() < 1e-5
    adapted = peft.PeftModel.from_pretrained(base, peft_into)
    assert (logits(adapted) - logits(trained)).abs().max() < 1e-5


@pytest.mark.parametrize("quantize", ["none", "nf4"])
def test_so_it_is_for_gpt_2_whose_weights_are_transposed(tmp_path: Path, quantize: str) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    model = text_beside(tiny_models.save(tmp_path / "gpt2", "GPT2"))
    place, trained = run_of(tmp_path, model, lora_rank=4, quantize=quantize)
    merged = AutoModelForCausalLM.from_pretrained(exported(place, "merged"))
    assert (logits(merged) - logits(trained)).abs().max() < 1e-5
    if quantize == "none":
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        assert (logits(base) - logits(trained)).abs().max() > 1e-3, "the adapter does something"
        adapted = peft.PeftModel.from_pretrained(base, exported(place, "peft"))
        assert (logits(adapted) - logits(trained)).abs().max() < 1e-5


def test_the_best_checkpoint_and_the_average_of_the_weights_are_exported_and_served(
    tmp_path: Path, model: Path
) -> None:
    place, trained = run_of(tmp_path, model)
    best = {name: value.clone() for name, value in trained.state_dict().items()}
    averages = {name: torch.full_like(value, 0.25) for name, value in trained.named_parameters()}
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(1.0)
    config = {"batch_size": 1, "seed": 0, "keep_best": "val_loss", "ema_decay": 0.9}
    about = {"position": 0, "seed": 0, "config": config, "watched": [(6, 0.5), (7, 0.1), (8, 0.2)]}
    state = TrainingState(optimizer={name: {"ema": value} for name, value in averages.items()})
    checkpoint.save(place / "checkpoints", 8, trained, about, state)

    def pt(choice: protocol.Choice) -> tuple[int, dict[str, Tensor]]:
        found = weights.export(place, "pt", choice)
        return found.step, torch.load(place / weights.EXPORTS / found.name / "hf-lm-1.pt", weights_only=True)

    expected = {protocol.Choice.NEWEST: (8, trained.state_dict()), protocol.Choice.BEST: (7, best)}
    averaged = copy.deepcopy(trained)
    for parameter in averaged.parameters():  # one of them is tied
        torch.nn.init.constant_(parameter, 0.25)
    expected[protocol.Choice.AVERAGE] = (8, averaged.state_dict())
    for choice, (step, values) in expected.items():
        taken, found = pt(choice)
        assert taken == step
        assert found.keys() == values.keys()
        assert all(torch.equal(found[name], value) for name, value in values.items()), choice
        made, _, served = weights.model_of(place, choice)
        assert made.step == step
        assert all(torch.equal(served.state_dict()[name], value) for name, value in values.items()), choice


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "GPTNeoX"])
def test_an_answer_is_computed_token_by_token_and_is_the_one_of_whole_texts(tmp_path: Path, kind: str) -> None:
    place, trained = run_of(tmp_path, text_beside(tiny_models.save(tmp_path / "model", kind)), context=8)
    served = Served(place, "cpu")
    lengths: list[int] = []

    def note(_: Any, unnamed: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        lengths.append((named["input_ids"] if named else unnamed[0]).shape[1])

    served._model.register_forward_pre_hook(note, with_kwargs=True)
    answer = "".join(served.generate({"prompt": "the old cat sees", "max_tokens": 70}))
    tokenizer = served._factory._tokenizer()
    tokens = tokenizer("the old cat sees")["input_ids"]
    begin = len(tokens)
    for _ in range(70):
        with torch.no_grad():
            tokens.append(int(trained(input_ids=torch.tensor([tokens[-64:]])).logits[0, -1].argmax()))
        if tokens[-1] == tokenizer.eos_token_id:
            tokens.pop()
            break
    prompt, whole = (tokenizer.decode(each, skip_special_tokens=True) for each in (tokens[:begin], tokens))
    assert prompt + answer == whole
    assert lengths[0] == begin
    assert set(lengths[1 : 64 - begin]) <= {1}
    assert set(lengths[65 - begin :]) <= {64}, "beyond the context each token is at another place"


@pytest.mark.parametrize("token", [-1, 24, 1 << 40])
def test_a_number_that_is_no_token_is_refused_before_the_model_gets_it(tmp_path: Path, model: Path, token: int) -> None:
    place, _ = run_of(tmp_path, model)
    served = Served(place, "cpu")
    served._model.register_forward_pre_hook(lambda *_: pytest.fail("the model was called"))
    with pytest.raises(ValueError, match="whole numbers from 0 to 23"):
        served.predict([[1, token]])


def text_beside(model: Path) -> Path:
    (model.parent / "text.txt").write_text(tiny_models.text(40))
    return model


def test_exports_of_one_form_at_a_time_do_not_mix_and_are_removed(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, _ = run_of(tmp_path / "runs", model)
    first, second = weights.export(place, "pt"), weights.export(place, "pt")
    assert first.name != second.name
    how = ["weights", "--folder", str(tmp_path), "--run", place.name, "--export"]
    monkeypatch.setattr(sys, "argv", [*how, first.name, "--read", "hf-lm-1.pt"])
    assert weights.main() == 0
    read = b"".join(base64.b64decode(line) for line in capsys.readouterr().out.splitlines())
    assert len(read) == first.files["hf-lm-1.pt"]
    monkeypatch.setattr(sys, "argv", [*how, first.name, "--remove"])
    assert weights.main() == 0
    assert [entry.name for entry in (place / "exports").iterdir()] == [second.name]
    os.utime(place / "exports" / second.name, (1, 1))  # its reader was ended long ago
    third = weights.export(place, "pt")
    assert [entry.name for entry in (place / "exports").iterdir()] == [third.name]
