"""Tiny language models with a tokenizer, made from configurations and saved as folders: nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers

SPOKEN = "the a cat dog bird sees hears likes old young and or not runs sleeps eats"
WORDS = ("<eos>", "<unk>", *SPOKEN.split())
VOCABULARY = 24
"""A few more than there are words, as models have."""

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def save(folder: Path, kind: str = "Llama", **changes: Any) -> Path:
    """A model of that kind with its tokenizer, in ``folder``."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**(SIZES | changes))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return save_tokenizer(folder)


def save_tokenizer(folder: Path, words: Sequence[str] = WORDS) -> Path:
    """A tokenizer of words."""
    made = tokenizers.Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", unk_token="<unk>")
    fast.save_pretrained(folder)
    return folder


def text(count: int) -> str:
    """``count`` sentences of a small grammar, one a line."""
    draw = torch.Generator().manual_seed(1)

    def one(words: str) -> str:
        listed = words.split()
        return listed[int(torch.randint(len(listed), (1,), generator=draw))]

    def sentence() -> str:
        who, what = f"the {one('old young')} {one('cat dog bird')}", one("sees hears likes")
        return f"{who} {what} a {one('cat dog bird')} and {one('runs sleeps eats')}"

    return "\n".join(sentence() for _ in range(count))
