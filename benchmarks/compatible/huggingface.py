"""Models of Hugging Face's transformers and peft, from configurations: nothing is fetched."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.compatible.case import BATCH, SAMPLES, Case, Samples, case, images, tokens
from remote_agent.training.config import TrainingConfig

AREA = "Hugging Face"

PADDING = 0

MODULES = (
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.t5.modeling_t5",
    "transformers.models.vit.modeling_vit",
    "peft",
)
"""What these cases load, which takes seconds."""


class HuggingFace(Case):
    """Batches are dicts with labels, and the model's own loss is used."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=config.learning_rate)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(**batch).loss


def sentences(vocabulary: int = 30) -> list[dict[str, Tensor]]:
    """Sequences of unequal lengths, with their masks."""
    text = tokens(8, vocabulary)
    lengths = [3 + index % 6 for index in range(SAMPLES)]
    return [
        {"input_ids": row[:n], "attention_mask": torch.ones(n, dtype=torch.int64)}
        for row, n in zip(text, lengths, strict=True)
    ]


def with_padding(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Padded to the longest; padded labels are -100, as the library's own collators make them."""
    fill = {"labels": -100}
    return {
        name: nn.utils.rnn.pad_sequence(
            [sample[name] for sample in samples], batch_first=True, padding_value=fill.get(name, PADDING)
        )
        for name in samples[0]
    }


def bert_config(**others: int) -> Any:
    """Of a BERT of one layer, without dropout."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **others,
    )


@case("bert-classification", AREA)
class Bert(HuggingFace):
    """BERT for classification, with labels in the batch."""

    killed = True

    def create_model(self) -> Any:
        from transformers import BertForSequenceClassification

        return BertForSequenceClassification(bert_config(num_labels=3))

    def create_data(self) -> Any:
        data = [
            {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.sum() % 3} for row in tokens(8, 30)
        ]
        return Samples(data)


@case("bert-masked", AREA)
class MaskedBert(HuggingFace):
    """BERT as a masked language model: labels are -100 but for a few tokens."""

    def create_model(self) -> Any:
        from transformers import BertForMaskedLM

        return BertForMaskedLM(bert_config())

    def create_data(self) -> Any:
        chosen = torch.rand(SAMPLES, 8, generator=torch.Generator().manual_seed(9)) < 0.3
        chosen[:, 0] = True
        return Samples(
            [
                {"input_ids": row.masked_fill(mask, 1), "labels": row.masked_fill(~mask, -100)}
                for row, mask in zip(tokens(8, 30), chosen, strict=True)
            ]
        )


def gpt2(width: int = 16) -> Any:
    """A GPT-2 of two layers, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=30,
            n_positions=16,
            n_embd=width,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=1,
        )
    )


@case("gpt2-padded", AREA)
class PaddedGpt2(HuggingFace):
    """GPT-2 on padded sequences, whose padding has the label -100."""

    killed = True

    def create_model(self) -> Any:
        model: nn.Module = gpt2()
        return model

    def create_data(self) -> Any:
        data = [sample | {"labels": sample["input_ids"]} for sample in sentences()]
        return DataLoader(Samples(data), batch_size=BATCH, shuffle=True, collate_fn=with_padding)


@case("gpt2-summed", AREA)
class SummedGpt2(PaddedGpt2):
    """The same, with a loss that returns (sum, weight)."""

    killed = False

    def loss(self, model: nn.Module, batch: Any) -> Any:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        labels = batch["labels"][:, 1:].flatten()
        total = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels, reduction="sum")
        return total, (labels != -100).sum()


@case("t5-padded", AREA)
class PaddedT5(PaddedGpt2):
    """T5: encoder and decoder, labels with -100 that are not shifted."""

    killed = False

    def create_model(self) -> Any:
        from transformers import T5Config, T5ForConditionalGeneration

        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=30,
                d_model=16,
                d_kv=8,
                d_ff=32,
                num_layers=1,
                num_heads=2,
                dropout_rate=0.0,
                decoder_start_token_id=0,
                pad_token_id=0,
            )
        )


@case("vit", AREA)
class Vit(HuggingFace):
    """A vision transformer."""

    def create_model(self) -> Any:
        from transformers import ViTConfig, ViTForImageClassification

        return ViTForImageClassification(
            ViTConfig(
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=32,
                image_size=8,
                patch_size=4,
                num_channels=1,
                num_labels=4,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )

    def create_data(self) -> Any:
        x, y = images()
        return Samples([{"pixel_values": a, "labels": b} for a, b in zip(x, y, strict=True)])


@case("lora", AREA)
class Lora(PaddedGpt2):
    """LoRA by peft over a frozen GPT-2."""

    def create_model(self) -> Any:
        from peft import LoraConfig, get_peft_model

        model: nn.Module = get_peft_model(
            gpt2(), LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.0, fan_in_fan_out=True)
        )
        return model


@case("hf-dataset", AREA)
class HfDataset(Bert):
    """A datasets.Dataset in torch format."""

    killed = False

    def create_data(self) -> Any:
        from datasets import Dataset

        text = tokens(8, 30)
        columns = {
            "input_ids": text.tolist(),
            "attention_mask": torch.ones_like(text).tolist(),
            "labels": (text.sum(1) % 3).tolist(),
        }
        return Dataset.from_dict(columns).with_format("torch")


@case("hf-dataset-plain", AREA)
class HfPlain(HfDataset):
    """A datasets.Dataset without a format: its samples are dicts of lists."""

    def create_data(self) -> Any:
        return super().create_data().with_format(None)

    def batch(self, data: Any, indices: Any) -> Any:
        return super().batch(data.with_format("torch"), indices)
