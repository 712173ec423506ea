"""Fine-tuning: another task for the network of ``images.py``, which starts from the weights of a checkpoint.

    hetero-tui train examples/finetune.py:Finetune --with digits.safetensors

``digits.safetensors`` is the checkpoint that a run of ``images.py`` ended with; the run's last event names it. The new
task is to tell even digits from odd ones. The first layers keep their weights, the last block learns at a tenth of the
learning rate of the new head. ``images.py`` lies beside this file and is imported, so it is sent along by itself.
"""

import torch
from images import Digits, ResNet
from safetensors.torch import load_file
from torch import nn

from remote_agent.training import TrainingConfig

CHECKPOINT = "digits.safetensors"


class Parity(nn.Module):
    """Images ``(n, 1, 8, 8)`` to logits ``(n, 2)``."""

    def __init__(self, weights):
        super().__init__()
        net = ResNet(classes=10)
        net.load_state_dict(weights)
        self.trunk = nn.Sequential(net.stem, net.first).requires_grad_(False)
        self.last, self.head = net.last, nn.Linear(32, 2)

    def train(self, mode=True):  # the batch normalisation of frozen layers keeps its statistics
        super().train(mode)
        self.trunk.eval()
        return self

    def forward(self, x):
        return self.head(self.last(self.trunk(x)).mean((2, 3)))


class Even(Digits):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, label % 2


class Finetune:
    config = TrainingConfig(batch_size=128, num_iterations=40, learning_rate=0.02)

    def create_model(self):  # called on every machine; the file is there
        return Parity(load_file(CHECKPOINT))

    def create_optimizer(self, model, config):
        groups = [
            {"params": model.last.parameters(), "lr": config.learning_rate / 10},
            {"params": model.head.parameters(), "lr": config.learning_rate},
        ]
        return torch.optim.AdamW(groups, weight_decay=0.01)

    def create_data(self):
        return Even(validation=False)

    def create_validation_data(self):
        return Even(validation=True)
