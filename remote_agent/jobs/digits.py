"""``digits``: handwritten digits, 1,797 real 8x8 images that come with scikit-learn, and a small convolutional net.

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits" (UCI, 1998). Every fifth sample of a fixed shuffle is
held out for the test. The default settings classify about 98 % of the test images rightly.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from remote_agent.training.config import TrainingConfig

SPLIT_SEED = 1998
TEST_EVERY = 5


class Digits:
    """The job; see :mod:`remote_agent.training.job`."""

    config = TrainingConfig(num_iterations=150, batch_size=256, learning_rate=3e-3)

    def create_model(self) -> nn.Module:
        """A network of 40,602 parameters: images ``(n, 1, 8, 8)`` in 0..1 to ``(n, 10)`` logits."""
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(512, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.05)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean cross entropy with smoothed labels (Szegedy et al., 2016); its floor is 0.5 nats, not 0."""
        images, labels = batch
        return functional.cross_entropy(model(images), labels, label_smoothing=0.1)

    def create_data(self) -> TensorDataset:
        """The training images and labels."""
        return TensorDataset(*_split()[0])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy on the held-out images, as a fraction."""
        images, labels = _split()[1]
        return {"test_accuracy": float((model(images).argmax(1) == labels).float().mean())}


def _split() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test parts, each (images ``(n, 1, 8, 8)`` float32 in 0..1, labels ``(n,)`` int64)."""
    digits = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target[order], dtype=torch.int64)
    test = torch.arange(len(labels)) % TEST_EVERY == 0
    return (images[~test], labels[~test]), (images[test], labels[test])
