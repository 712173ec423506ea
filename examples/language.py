"""A language model on a text file of your own: a small transformer, byte by byte, that writes a sample at its end.

    hetero-tui train examples/language.py:Language --with text.txt

Put any text of 100 kB or more into ``text.txt``. ``--with`` sends it along, and the job finds it under its name. The
sample is printed where the run ends: ``hetero-tui logs RUN`` shows it.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from remote_agent.training import TrainingConfig

TEXT = Path("text.txt")
CONTEXT = 64
HELD_OUT = 64  # windows at the end of the text, for validation
SAMPLE = 200  # bytes that are written at the end


class Transformer(nn.Module):
    """Bytes ``(n, t)`` to logits ``(n, t, 256)``, ``t`` up to ``CONTEXT``."""

    def __init__(self, width=96, layers=2, heads=4):
        super().__init__()
        self.byte, self.position = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.out = nn.Linear(width, 256)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.byte(tokens) + self.position(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.out(self.blocks(x, mask=mask, is_causal=True))


def windows():
    """The whole text as windows of bytes, each one longer than the context: ``(n, CONTEXT + 1)``."""
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    return text.unfold(0, CONTEXT + 1, CONTEXT)


class Language:
    config = TrainingConfig(
        batch_size=32, num_iterations=500, learning_rate=2e-3, schedule="cosine", warmup_steps=10, clip_norm=1.0
    )

    def create_model(self):
        return Transformer()

    def create_data(self):
        return windows()[:-HELD_OUT]  # a tensor: a batch is some of its rows

    def create_validation_data(self):
        return windows()[-HELD_OUT:]

    def loss(self, model, batch):
        logits = model(batch[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    @torch.no_grad()
    def evaluate(self, model):
        """Called once with the trained model, on the host that coordinates the run."""
        written = windows()[-1, :8].tolist()
        for _ in range(SAMPLE):
            scores = model(torch.tensor([written[-CONTEXT:]]))[0, -1]
            written.append(int(torch.multinomial(functional.softmax(scores / 0.7, 0), 1)))
        print("sample:", bytes(written).decode(errors="replace"))
        return {}
