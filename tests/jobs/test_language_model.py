"""`hf-lm`: a folder with a model and one with text, trained in this process and as a pipeline; mistakes before all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from remote_agent import jobs
from remote_agent.jobs import language_model
from remote_agent.models.nf4 import Nf4Linear
from remote_agent.protocol import CLUSTER_MARK
from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.errors import JobError
from remote_agent.training.job import Job
from remote_agent.training.shared.figures import figures_of, whole
from tests.training.pipelines import LocalPipeline, assert_close, plain

tokenizers: Any = pytest.importorskip("tokenizers")
transformers: Any = pytest.importorskip("transformers")
tiny_models = pytest.importorskip("tests.jobs.tiny_models", reason="needs transformers: pip install -e '.[hf]'")

CONTEXT = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model in ``llama`` and text in ``text.jsonl``."""
    place = tmp_path_factory.mktemp("hf")
    tiny_models.save(place / "llama")
    lines = tiny_models.text(120).splitlines()
    (place / "text.jsonl").write_text("".join(json.dumps({"text": line, "by": "me"}) + "\n" for line in lines))
    (place / "text.txt").write_text("\n".join(lines))
    return place


Ordered = Callable[..., tuple[Job, TrainingConfig]]


@pytest.fixture
def ordered(folder: Path) -> Ordered:
    """The job as the coordinator has it after ``--set``, checked."""

    def make(**given: Any) -> tuple[Job, TrainingConfig]:
        settings = {"model": folder / "llama", "data": folder / "text.jsonl", "context": CONTEXT, "batch_size": 8}
        made = job.from_object("hf-lm", jobs.ready("hf-lm"))
        config = job.configured(made, {name: str(value) for name, value in (settings | given).items()})
        job.check(made, config)
        return made, config

    return make


def trained(
    made: Job, config: TrainingConfig, steps: int, dtype: torch.dtype | None = None
) -> tuple[torch.nn.Module, list[float]]:
    """The model after so many plain steps, and their losses; with ``dtype`` under autocast."""
    model = job.create_model(made.factory, config.seed, config)
    optimizer = job.create_optimizer(made.factory, model, config)
    samples = datasets.as_dataset(made.create_data())
    order = SampleOrder(config.seed, len(samples), config.batch_size)
    losses = []
    for step in range(1, steps + 1):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = made.factory.loss(model, datasets.fetch(samples, order.step(step)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], config.clip_norm)
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def test_text_is_packed_into_samples_of_which_the_last_are_held_out(ordered: Ordered) -> None:
    made, _ = ordered(validation_fraction=0.25)
    data, held_out = made.create_data(), made.create_validation()
    tokens = 120 * 9  # eight words a line and the end of the text
    assert len(data) + len(held_out) == (tokens - 1) // CONTEXT
    assert len(held_out) == round(0.25 * (len(data) + len(held_out)))
    inputs, targets = data[3]
    assert inputs.shape == targets.shape == (CONTEXT,)
    assert torch.equal(inputs[1:], targets[:-1])
    whole = torch.cat([data.tokens[:-1], held_out.tokens])
    assert (whole == 0).sum() == pytest.approx(tokens / 9, abs=1), "the end of each text is in it"
    with pytest.raises(IndexError):
        data[len(data)]


def test_a_folder_of_files_and_plain_text_are_data_too(ordered: Ordered, folder: Path, tmp_path: Path) -> None:
    plain = ordered(data=folder / "text.txt")[0].create_data()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.txt").write_text((folder / "text.txt").read_text())
    (tmp_path / "a.csv").write_text("no text")
    assert torch.equal(ordered(data=tmp_path)[0].create_data().tokens, plain.tokens)


def test_it_learns_and_says_its_perplexity(ordered: Ordered) -> None:
    made, config = ordered(from_scratch="true", learning_rate=0.02)
    model, losses = trained(made, config, 60)
    assert losses[0] == pytest.approx(torch.tensor(tiny_models.VOCABULARY).log().item(), abs=0.5)
    assert sum(losses[-5:]) / 5 < 1.5
    held_out = made.create_validation()
    batches = [
        datasets.fetch(datasets.as_dataset(held_out), torch.arange(at, len(held_out), 2).numpy()) for at in (0, 1)
    ]
    with torch.no_grad():
        figures = whole(figures_of(made.factory.metrics(model, batch), len(batch[0])) for batch in batches)
    assert figures["perplexity"] == pytest.approx(torch.tensor(figures["val_loss"]).exp().item())


def test_its_weights_are_the_folders(ordered: Ordered, folder: Path) -> None:
    made, config = ordered()
    state = job.create_model(made.factory, 5, config).state_dict()
    for name, tensor in load_file(folder / "llama/model.safetensors").items():
        assert torch.equal(state[name], tensor)


CONFIGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "config-cut-off": lambda config: json.dumps(config)[:90],
    "config-without-type": lambda config: {name: value for name, value in config.items() if name != "model_type"},
    "config-of-no-type": lambda config: config | {"model_type": "nonesuch"},
    "config-own-code": lambda config: config | {"model_type": "mine", "auto_map": {"AutoConfig": "config.Mine"}},
    "config-quantized": lambda config: config | {"quantization_config": {"bits": 4, "quant_method": "gptq"}},
    "config-bert": lambda config: config | {"model_type": "bert"},
    "config-t5": lambda config: config | {"model_type": "t5"},
}
REPLACED = {
    "adapter-beside": ("adapter_config.json", '{"base_model_name_or_path": "another"}'),
    "pointer": ("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "tokenizer-cut-off": ("tokenizer.json", '{"version": "1.0", "trun'),
}
OTHER_WORDS = {
    "large-tokenizer": [*tiny_models.WORDS, *(f"w{n}" for n in range(40))],
    "small-tokenizer": tiny_models.WORDS[:4],
}


def broken(folder: Path, name: str) -> Path:
    """A copy of the model with something wrong."""
    place = folder / name
    if not place.exists():
        tiny_models.save(place)
        if name in CONFIGS:
            changed = CONFIGS[name](json.loads((place / "config.json").read_text()))
            (place / "config.json").write_text(changed if isinstance(changed, str) else json.dumps(changed))
        if name == "index-cut-off":
            (place / "model.safetensors").rename(place / "model-00001-of-00001.safetensors")
            (place / "model.safetensors.index.json").write_text('{"weight_m')
        if name in REPLACED:
            file, content = REPLACED[name]
            (place / file).write_text(content)
        if name in OTHER_WORDS:
            tiny_models.save_tokenizer(place, OTHER_WORDS[name])
        if name == "adapter":
            (place / "config.json").rename(place / "adapter_config.json")
        if name == "empty":
            (place / "model.safetensors").unlink()
        if name == "pickled":
            (place / "model.safetensors").rename(place / "pytorch_model.bin")
        if name == "no-tokenizer":
            for path in place.glob("token*"):
                path.unlink()
        spoil_weights(place / "model.safetensors", name)
    return place


def spoil_weights(weights: Path, name: str) -> None:
    if name == "cut-off":
        weights.write_bytes(weights.read_bytes()[:3000])
    if name == "int8":
        tensors = {key: value.to(torch.int8) for key, value in load_file(weights).items()}
        save_file(tensors, weights, metadata={"format": "pt"})
    if name in ("layer-missing", "layer-of-another"):
        tensors = load_file(weights)
        changed = tensors.pop("model.layers.2.mlp.up_proj.weight")
        if name == "layer-of-another":
            tensors["model.layers.2.mlp.up_proj.weight"] = changed[:, :8].contiguous()
        save_file(tensors, weights, metadata={"format": "pt"})
    if name == "file-missing":
        weights.unlink()
        map_ = {"model.norm.weight": "model-00001-of-00002.safetensors"}
        weights.with_suffix(".safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": map_}))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("empty", "there are no weights"),
        ("pickled", "pytorch_model.bin is no safetensors"),
        ("large-tokenizer", "its numbers go up to 57, the model knows 24"),
        ("no-tokenizer", "no tokenizer is there: tokenizer.json is missing"),
        ("elsewhere", "not a folder on this host"),
        ("adapter", "an adapter without its model (export the run"),
        ("adapter-beside", "an adapter is beside the model (take adapter_config.json out"),
        ("pointer", "model.safetensors is a pointer of Git LFS, and not the weights (run `git lfs pull`"),
        ("cut-off", "its weights can't be read: model.safetensors: "),
        ("file-missing", "model-00001-of-00002.safetensors is missing"),
        ("int8", "is I8 in model.safetensors, a quantized form that is not known here"),
        ("index-cut-off", "its weights can't be read: model.safetensors.index.json: "),
        *((name, "config.json can't be used: ") for name in list(CONFIGS)[:4]),
        ("config-quantized", "its weights are quantized already (gptq)"),
        ("config-bert", "a BertLMHeadModel sees the tokens that it would have to predict"),
        ("config-t5", "config.json describes no model that can be built: "),
        ("tokenizer-cut-off", "its tokenizer can't be read: "),
    ],
)
def test_a_folder_that_will_not_do_is_refused_before_anything_starts(
    ordered: Ordered, folder: Path, model: str, said: str
) -> None:
    with pytest.raises(JobError) as caught:
        ordered(model=broken(folder, model) if model != "elsewhere" else folder / model)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("layer-missing", r"there are no weights for model.layers.2.mlp.up_proj.weight \("),
        ("layer-of-another", r"up_proj.weight is of shape \(32, 8\), and config.json says \(32, 16\)"),
    ],
)
def test_weights_of_another_configuration_are_refused(ordered: Ordered, folder: Path, model: str, said: str) -> None:
    made, config = ordered(model=broken(folder, model))
    with pytest.raises(JobError, match=said) as caught:
        job.create_model(made.factory, config.seed, config)
    assert "\n" not in str(caught.value)


def test_mistakes_are_told_all_at_once(ordered: Ordered, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    given = {"model": broken(folder, "large-tokenizer"), "data": tmp_path / "empty.txt", "context": 65}
    with pytest.raises(JobError) as caught:
        ordered(**given, lora_rank=4, lora_targets="qproj, v_proj, o_prj")
    said = str(caught.value)
    for each in ("its numbers go up to 57", "no text in it", "looks at 64 tokens", "lora_targets=qproj,o_prj: "):
        assert said.count(each) == 1
    assert "did you mean q_proj,o_proj?" in said
    with pytest.raises(JobError) as caught:
        ordered(model=tmp_path / "nowhere", data=tmp_path / "empty.txt")
    assert str(caught.value).count("; ") == 2, "a folder that is not there is told once, the text, and both hints"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process is one of a cluster's, whose folder this is."""
    monkeypatch.setenv(CLUSTER_MARK, str(tmp_path))
    return tmp_path / job.KEPT


@pytest.mark.parametrize(
    ("kind", "changes"), [("Llama", {}), ("Qwen2", {"tie_word_embeddings": True}), ("GPTNeoX", {})]
)
def test_a_second_start_quantizes_nothing(
    ordered: Ordered, tmp_path: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch, kind: str, changes: Any
) -> None:
    given = {"quantize": "nf4", "lora_rank": 4, "model": tiny_models.save(tmp_path / "model", kind, **changes)}
    made, config = ordered(**given)
    first = job.create_model(made.factory, config.seed, config)
    assert len(list(cluster.glob("*.safetensors"))) == 1
    with monkeypatch.context() as patch:
        patch.setattr(type(made.factory), "create_model", None)
        second = job.create_model(made.factory, config.seed, config)
    for parts in ("named_parameters", "named_buffers"):
        for (name, one), (other, two) in zip(getattr(first, parts)(), getattr(second, parts)(), strict=True):
            assert name == other
            assert torch.equal(one, two), name
            assert (one.dtype, one.requires_grad) == (two.dtype, two.requires_grad)
    inputs = torch.arange(8)[None]
    assert torch.equal(first(input_ids=inputs).logits, second(input_ids=inputs).logits)
    target = "dense_h_to_4h" if kind == "GPTNeoX" else "q_proj"
    other, changed = ordered(**given | {"lora_rank": 2, "lora_targets": target})
    adapters = [name for name, _ in job.create_model(other.factory, 7, changed).named_parameters() if "lora" in name]
    assert len(adapters) == 2 * 4, "with other adapters, too"
    assert len(list(cluster.glob("*.safetensors"))) == 1


@pytest.mark.long
def test_adapters_beside_four_bits_learn_what_those_beside_bfloat16_learn(ordered: Ordered, tmp_path: Path) -> None:
    """A model that knows one language learns another: the mean loss of the last 20 of 200 steps, and the memory."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    blank = tiny_models.save(tmp_path / "blank", **sizes)
    base, _ = trained(*ordered(model=blank, learning_rate=0.01), 100)
    base.save_pretrained(tmp_path / "base")
    tiny_models.save_tokenizer(tmp_path / "base")
    backwards = [" ".join(line.split()[::-1]) for line in tiny_models.text(300).splitlines()]
    (tmp_path / "other.txt").write_text("\n".join(backwards))
    given = {"model": tmp_path / "base", "data": tmp_path / "other.txt", "lora_rank": 8, "learning_rate": 5e-3}
    losses: dict[str, float] = {}
    for quantize in ("none", "nf4"):
        model, found = trained(*ordered(**given, quantize=quantize), 200, torch.bfloat16)
        losses[quantize] = sum(found[-20:]) / 20
        assert losses[quantize] < 0.2 * found[0]
    print("the loss after 200 steps, bfloat16 and four bits:", losses)
    assert losses["nf4"] == pytest.approx(losses["none"], rel=0.02)
    held = [module for module in model.modules() if isinstance(module, Nf4Linear)]
    in_four_bits = sum(layer.codes.nbytes + layer.largest.nbytes + layer.nf4_digest.nbytes for layer in held)
    assert in_four_bits <= 0.3 * sum(2 * layer.shape.numel() for layer in held)


def test_other_weights_and_a_damaged_file_are_quantized_anew(ordered: Ordered, tmp_path: Path, cluster: Path) -> None:
    made, config = ordered(quantize="nf4", lora_rank=4, model=tiny_models.save(tmp_path / "model"))

    def head() -> Tensor:
        found: Tensor = job.create_model(made.factory, config.seed, config).get_submodule("lm_head").weight.clone()
        return found

    before = head()
    (kept,) = cluster.glob("*.safetensors")
    kept.write_bytes(kept.read_bytes()[:2000])
    assert torch.equal(head(), before)
    weights = tmp_path / "model/model.safetensors"
    tensors = load_file(weights)
    tensors["lm_head.weight"] += 1
    save_file(tensors, weights, metadata={"format": "pt"})
    assert torch.equal(head(), before + 1)


def test_what_training_writes_into_the_model_does_not_reach_the_file(ordered: Ordered, cluster: Path) -> None:
    made, config = ordered(quantize="nf4", lora_rank=4)
    job.create_model(made.factory, config.seed, config)
    (kept,) = cluster.glob("*.safetensors")
    before = kept.read_bytes()
    with torch.no_grad():
        for tensor in job.create_model(made.factory, config.seed, config).state_dict().values():
            tensor.add_(1)
    assert kept.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.jsonl", "", "there is no text in it"),
        ("blank.txt", " \n", "there is no text in it"),
        ("other.jsonl", '{"body": "the cat"}\n', "line 1: no text in 'text'; it has body"),
        ("broken.jsonl", '\n{"text": \n', "line 2: it is no JSON"),
        ("latin.txt", b"caf\xe9", "can't be read"),
        ("unmarked.txt", "the cat".encode("utf-16-le"), "has zero bytes (it has to be text in UTF-8)"),
        ("half.jsonl", '{"text": "the \\ud800 cat"}\n', "line 1: its text has half a character"),
        ("table.csv", "text", "no .jsonl or .txt file"),
        (None, "", "not there"),
    ],
)
def test_data_without_text_is_refused(
    ordered: Ordered, tmp_path: Path, name: str | None, content: str | bytes, said: str
) -> None:
    if name is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(JobError) as caught:
        ordered(data=tmp_path / (name or "missing.jsonl"))
    assert said in str(caught.value)


def test_too_little_text_is_named(ordered: Ordered, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("the cat")
    with pytest.raises(JobError, match="fewer than one sample of 8"):
        ordered(data=tmp_path / "short.txt")[0].create_data()


def test_a_tokenizer_that_does_not_know_most_of_the_text_is_refused(ordered: Ordered, folder: Path) -> None:
    """One of another model with fewer tokens shows in nothing else: each of its numbers is one of the model's."""
    made, _ = ordered(model=broken(folder, "small-tokenizer"))
    with pytest.raises(JobError, match=r"the tokenizer does not know \d\d% of its tokens \(name the tokenizer"):
        made.create_data()


def test_a_long_text_is_tokenized_in_pieces_of_whole_words(
    ordered: Ordered, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {name: ordered(data=folder / name)[0].create_data().tokens for name in ("text.txt", "text.jsonl")}
    monkeypatch.setattr(language_model, "_PIECE", 40)
    for name, tokens in whole.items():
        assert torch.equal(ordered(data=folder / name)[0].create_data().tokens, tokens)


def test_a_rank_that_no_layer_has_is_refused(ordered: Ordered) -> None:
    with pytest.raises(JobError, match=r"lora_rank=17: no layer has a rank above 16 \(set lora_rank=16 or less\)"):
        ordered(lora_rank=17)
    ordered(lora_rank=16)


def _with_special(folder: Path, model: Path) -> Path:
    """A tokenizer that puts a token before a text and one after it, as Llama's and Gemma's may."""
    words = (*tiny_models.WORDS, "<bos>")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [("<bos>", words.index("<bos>")), ("<eos>", 0)]
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=special)
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **tokens).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("piece", [1 << 20, 40])
def test_texts_begin_in_training_as_prompts_do_in_serving(
    ordered: Ordered, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(language_model, "_PIECE", piece)
    made = ordered(tokenizer=_with_special(tmp_path / "special", folder))[0]
    begin = len(tiny_models.WORDS)
    prompt = made.factory.tokens_of("the cat")
    assert prompt[0] == begin
    assert prompt[-1] != 0, "the answer goes on from here"
    tokens = made.create_data().tokens.tolist()
    assert tokens[0] == begin
    ends = [at for at, token in enumerate(tokens[:-1]) if token == 0]
    assert len(ends) > 100
    assert all(tokens[at + 1] == begin for at in ends)
    assert tokens.count(begin) == len(ends) + 1


@pytest.mark.parametrize("given", [{}, {"lora_rank": 4, "lora_targets": "q_proj,up_proj", "quantize": "nf4"}])
def test_stages_of_a_pipeline_give_the_weights_of_one_process(ordered: Ordered, given: dict[str, Any]) -> None:
    made, config = ordered(**given, strategy="pipeline", micro_batch=2, schedule="constant", learning_rate=0.01)
    with LocalPipeline(made.factory, config, (0, 1, 4)) as pipeline:
        found = pipeline.train(3)
    model = job.create_model(made.factory, config.seed, config)
    expected = plain(made.factory, config, 3)
    wanted = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    layers = 4 if "model" in given else 2
    assert len(wanted) == (4 * layers * 2 if given else 39)
    assert_close({name: found[name] for name in wanted}, {name: expected[name] for name in wanted})


def test_so_they_do_with_gpt_2s_layers_in_four_bits(ordered: Ordered, tmp_path: Path) -> None:
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    given = {"lora_rank": 4, "quantize": "nf4", "model": tiny_models.save(tmp_path / "gpt2", "GPT2", **still)}
    test_stages_of_a_pipeline_give_the_weights_of_one_process(ordered, given)
