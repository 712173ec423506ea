"""What people do in a loss beside computing it: meters, logs, bars, timers, writers. Nothing else depends on it."""

import logging
import tempfile
import time
from collections import defaultdict, deque

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.compatible.table import Samples, images, script

log = logging.getLogger(__name__)


class LitModel(nn.Module):
    """With the methods of a LightningModule."""

    def __init__(self, **metrics):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4))
        for name, metric in metrics.items():
            setattr(self, name, metric)

    def forward(self, x):
        return self.net(x)


class Images:
    """A small convolutional network, SGD with momentum, StepLR."""

    def create_model(self):
        return LitModel()

    def create_data(self):
        return DataLoader(Samples(*images()), batch_size=16, shuffle=True)

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.1)

    def loss(self, model, batch):
        x, y = batch
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        self.after(model, scores, y, loss)
        return loss


class Accuracy:
    """As torchmetrics has it: updated with each batch, computed and reset now and then."""

    def __init__(self):
        self.reset()

    def __call__(self, scores, targets):
        self.correct += int((scores.argmax(1) == targets).sum())
        self.total += len(targets)
        return self.compute()

    def compute(self):
        return self.correct / self.total

    def reset(self):
        self.correct = self.total = 0


class LitWithMetric(LitModel):
    def __init__(self):
        super().__init__(train_acc=Accuracy())
        self.logged = {}

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        loss = F.cross_entropy(scores, y)
        self.log("train_acc", self.train_acc(scores, y), prog_bar=True)
        self.log("train_loss", loss)
        return loss

    def log(self, name, value, **others):
        self.logged[name] = float(value)


@script(common=3, quick=True)
class MetricInTrainingStep(Images):
    """A LightningModule with a metric object that training_step updates and logs."""

    def create_model(self):
        return LitWithMetric()

    def loss(self, model, batch):
        return model.training_step(batch, 0)


class BufferedAccuracy(nn.Module):
    """Keeps its counts in buffers, as metrics that belong to a checkpoint do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("correct", torch.tensor(0.0))
        self.register_buffer("total", torch.tensor(0.0))

    @torch.no_grad()
    def update(self, scores, targets):
        self.correct += (scores.argmax(1) == targets).sum()
        self.total += len(targets)


@script(common=2, counts=("accuracy.correct", "accuracy.total"))
class MetricWithBuffers(Images):
    """A metric that is a module of the model, with its counts in buffers."""

    def create_model(self):
        return LitModel(accuracy=BufferedAccuracy())

    def after(self, model, scores, y, loss):
        model.accuracy.update(scores, y)
        print(f"acc {model.accuracy.correct / model.accuracy.total:.3f}")


class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.val = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val, self.sum, self.count = val, self.sum + val * n, self.count + n

    def __str__(self):
        return f"{self.name} {self.val:{self.fmt[1:]}} ({self.sum / self.count:{self.fmt[1:]}})"


@script(common=3)
class MetersInMidEpoch(Images):
    """Average meters of loss and accuracy, which a progress line shows in mid-epoch."""

    def __init__(self):
        self.losses, self.top1, self.batches = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f"), 0

    def after(self, model, scores, y, loss):
        self.losses.update(loss.item(), len(y))
        self.top1.update(100 * (scores.argmax(1) == y).float().mean().item(), len(y))
        self.batches += 1
        if self.batches % 2 == 0:
            print("\t".join([f"Epoch: [0][{self.batches}/100]", str(self.losses), str(self.top1)]))


@script(common=3)
class LoggingEverySteps(Images):
    """logging.info with a counter of batches."""

    global_step = 0

    def after(self, model, scores, y, loss):
        if self.global_step % 50 == 0:
            log.info("step %d loss %.4f", self.global_step, loss.item())
        self.global_step += 1


@script(common=3)
class TensorBoard(Images):
    """A SummaryWriter, and a step that counts up."""

    writer, step = None, 0

    def after(self, model, scores, y, loss):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = self.writer or SummaryWriter(tempfile.mkdtemp())
        self.writer.add_scalar("train/loss", loss.item(), self.step)
        if self.step % 100 == 0:
            self.writer.add_histogram("scores", scores.detach(), self.step)
        self.step += 1


@script(common=2)
class TimerABatch(Images):
    """Seconds a batch, by the clock, with an average over the last ones."""

    def __init__(self):
        self.batch_time, self.end = deque(maxlen=20), time.time()

    def after(self, model, scores, y, loss):
        self.batch_time.append(time.time() - self.end)
        self.end = time.time()
        print(f"Time {np.mean(self.batch_time):.3f} s, {len(y) / self.batch_time[-1]:.0f} images/s")


@script(common=3)
class ProgressBar(Images):
    """A bar of tqdm that shows the loss."""

    bar = None

    def after(self, model, scores, y, loss):
        from tqdm import tqdm

        self.bar = self.bar or tqdm(total=100, desc="train")
        self.bar.update(1)
        self.bar.set_postfix(loss=f"{loss.item():.3f}")


@script(common=2)
class History(Images):
    """Lists of losses in a dict for a later plot, and a check for NaN."""

    def __init__(self):
        self.history = defaultdict(list)

    def after(self, model, scores, y, loss):
        if torch.isnan(loss):
            raise ValueError("loss is NaN")
        self.history["loss"].append(loss.item())
        self.history["running"].append(np.mean(self.history["loss"][-10:]))


@script(common=2)
class ConfusionMatrix(Images):
    """Counts of classes in a numpy array, printed from time to time."""

    def __init__(self):
        self.matrix = np.zeros((4, 4), dtype=np.int64)

    def after(self, model, scores, y, loss):
        np.add.at(self.matrix, (y.cpu().numpy(), scores.argmax(1).cpu().numpy()), 1)
        if self.matrix.sum() % 7 == 0:
            print(self.matrix, "accuracy", self.matrix.trace() / self.matrix.sum())


@script(common=2)
class WatchedActivations(Images):
    """A forward hook that keeps a layer's mean and dead units, shown with the norm of the weights."""

    def create_model(self):
        model = LitModel()
        model.activations = {}

        def keep(module, given, output):
            model.activations["relu"] = (output.mean().item(), (output == 0).float().mean().item())

        model.net[1].register_forward_hook(keep)
        return model

    def after(self, model, scores, y, loss):
        norm = sum(p.detach().norm() ** 2 for p in model.parameters()) ** 0.5
        print(f"relu {model.activations['relu']}, |w| {norm:.3f}")


@script(common=2)
class WarmingTerm(Images):
    """A second term whose weight rises with the step, and a profiler's region."""

    def loss(self, model, batch, step):
        x, y = batch
        with torch.profiler.record_function("forward"):
            scores = model(x)
        weight = min(1.0, step / 4) * 1e-2
        return F.cross_entropy(scores, y) + weight * scores.square().mean(), {"weight": torch.tensor(weight)}
