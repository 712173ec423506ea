"""Classification, segmentation, detection, distillation."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from benchmarks.compatible.table import Samples, generator, images, script


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout1, self.dropout2 = nn.Dropout2d(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(self.dropout1(x).flatten(1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


@script(common=3, random=True, quick=True)
class MnistCnn:
    """A convolutional network with dropout, Adadelta, and a rate that falls each epoch; it prints every few batches."""

    def __init__(self):
        self.batches = 0

    def create_model(self):
        return Net()

    def create_data(self):
        return DataLoader(Samples(*images(channels=1)), batch_size=16, shuffle=True, num_workers=1)

    def create_optimizer(self, model, config):
        return torch.optim.Adadelta(model.parameters(), lr=0.1)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7)

    def loss(self, model, batch):
        data, target = batch
        loss = F.nll_loss(model(data), target)
        self.batches += 1
        if self.batches % 10 == 0:
            print(f"Train [{self.batches * len(data)}]\tLoss: {loss.item():.6f}")
        return loss


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


def resnet(classes=4):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        BasicBlock(8, 8),
        BasicBlock(8, 16, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, classes),
    )


class Augmented(Dataset):
    def __init__(self, data, targets):
        self.data, self.targets = data, targets

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image = F.pad(self.data[index], [1] * 4)
        top, left = torch.randint(0, 3, (2,)).tolist()
        image = image[:, top : top + 8, left : left + 8]
        return (image.flip(-1) if torch.rand(()) < 0.5 else image), self.targets[index]


@script(common=3, random=True, group=32, settings={"batch_size": 64}, quick=True)
class CifarResnet:
    """A ResNet with batch normalisation, random crops and flips, Nesterov momentum and MultiStepLR."""

    train_loss = correct = total = 0

    def create_model(self):
        return resnet()

    def create_data(self):
        return DataLoader(Augmented(*images(160)), batch_size=64, shuffle=True)

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 5], gamma=0.1)

    def loss(self, model, batch):
        inputs, targets = batch
        outputs = model(inputs)
        loss = nn.CrossEntropyLoss()(outputs, targets)
        self.train_loss += loss.item()
        self.total += targets.size(0)
        self.correct += outputs.argmax(1).eq(targets).sum().item()
        print(f"Loss: {self.train_loss:.3f} | Acc: {100.0 * self.correct / self.total:.3f}% ({self.correct})")
        return loss


class Patches(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 5, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


@script(common=3, settings={"clip_norm": 1.0, "ema_decay": 0.99})
class VisionTransformer:
    """A vision transformer by a modern recipe: no decay for biases and norms, warm-up, cosine, smoothing, average."""

    def create_model(self):
        return Patches()

    def create_data(self):
        return DataLoader(Samples(*images()), batch_size=16, shuffle=True, drop_last=True)

    def create_optimizer(self, model, config):
        decay = [p for p in model.parameters() if p.ndim > 1]
        no_decay = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.05}, {"params": no_decay, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))

    def create_scheduler(self, optimizer, config):
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.num_iterations - 2)
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [2])

    loss = nn.CrossEntropyLoss(label_smoothing=0.1)


@script(common=3, group=32, settings={"batch_size": 32})
class FineTuning:
    """A pretrained backbone that is frozen but for its last block, a new head, and two learning rates."""

    def create_model(self):
        torch.manual_seed(0)  # as weights from a file
        model = resnet(10)
        for parameter in model.parameters():
            parameter.requires_grad = False
        model[4].requires_grad_(True)
        model[-1] = nn.Linear(16, 4)
        return model

    def create_data(self):
        return DataLoader(Samples(*images(96)), batch_size=32, shuffle=True)

    def create_optimizer(self, model, config):
        groups = [{"params": model[4].parameters(), "lr": 1e-3}, {"params": model[-1].parameters()}]
        return torch.optim.SGD(groups, lr=1e-2, momentum=0.9)


class UNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.down1, self.down2 = self.double(3, 8), self.double(8, 16)
        self.up, self.decode = nn.ConvTranspose2d(16, 8, 2, stride=2), self.double(16, 8)
        self.out, self.auxiliary = nn.Conv2d(8, classes, 1), nn.Conv2d(16, classes, 1)

    def double(self, inputs, outputs):
        first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        return nn.Sequential(first, nn.GroupNorm(4, outputs), nn.ReLU(), second, nn.GroupNorm(4, outputs), nn.ReLU())

    def forward(self, x):
        skip = self.down1(x)
        middle = self.down2(F.max_pool2d(skip, 2))
        return self.out(self.decode(torch.cat([skip, self.up(middle)], 1))), self.auxiliary(middle)


@script(common=2)
class UNetDice:
    """A U-Net for masks: binary cross entropy and the soft dice of each image, RMSprop."""

    def create_model(self):
        return UNet(1)

    def create_data(self):
        x, _ = images()
        return Samples(x, (x.mean(1, keepdim=True) > 0.2).float())

    def create_optimizer(self, model, config):
        trained = [p for name, p in model.named_parameters() if "auxiliary" not in name]
        return torch.optim.RMSprop(trained, lr=1e-3, momentum=0.9, weight_decay=1e-8)

    def loss(self, model, batch):
        x, masks = batch
        logits, _ = model(x)
        p = logits.sigmoid()
        dice = 1 - (2 * (p * masks).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)
        loss = F.binary_cross_entropy_with_logits(logits, masks) + dice.mean()
        return loss, {"dice": 1 - dice.mean()}


def street():
    x, _ = images()
    y = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
    y[::3, :2] = 255  # no label
    return Samples(x, y)


@script(common=2)
class Segmentation:
    """Classes of pixels, of which some are 255, to be ignored; the rate falls by a power."""

    def create_model(self):
        return UNet(3)

    def create_data(self):
        return DataLoader(street(), batch_size=16, shuffle=True, drop_last=True)

    def create_optimizer(self, model, config):
        trained = [p for name, p in model.named_parameters() if "auxiliary" not in name]
        return torch.optim.SGD(trained, lr=0.02, momentum=0.9, weight_decay=1e-4)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=config.num_iterations, power=0.9)

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0])[0], batch[1], ignore_index=255)


def scenes():
    x, _ = images()
    numbers = torch.randint(0, 4, (len(x),), generator=generator(8)).tolist()
    return Samples(x, [{"boxes": torch.rand(n, 4, generator=generator(n)), "labels": torch.arange(n)} for n in numbers])


@script(common=2, quick=True)
class Detector:
    """Boxes: other numbers of them in each image, in lists of dicts; the loss is a sum by the number of boxes."""

    def create_model(self):
        body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 32), nn.ReLU())
        return nn.ModuleDict({"body": body, "boxes": nn.Linear(32, 12), "classes": nn.Linear(32, 12)})

    def create_data(self):
        return DataLoader(scenes(), batch_size=16, shuffle=True, collate_fn=lambda batch: tuple(zip(*batch)))

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)

    def loss(self, model, batch):
        x, targets = batch
        features = model["body"](torch.stack(x))
        boxes, classes = model["boxes"](features).view(-1, 3, 4), model["classes"](features).view(-1, 3, 4)
        total, count = 0.0, 0
        for box, scores, target in zip(boxes, classes, targets):
            n = len(target["labels"])
            total = total + F.l1_loss(box[:n], target["boxes"], reduction="sum")
            total = total + F.cross_entropy(scores[:n], target["labels"], reduction="sum")
            count += n
        return total, count


@script(common=2)
class Distillation:
    """A student learns from a teacher with batch normalisation, which the job holds in evaluation mode."""

    def __init__(self):
        torch.manual_seed(0)
        self.teacher = resnet().eval()

    def create_model(self):
        return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4))

    def create_data(self):
        return images()

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(self, model, batch):
        x, y = batch
        with torch.no_grad():
            said = self.teacher(x)
        scores, temperature = model(x), 4.0
        soft = F.log_softmax(scores / temperature, 1), F.softmax(said / temperature, 1)
        return 0.9 * temperature**2 * F.kl_div(*soft, reduction="batchmean") + 0.1 * F.cross_entropy(scores, y)


class MeanTeacherModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 4))
        self.teacher = copy.deepcopy(self.student)
        for parameter in self.teacher.parameters():
            parameter.detach_()
        self.register_buffer("centre", torch.zeros(4))


@script(common=1)
class SelfDistillation:
    """DINO: a teacher that follows the student, and a centre that follows what the teacher says."""

    def create_model(self):
        return MeanTeacherModel()

    def create_data(self):
        x, _ = images()
        return Samples(x, x + 0.1 * torch.randn(x.shape, generator=generator(7)))

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.student.parameters(), lr=1e-3)

    def loss(self, model, batch):
        one, other = batch
        with torch.no_grad():
            for p, q in zip(model.student.parameters(), model.teacher.parameters()):
                q.mul_(0.9).add_(p.data, alpha=0.1)
            said = model.teacher(one)
            target = ((said - model.centre) / 0.1).softmax(-1)
            model.centre.mul_(0.9).add_(said.mean(0), alpha=0.1)
        return -(target * F.log_softmax(model.student(other) / 0.2, -1)).sum(-1).mean()
