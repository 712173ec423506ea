"""``hetero-tui train benchmarks/large_text.py:LargeText``: the ready job ``text`` with 17 million parameters.

Same data, optimizer, loss and evaluation; torch's own transformer layers, pre-norm and causal.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from remote_agent.jobs.text import CONTEXT, VOCABULARY, Text

WIDTH, LAYERS, HEADS = 528, 5, 8


class LargeText(Text):
    """The job."""

    def create_model(self) -> nn.Module:
        """A GPT of 16.9 million parameters: bytes ``(n, t)`` to logits ``(n, t, 256)``."""
        return LargeGPT()


class LargeGPT(nn.Module):
    """Decoder-only transformer with a tied output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.tokens(text) + self.positions.weight[: text.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        return functional.linear(self.blocks(x, mask=mask, is_causal=True), self.tokens.weight)
