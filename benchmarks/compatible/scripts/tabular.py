"""Tables, series, recommendations, graphs, physics."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler, random_split

from benchmarks.compatible.table import SAMPLES, Samples, generator, script, table, text


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(20, 4) for _ in range(2))
        self.norm, self.layers = nn.BatchNorm1d(6), nn.Sequential(nn.Linear(14, 32), nn.ReLU(), nn.BatchNorm1d(32))
        self.out = nn.Linear(32, 1)

    def forward(self, categories, numbers):
        embedded = [layer(categories[:, n]) for n, layer in enumerate(self.embeddings)]
        return self.out(self.layers(torch.cat([*embedded, self.norm(numbers)], 1)))[:, 0]


@script(common=3, group=32, settings={"batch_size": 64}, quick=True)
class TabularClassifier:
    """Categories and numbers, batch normalisation, a positive weight for the rare class, OneCycleLR, dict batches."""

    def create_model(self):
        return Tabular()

    def create_data(self):
        x, y = table(160)
        return {"categories": text(2, count=160), "numbers": x, "labels": (y == 0).float()}

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=config.num_iterations)

    def loss(self, model, batch):
        scores = model(batch["categories"], batch["numbers"])
        return F.binary_cross_entropy_with_logits(scores, batch["labels"], pos_weight=torch.tensor(2.0))


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 12), nn.LSTMCell(12, 12), nn.Linear(12, 1)

    def forward(self, x):
        outputs, one, two = [], None, None
        for value in x.split(1, dim=1):
            one = self.lstm1(value, one)
            two = self.lstm2(one[0], two)
            outputs.append(self.linear(two[0]))
        return torch.cat(outputs, dim=1)


@script(common=2)
class SineWaves:
    """A series is predicted in float64, by LSTM cells."""

    def create_model(self):
        return Sequence().double()

    def create_data(self):
        start = torch.rand(SAMPLES, 1, dtype=torch.float64, generator=generator()) * 10
        waves = torch.sin((start + torch.arange(13)) / 2)
        return waves[:, :-1], waves[:, 1:]

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=0.01)

    loss = nn.MSELoss()


class MatrixFactorization(nn.Module):
    def __init__(self, users=20, items=20, factors=8):
        super().__init__()
        self.user, self.item = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)

    def forward(self, user, item):
        return ((self.user(user) * self.item(item)).sum(1, keepdim=True) + self.user_bias(user) + self.item_bias(item))[
            :, 0
        ]


@script(common=2)
class Recommender:
    """Factors and biases of users and items, with weight decay in SGD; a random split for validation."""

    def split(self):
        pairs = text(2)
        ratings = TensorDataset(pairs[:, 0], pairs[:, 1], (pairs.sum(1) % 5).float())
        return random_split(ratings, [0.9, 0.1], generator=generator())

    def create_model(self):
        return MatrixFactorization()

    def create_data(self):
        return DataLoader(self.split()[0], batch_size=16, shuffle=True)

    def create_validation_data(self):
        return self.split()[1]

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1e-3)

    def loss(self, model, batch):
        user, item, rating = batch
        return F.mse_loss(model(user, item), rating)


@script(common=2)
class RareClasses:
    """Rare classes: a WeightedRandomSampler, and class weights in the loss."""

    def create_model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.ELU(), nn.Linear(16, 3))

    def create_data(self):
        x, y = table()
        weights = 1.0 / y.bincount().float()
        sampler = WeightedRandomSampler(weights[y].tolist(), num_samples=len(y), replacement=True)
        return DataLoader(TensorDataset(x, y), batch_size=16, sampler=sampler)

    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))


class Lines(IterableDataset):
    def __iter__(self):
        for x, _ in zip(*table(160)):
            yield x


@script(common=2, group=32, settings={"batch_size": 64}, quick=True)
class StreamedAutoencoder:
    """Lines of a file, one after the other: an autoencoder with batch normalisation that looks for odd ones."""

    def create_model(self):
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.SELU(), nn.Linear(4, 6))

    def create_data(self):
        return DataLoader(Lines(), batch_size=64)

    def create_optimizer(self, model, config):
        return torch.optim.NAdam(model.parameters(), lr=2e-3)

    def loss(self, model, batch):
        return (model(batch) - batch).square().mean(1).mean()


@script(common=2, settings={"evaluate_every": 2, "schedule": "constant"})
class Plateau:
    """The rate falls when the validation loss does."""

    def create_model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def create_data(self):
        return table()

    def create_validation_data(self):
        return table(40)

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)


class Uncertainty(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LazyLinear(16)
        self.classes, self.value, self.log_vars = nn.LazyLinear(3), nn.LazyLinear(1), nn.Parameter(torch.zeros(2))

    def forward(self, x):
        features = F.relu(self.body(x))
        return self.classes(features), self.value(features)[:, 0]


@script(common=1)
class Multitask:
    """Two tasks whose weights are learned, and lazy layers."""

    def create_model(self):
        return Uncertainty()

    def create_data(self):
        x, y = table()
        return Samples([{"features": row, "class": label, "value": row.sum()} for row, label in zip(x, y)])

    def create_optimizer(self, model, config):
        return torch.optim.RAdam(model.parameters(), lr=1e-2)

    def loss(self, model, batch):
        scores, values = model(batch["features"])
        tasks = torch.stack([F.cross_entropy(scores, batch["class"]), F.mse_loss(values, batch["value"])])
        return (torch.exp(-model.log_vars) * tasks + model.log_vars).sum()


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16, bias=False), nn.Linear(16, 3, bias=False)

    def forward(self, x, adjacency):
        return adjacency @ self.second(F.relu(adjacency @ self.first(x)))


@script(common=1, settings={"batch_size": 1})
class GraphNetwork:
    """One graph is the batch: one device computes it; the loss is of the nodes under a mask."""

    def create_model(self):
        return GCN()

    def create_data(self):
        x, y = table()
        edges = (torch.rand(SAMPLES, SAMPLES, generator=generator()) < 0.1).float() + torch.eye(SAMPLES)
        return Samples([(x, y, edges / edges.sum(1, keepdim=True), torch.arange(SAMPLES) % 2 == 0)])

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def loss(self, model, batch):
        x, y, adjacency, mask = (each[0] for each in batch)
        return F.cross_entropy(model(x, adjacency)[mask], y[mask])


@script(common=1, settings={"schedule": "cosine"})
class Physics:
    """A network that solves Laplace's equation: derivatives by the inputs, points on the edge that the job holds."""

    def __init__(self):
        self.edge = torch.linspace(0, 1, 10)[:, None].repeat(1, 2)

    def create_model(self):
        return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def create_data(self):
        return torch.rand(SAMPLES, 2, generator=generator())

    def loss(self, model, batch):
        x = batch.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        second = [torch.autograd.grad(slope[:, axis].sum(), x, create_graph=True)[0][:, axis] for axis in range(2)]
        return (second[0] + second[1]).square().mean() + (model(self.edge.to(x.device)) - 1).square().mean()
