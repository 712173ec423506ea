"""``digits``: handwritten digits, 1,797 real 8x8 images that come with scikit-learn, and a small convolutional net.

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits" (UCI, 1998). A fixed shuffle is cut into five folds.
The default settings were chosen by their accuracy on the first one. The job is tested on the second, by whose images
they were never measured, and trained on the other four.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from remote_agent.job_settings import CONFIGS
from remote_agent.training.config import TrainingConfig

SPLIT_SEED = 1998

FOLDS = 5

TEST_FOLD = 1
"""Not 0: the settings were chosen on that one."""

Part = tuple[Tensor, Tensor]
"""Images ``(n, 1, 8, 8)`` float32 in 0..1, and labels ``(n,)`` int64."""


class Digits:
    """The job; see :mod:`remote_agent.training.job`."""

    config = TrainingConfig(**CONFIGS["digits"])

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

    def loss(self, model: nn.Module, batch: Part) -> Tensor:
        """Mean cross entropy with smoothed labels (Szegedy et al., 2016); its floor is 0.5 nats, not 0."""
        images, labels = batch
        return functional.cross_entropy(model(images), labels, label_smoothing=0.1)

    def create_data(self) -> TensorDataset:
        """The training images and labels."""
        return TensorDataset(*folds()[TEST_FOLD][0])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy on the held-out images, as a fraction."""
        images, labels = folds()[TEST_FOLD][1]
        return {"test_accuracy": float((model(images).argmax(1) == labels).float().mean())}


def folds() -> tuple[tuple[Part, Part], ...]:
    """For each fold the other folds' images, to train on, and its own."""
    digits = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target[order], dtype=torch.int64)
    of_fold = torch.arange(len(labels)) % FOLDS
    masks = [of_fold == number for number in range(FOLDS)]
    return tuple(((images[~mask], labels[~mask]), (images[mask], labels[mask])) for mask in masks)
