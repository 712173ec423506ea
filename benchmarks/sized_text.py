"""The ready job ``text`` with 0.1, 3 and 17 million parameters: ``train benchmarks/sized_text.py:Middle``."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from remote_agent.jobs.text import CONTEXT, VOCABULARY, Text

HEADS = 8


class Small(Text):
    """0.1 million parameters."""

    width, depth = 48, 3

    def create_model(self) -> nn.Module:
        """A decoder-only transformer: bytes ``(n, t)`` to logits ``(n, t, 256)``."""
        return SizedGPT(self.width, self.depth)


class Middle(Small):
    """3 million parameters."""

    width, depth = 256, 4


class Large(Small):
    """17 million parameters."""

    width, depth = 528, 5


class SizedGPT(nn.Module):
    """Decoder-only transformer with a tied output layer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.tokens(text) + self.positions.weight[: text.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        return functional.linear(self.blocks(x, mask=mask, is_causal=True), self.tokens.weight)
