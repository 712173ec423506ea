"""``text``: a small GPT that learns to write Python, byte by byte, from the sources of Python's own standard library.

The files are read on the head host and handed to the workers once. A decoder-only transformer after Radford et al.,
"Language Models are Unsupervised Multitask Learners" (2019): pre-norm blocks, learned positions, tied embedding.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.job_settings import CONFIGS
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError

VOCABULARY = 256
CONTEXT = 64
WIDTH, LAYERS, HEADS = 128, 5, 4
CORPUS_BYTES = 8_000_000
"""At most this much text is read: plenty for a demonstration, and quick to hand to every host."""

VALIDATION_WINDOWS = 256
SKIP = frozenset({"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__", "lib2to3", "pydoc_data"})


class Text:
    """The job; see :mod:`remote_agent.training.job`."""

    config = TrainingConfig(**CONFIGS["text"])

    def create_model(self) -> nn.Module:
        """A GPT of about 1.03 million parameters: bytes ``(n, t)`` to logits ``(n, t, 256)``, ``t`` up to 64."""
        return GPT()

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        """AdamW; weight decay for matrices only."""
        matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
        vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))

    def layers(self, model: nn.Module) -> Iterable[nn.Module] | None:
        """What ``strategy=pipeline`` cuts the model between; None: a subclass has another model, as is known of it."""
        return model.blocks if isinstance(model, GPT) else None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean cross entropy of the next byte, in nats."""
        return next_byte_loss(model, batch)

    def tokens_of(self, text: str) -> list[int]:
        """Its bytes, for ``hetero-tui serve``."""
        return list(text.encode())

    def text_of(self, tokens: list[int]) -> str:
        """The text of these bytes."""
        return bytes(tokens).decode(errors="replace")

    def context_length(self, model: nn.Module) -> int:
        """The most bytes that the model looks at."""
        return CONTEXT

    def create_data(self) -> Windows:
        """The training text, in windows."""
        text = corpus()
        return Windows(text[: len(text) - VALIDATION_WINDOWS * CONTEXT - 1])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss on the held-out end of the text, in nats a byte."""
        text = corpus()
        held_out = Windows(text[len(text) - VALIDATION_WINDOWS * CONTEXT - 1 :])
        batch = held_out.batch(torch.arange(len(held_out)))
        return {"validation_loss": float(next_byte_loss(model, batch))}


class Windows:
    """Text cut into windows of ``CONTEXT`` bytes, each with the same window one byte on as its target."""

    def __init__(self, text: Tensor) -> None:
        self._text = text

    def __len__(self) -> int:
        return (len(self._text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.batch(torch.tensor([index]))
        return inputs[0], targets[0]

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these windows, each int64 of shape ``(n, CONTEXT)``."""
        positions = indices[:, None] * CONTEXT + torch.arange(CONTEXT)
        return self._text[positions].long(), self._text[positions + 1].long()


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a layer norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention_in, self.attention_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_in, self.feed_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        query, key, value = self.attention_in(self.norm1(x)).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(n, t, WIDTH))
        fed: Tensor = self.feed_out(functional.gelu(self.feed_in(self.norm2(x))))
        return x + fed


class GPT(nn.Module):
    """The model; its output layer shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                # The residual stream sums 2 * LAYERS branches; smaller outputs keep its variance near 1.
                deep = name.endswith(("attention_out.weight", "feed_out.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * LAYERS) ** 0.5 if deep else 0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = self.tokens(text) + self.positions.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def next_byte_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross entropy over all positions of ``(inputs, targets)``."""
    inputs, targets = batch
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def corpus() -> Tensor:
    """Source text of this Python's standard library, uint8, in an order of files that is the same on every machine.

    Raises:
        JobError: this Python comes without its sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for path in sorted(root.rglob("*.py")):
        if SKIP.isdisjoint(path.relative_to(root).parts):
            text += path.read_bytes()
        if len(text) >= CORPUS_BYTES:
            break
    if len(text) < 2 * VALIDATION_WINDOWS * CONTEXT:
        raise JobError(f"Python's standard library in {root} has no source files", hint="use another Python")
    return torch.frombuffer(text[:CORPUS_BYTES], dtype=torch.uint8)
