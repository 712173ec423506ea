"""A plain script on any Ray cluster: it trains, and goes on with the weights and the figures of the result.

    python examples/script.py                             # a cluster of this computer alone, for the time of the run
    RAY_ADDRESS=head:6379 python examples/script.py       # a cluster that runs

It makes a new folder below ``runs/``, with checkpoints and with each event of the run.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from remote_agent.training import DistributedTrainer, TrainingConfig

SAMPLES = 4000


class MyModelFactory:
    def create_model(self):
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate)

    loss = nn.MSELoss()


def friedman(count, seed):
    """Inputs ``(count, 20)`` in 0..1 and targets ``(count, 1)``, of which 5 inputs tell (Friedman, 1991)."""
    x = torch.rand(count, 20, generator=torch.Generator().manual_seed(seed))
    y = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, ((y - 14.4) / 4.9)[:, None]


def main():
    trainer = DistributedTrainer(
        model_factory=MyModelFactory(),
        data_loader=TensorDataset(*friedman(SAMPLES, seed=0)),
        config=TrainingConfig(batch_size=256, learning_rate=0.01, num_cpu_workers=2),
    )
    result = trainer.train(num_iterations=150)

    losses = [row["loss"] for row in result.metrics]
    print(f"loss of the first step {losses[0]:.3f}, of the last one {losses[-1]:.3f}")

    model = MyModelFactory().create_model()  # the weights fit a model without Ray and without this engine
    model.load_state_dict(result.state_dict)
    x, y = friedman(1000, seed=1)
    with torch.no_grad():
        error = nn.functional.mse_loss(model(x), y).item()
    print(f"on samples that it has not seen: error {error:.3f}, checkpoint {result.checkpoint}")


if __name__ == "__main__":
    main()
