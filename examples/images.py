"""Image classification: a small ResNet with batch normalisation, augmentation, validation and a scheduler.

    hetero-tui train examples/images.py:Images

The images are scikit-learn's 1,797 handwritten digits of 8x8 pixels, which need no download. Batch normalisation needs
no setting: each device normalises a few whole groups of samples (docs/your-own-model.md).
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from remote_agent.training import TrainingConfig


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Images ``(n, 1, 8, 8)`` to logits ``(n, classes)``."""

    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.first = Block(16, 16, stride=1)
        self.last = Block(16, 32, stride=2)
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.last(self.first(self.stem(x))).mean((2, 3)))


class Digits(Dataset):
    """Every fifth image is for validation. ``shift``: move each image by up to that many pixels, at random."""

    def __init__(self, validation, shift=0):
        digits = load_digits()
        chosen = (torch.arange(len(digits.target)) % 5 == 0) == validation
        self.images = torch.tensor(digits.images, dtype=torch.float32)[chosen, None] / 16
        self.labels = torch.tensor(digits.target)[chosen]
        self.shift = shift

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = functional.pad(self.images[index], [self.shift] * 4)
        top, left = torch.randint(2 * self.shift + 1, (2,)).tolist()  # seeded for each sample: see docs/data.md
        return image[:, top : top + 8, left : left + 8], self.labels[index]


class Images:
    config = TrainingConfig(batch_size=128, num_iterations=150, learning_rate=0.02, evaluate_every=50)

    def create_model(self):
        return ResNet(classes=10)

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.01)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, config.learning_rate, config.num_iterations)

    def create_data(self):
        return Digits(validation=False, shift=1)

    def create_validation_data(self):  # the loss is cross entropy, as none is given: accuracy is measured, too
        return Digits(validation=True)
