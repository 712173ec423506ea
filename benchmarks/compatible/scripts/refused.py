"""Scripts that a batch's parts can't train as they are: each is refused with its cause, and with a way out."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from benchmarks.compatible.table import Samples, images, script, sentences, table, text


class Classifier:
    """Rows of a table."""

    def create_model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def create_data(self):
        return DataLoader(Samples(*table()), batch_size=16, shuffle=True)

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


PARTS, UNIT = "parts do not add up", "unit="


@script(common=3, refused=(PARTS, UNIT), random=True, quick=True)
class Mixup(Classifier):
    """timm's mixup: the batch and the flipped batch, by one of numpy's random numbers."""

    def loss(self, model, batch):
        x, y = batch
        lam = np.random.beta(0.8, 0.8)
        scores = model(lam * x + (1 - lam) * x.flip(0))
        return lam * F.cross_entropy(scores, y) + (1 - lam) * F.cross_entropy(scores, y.flip(0))


@script(common=2, refused=(PARTS, UNIT), quick=True)
class Contrastive:
    """SimCLR: each image is told from all others of the batch."""

    def create_model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 8))

    def create_data(self):
        x, _ = images()
        return x, x.flip(-1)

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(self, model, batch):
        z = F.normalize(torch.cat([model(batch[0]), model(batch[1])]), dim=1)
        similar = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -1e9)
        positives = torch.arange(len(z), device=z.device).roll(len(z) // 2)
        return F.cross_entropy(similar, positives)


class Queued(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))
        self.register_buffer("queue", F.normalize(torch.randn(32, 8), dim=1))


@script(common=1, refused=("state does not add up", UNIT))
class MomentumContrast(Contrastive):
    """MoCo: a queue of what earlier batches gave."""

    def create_model(self):
        return Queued()

    def loss(self, model, batch):
        q, k = (F.normalize(model.encoder(each), dim=1) for each in batch)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ model.queue.T], 1) / 0.2
        model.queue = torch.cat([k.detach(), model.queue])[:32]
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def padded(batch):
    return pad_sequence(batch, batch_first=True)


@script(common=2, refused=(PARTS, "(sum, weight)"))
class MeanOverWords:
    """A mean over the words of padded texts, by a mask: not over samples."""

    def create_model(self):
        return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))

    def create_data(self):
        return DataLoader(Samples(sentences()), batch_size=16, shuffle=True, collate_fn=padded)

    def loss(self, model, batch):
        losses = F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:], reduction="none")
        mask = (batch[:, 1:] != 0).float()
        return (losses * mask).sum() / mask.sum()


@script(common=2, refused=(PARTS, UNIT))
class DiceOfTheBatch:
    """The soft dice of all pixels of a batch."""

    def create_model(self):
        return nn.Conv2d(3, 1, 3, padding=1)

    def create_data(self):
        x, _ = images()
        return x, (x.mean(1, keepdim=True) > 0.2).float()

    def loss(self, model, batch):
        p, masks = model(batch[0]).sigmoid(), batch[1]
        return 1 - (2 * (p * masks).sum() + 1) / (p.sum() + masks.sum() + 1)


@script(common=2, refused=(PARTS, "(sum, weight)"))
class WeightedAndMore(Classifier):
    """A cross entropy with class weights, and a second term beside it."""

    def loss(self, model, batch):
        scores = model(batch[0])
        weights = torch.tensor([1.0, 2.0, 0.5], device=scores.device)
        return F.cross_entropy(scores, batch[1], weight=weights) + 0.1 * scores.square().mean()


@script(common=2, refused=("calls do not repeat", "step"), quick=True)
class CountingCalls(Classifier):
    """A weight in the loss that rises with a count of calls: use loss(model, batch, step)."""

    calls = 0

    def loss(self, model, batch):
        self.calls += 1
        scores = model(batch[0])
        return F.cross_entropy(scores, batch[1]) + min(1.0, self.calls / 1000) * scores.square().mean()


@script(common=2, refused=("backward", "leave backward() to the run"))
class BackwardInside(Classifier):
    """A loop's body as the loss, with backward() and step()."""

    def loss(self, model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss


@script(common=1, refused=("closure", "gradients alone"))
class Lbfgs(Classifier):
    """LBFGS, which calls the loss several times a step."""

    def create_optimizer(self, model, config):
        return torch.optim.LBFGS(model.parameters(), lr=0.8)


@script(common=1, refused=("optimizer", "one optimizer"))
class TwoOptimizers(Classifier):
    """Two optimizers, one for each part of the model."""

    def create_optimizer(self, model, config):
        return [torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[2].parameters(), lr=0.1)]


@script(common=1, refused=("sparse", "sparse=False"))
class SparseEmbedding(Classifier):
    """An embedding with sparse gradients."""

    def create_model(self):
        return nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(16, 3))

    def create_data(self):
        return text(2), table()[1]


@script(common=1, refused=("weight", "max_norm"))
class MaxNorm(SparseEmbedding):
    """An embedding whose rows forward itself keeps below a norm."""

    def create_model(self):
        return nn.Sequential(nn.Embedding(20, 8, max_norm=1.0), nn.Flatten(), nn.Linear(16, 3))


@script(common=1, refused=("hook", "clip_norm"))
class GradientHook(Classifier):
    """Hooks that clip the gradient of each parameter."""

    def create_model(self):
        model = super().create_model()
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        return model
