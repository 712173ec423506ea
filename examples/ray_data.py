"""Ray Data as the source: the cluster makes the samples, and workers read them from its object store.

    hetero-tui train examples/ray_data.py:Spirals

Every host needs Ray Data beside the agent's packages: ``pip install '.[node,data]'``. With files that every host can
read, ``ray.data.read_parquet(...)`` takes the place of ``ray.data.range(...)``.
"""

import numpy as np
import ray
import torch
from torch import nn
from torch.nn import functional

from remote_agent.training import TrainingConfig


def spirals(batch):
    """Points on three spirals; which one is to be told from the place. Runs on the cluster, block by block."""
    spiral, along = batch["id"] % 3, batch["id"] / batch["id"].max()
    angle = 4 * along + 2 * np.pi / 3 * spiral
    points = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return {"points": points.astype(np.float32), "spiral": spiral}


class Spirals:
    config = TrainingConfig(batch_size=256, num_iterations=150, learning_rate=0.01, evaluate_every=50)

    def create_model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=config.learning_rate)

    def create_data(self):
        return ray.data.range(6000, override_num_blocks=4).map_batches(spirals)

    def create_validation_data(self):
        return ray.data.range(600).map_batches(spirals)

    def loss(self, model, batch):  # a row of the data set is a dict, so is a batch
        return functional.cross_entropy(model(batch["points"]), batch["spiral"])

    def metrics(self, model, batch):
        scores = model(batch["points"])
        return {
            "val_loss": functional.cross_entropy(scores, batch["spiral"]),
            "accuracy": (scores.argmax(1) == batch["spiral"]).float().mean(),
        }
