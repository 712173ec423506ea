"""An autoencoder, a GAN, diffusion."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.compatible.table import Samples, images, script


def flat_images():
    x, _ = images(channels=1)
    return x.flatten(1).sigmoid()


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.fc3, self.fc4 = nn.Linear(4, 32), nn.Linear(32, 64)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


@script(common=3, random=True, summed=True, quick=True)
class Vae:
    """A variational autoencoder: sums of the reconstruction and of the divergence over all samples, Adam."""

    def create_model(self):
        return VAE()

    def create_data(self):
        return flat_images()

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(self, model, batch):
        recon, mu, logvar = model(batch)
        bce = F.binary_cross_entropy(recon, batch, reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return bce + kld


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())
        self.critic = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


@script(common=2, random=True)
class GanInOneStep:
    """Generator and critic take their steps at once, with one optimizer of two groups."""

    def create_model(self):
        return Gan()

    def create_data(self):
        return flat_images()

    def create_optimizer(self, model, config):
        groups = [{"params": model.generator.parameters()}, {"params": model.critic.parameters(), "lr": 4e-4}]
        return torch.optim.Adam(groups, lr=1e-4, betas=(0.5, 0.999))

    def loss(self, model, batch):
        fake = model.generator(torch.randn(len(batch), 8, device=batch.device))
        real, made = model.critic(batch), model.critic(fake.detach())
        d_loss = F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
        d_loss = d_loss + F.binary_cross_entropy_with_logits(made, torch.zeros_like(made))
        model.critic.requires_grad_(False)
        said = model.critic(fake)
        g_loss = F.binary_cross_entropy_with_logits(said, torch.ones_like(said))
        model.critic.requires_grad_(True)
        return d_loss + g_loss, {"D(x)": real.sigmoid().mean(), "D(G(z))": made.sigmoid().mean()}


class Denoiser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.time, self.body = nn.Linear(16, width), nn.Linear(64, width)
        self.out = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 64))

    def forward(self, x, t):
        frequencies = torch.exp(-math.log(10000) * torch.arange(8, device=x.device) / 8)
        angles = t[:, None] * frequencies
        return self.out(self.body(x) + self.time(torch.cat([angles.sin(), angles.cos()], -1)))


class Diffusing(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Denoiser()
        self.ema = copy.deepcopy(self.net).requires_grad_(False)
        self.register_buffer("alphas_bar", (1 - torch.linspace(1e-4, 0.02, 100)).cumprod(0))


@script(common=2, random=True, settings={"clip_norm": 1.0})
class Diffusion:
    """Noise is predicted at a random time of each sample; the model holds a moving average of its weights."""

    def create_model(self):
        return Diffusing()

    def create_data(self):
        return DataLoader(Samples(flat_images()), batch_size=16, shuffle=True)

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.net.parameters(), lr=2e-3)

    def loss(self, model, batch):
        with torch.no_grad():
            for mean, weight in zip(model.ema.parameters(), model.net.parameters()):
                mean.lerp_(weight, 0.01)
        t, noise = torch.randint(0, 100, (len(batch),), device=batch.device), torch.randn_like(batch)
        kept = model.alphas_bar[t][:, None]
        return F.mse_loss(model.net(kept.sqrt() * batch + (1 - kept).sqrt() * noise, t), noise)
