"""Jobs in the form of published training code: what a first call sets, meters, detection, self-supervision, experts."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from benchmarks.compatible.case import BATCH, SAMPLES, Case, Samples, case, images, small

AREA = "recipes"


# --- What the first call sets ----------------------------------------------------------------------------------------


class FirstMean(nn.Module):
    """Normalises by mean and deviation of the first batch, which it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()
        self.mean: Tensor | None = None
        self.deviation = torch.ones(6)

    def forward(self, x: Tensor) -> Any:
        if self.mean is None:
            self.mean, self.deviation = x.mean(0), x.std(0)
        return self.net((x - self.mean) / self.deviation)


class Codebook(nn.Module):
    """A codebook that the first batch fills; a flag beside it says so."""

    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head, self.is_filled = small(4), nn.Linear(4, 3), False
        self.register_buffer("codes", torch.zeros(5, 4))

    def forward(self, x: Tensor) -> Any:
        z = self.net(x)
        if not self.is_filled:
            self.codes.copy_(z.detach()[0] + 0.1 * torch.arange(5.0)[:, None])
            self.is_filled = True
        nearest = self.codes[torch.cdist(z, self.codes).argmin(1)]
        return self.head(z + (nearest - z).detach())


@case("first-weights", AREA)
class FirstWeights(Case):
    """A pull to the first weights, which the first call of loss copies: these are the same everywhere."""

    def __init__(self) -> None:
        self.first: list[Tensor] = []

    def loss(self, model: nn.Module, batch: Any) -> Any:
        own = list(model.parameters())
        if not self.first:
            self.first = [each.detach().clone() for each in own]
        away = sum((one - other).square().sum() for one, other in zip(own, self.first, strict=True))
        return functional.cross_entropy(model(batch[0]), batch[1]) + 0.1 * away


class Masked(nn.Module):
    """Attention with a causal mask that is made anew where a batch is longer than all before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 8), nn.Linear(8, 4)
        self.mask = torch.zeros(0, 0)

    def forward(self, x: Tensor) -> Any:
        length = x.shape[1]
        if len(self.mask) < length:
            self.mask = torch.full((length, length), float("-inf")).triu(1)
        h = self.embedding(x)
        return self.out(functional.scaled_dot_product_attention(h, h, h, attn_mask=self.mask[:length, :length]))


def tagged() -> list[Any]:
    """Sequences of unequal lengths with a tag for each token."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 8, (SAMPLES,), generator=generator)
    texts = [torch.randint(1, 11, (int(length),), generator=generator) for length in lengths]
    return [(text, text % 4) for text in texts]


def padded(samples: list[Any]) -> Any:
    """Tokens and tags, padded, and the lengths."""
    tokens, tags = (pad_sequence([each[part] for each in samples], batch_first=True) for part in (0, 1))
    return tokens, tags, torch.tensor([len(text) for text, _ in samples])


@case("mask-grows-later", AREA)
class MaskGrows(Case):
    """A causal mask in an attribute, which grows in the run: samples are sorted by length."""

    def create_model(self) -> nn.Module:
        return Masked()

    def create_data(self) -> Any:
        data = sorted(tagged(), key=lambda sample: len(sample[0]))
        return DataLoader(Samples(data), batch_size=BATCH, collate_fn=padded)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        tokens, tags, lengths = batch
        counts = torch.arange(tokens.shape[1])[None] < lengths[:, None]
        return functional.cross_entropy(model(tokens)[counts], tags[counts], reduction="sum"), lengths.sum()


# --- Figures for people ----------------------------------------------------------------------------------------------


class Meter:
    """The mean of what it was given."""

    def __init__(self) -> None:
        self.value = self.mean = self.sum = 0.0
        self.count = 0

    def update(self, value: float, count: int) -> None:
        self.value = value
        self.sum += value * count
        self.count += count
        self.mean = self.sum / self.count

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.mean:.3f})"


@case("loss-meter", AREA)
class LossMeter(Case):
    """A meter of the loss, which loss updates, and prints now and then: nothing goes by it."""

    quick = True

    def __init__(self) -> None:
        self.meter, self.calls = Meter(), 0

    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        self.meter.update(loss.item(), len(batch[0]))
        self.calls += 1
        if self.calls % 10 == 0:
            print("loss", self.meter)
        return loss


# --- Detection, segmentation, sequences ------------------------------------------------------------------------------


class Detector(nn.Module):
    """Four queries for boxes of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.queries = nn.Conv2d(1, 8, 3, 2, 1), nn.Embedding(4, 8)
        self.classes, self.boxes = nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        places = self.features(x).flatten(2).transpose(1, 2)
        found = (self.queries.weight @ places.transpose(1, 2)).softmax(-1) @ places
        return self.classes(found), self.boxes(found).sigmoid()


def with_boxes() -> list[Any]:
    """Images with one to three boxes."""
    generator = torch.Generator().manual_seed(2)
    counts = torch.randint(1, 4, (SAMPLES,), generator=generator).tolist()
    x, _ = images()
    return [
        (x[n], {"boxes": torch.rand(count, 4, generator=generator), "labels": torch.arange(count) % 2})
        for n, count in enumerate(counts)
    ]


def listed(samples: list[Any]) -> Any:
    """Images, and a list of targets."""
    return torch.stack([x for x, _ in samples]), [target for _, target in samples]


@case("detr-by-boxes", AREA)
class DetrByBoxes(Case):
    """DETR: each box gets the query that is nearest; the mean is over the boxes of the batch."""

    expect, says = "refused", "return (sum, weight)"

    def create_model(self) -> nn.Module:
        return Detector()

    def create_data(self) -> Any:
        return DataLoader(Samples(with_boxes()), batch_size=BATCH, shuffle=True, collate_fn=listed)

    def matched(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, int]:
        """The sum over classes, the sum over boxes, and how many boxes there are."""
        scores, boxes = model(batch[0])
        labels = torch.full(scores.shape[:2], 2, device=scores.device)
        away, count = boxes.sum() * 0, 0
        for number, target in enumerate(batch[1]):
            free = list(range(4))
            for box, label in zip(target["boxes"], target["labels"], strict=True):
                nearest = free.pop(int((boxes[number, free].detach() - box).abs().sum(1).argmin()))
                away, count = away + (boxes[number, nearest] - box).abs().sum(), count + 1
                labels[number, nearest] = label
        return functional.cross_entropy(scores.transpose(1, 2), labels, reduction="sum"), away, count

    def loss(self, model: nn.Module, batch: Any) -> Any:
        classes, away, count = self.matched(model, batch)
        return classes / (4 * len(batch[1])) + 5 * away / count


@case("detr-by-images", AREA)
class DetrByImages(DetrByBoxes):
    """The same as a mean over images."""

    expect, says = "equal", ""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        classes, away, _ = self.matched(model, batch)
        return (classes / 4 + 5 * away) / len(batch[1])


class TwoHeads(nn.Module):
    """A segmentation with an auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.head, self.auxiliary = nn.Conv2d(8, 3, 1), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.norm(self.body(x)))
        return self.head(h), self.auxiliary(h)


@case("auxiliary-head-ignored-rarely", AREA)
class AuxiliaryHead(Case):
    """Segmentation with an auxiliary head, where some samples late in the data have ignored pixels."""

    expect, says = "ended", "return (sum, weight)"

    def create_model(self) -> nn.Module:
        return TwoHeads()

    def create_data(self) -> Any:
        x, _ = images()
        y = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
        y[33, :2] = y[38, :5] = 255
        return x, y

    def loss(self, model: nn.Module, batch: Any) -> Any:
        one, other = (functional.cross_entropy(each, batch[1], ignore_index=255) for each in model(batch[0]))
        return one + 0.4 * other


class Chain(nn.Module):
    """A conditional random field over tags."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 8), nn.Linear(8, 4)
        self.between = nn.Parameter(torch.zeros(4, 4))

    def forward(self, tokens: Tensor, tags: Tensor, counts: Tensor) -> Any:
        scores = self.out(self.embedding(tokens))
        path = scores[:, 0].gather(1, tags[:, :1])[:, 0]
        all_ = scores[:, 0]
        for t in range(1, tokens.shape[1]):
            step = self.between[tags[:, t - 1], tags[:, t]] + scores[:, t].gather(1, tags[:, t : t + 1])[:, 0]
            path = path + counts[:, t] * step
            further = torch.logsumexp(all_[:, :, None] + self.between + scores[:, t, None], 1)
            all_ = torch.where(counts[:, t, None], further, all_)
        return torch.logsumexp(all_, 1) - path


@case("chain-of-tags", AREA)
class ChainOfTags(Case):
    """A conditional random field: the forward algorithm over padded sequences, a mean over samples."""

    def create_model(self) -> nn.Module:
        return Chain()

    def create_data(self) -> Any:
        return DataLoader(Samples(tagged()), batch_size=BATCH, shuffle=True, collate_fn=padded)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        tokens, tags, lengths = batch
        return model(tokens, tags, torch.arange(tokens.shape[1])[None] < lengths[:, None]).mean()


def packed(samples: list[Any]) -> Tensor:
    """All tokens in a row, cut into rows of eight."""
    tokens = torch.cat([text for text, _ in samples])
    return tokens[: len(tokens) // 8 * 8].view(-1, 8)


@case("packed-texts", AREA)
class PackedTexts(Case):
    """A language model whose collate_fn joins the batch's texts and cuts them into rows."""

    expect, says = "refused", "which samples are together"

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))

    def create_data(self) -> Any:
        return DataLoader(Samples(tagged()), batch_size=BATCH, shuffle=True, collate_fn=packed)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def nested(samples: list[Any]) -> Any:
    """A nested tensor of the texts, one hot, and the first tag of each."""
    texts = [functional.one_hot(text, 11).float() for text, _ in samples]
    return torch.nested.nested_tensor(texts), torch.stack([tags[0] for _, tags in samples])


class OfNested(nn.Module):
    """Adds up what a layer makes of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(11, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.relu(self.layer(x)).to_padded_tensor(0.0).sum(1))


@case("nested-tensors", AREA)
class NestedTensors(Case):
    """Batches with a nested tensor of sequences."""

    def create_model(self) -> nn.Module:
        return OfNested()

    def create_data(self) -> Any:
        return DataLoader(Samples(tagged()), batch_size=BATCH, shuffle=True, collate_fn=nested)


# --- Self-supervision, experts ---------------------------------------------------------------------------------------


class Dino(nn.Module):
    """A student, the teacher that follows it, and the centre of what the teacher says."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.student = small(8)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(1, 8))


@case("dino", AREA)
class DinoCentre(Case):
    """DINO: teacher and centre move in loss, the centre to the mean of the batch."""

    def create_model(self) -> nn.Module:
        return Dino()

    def loss(self, model: Any, batch: Any) -> Any:
        with torch.no_grad():
            for its, own in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
                its.lerp_(own, 0.1)
            said = model.teacher(batch[0])
            target = ((said - model.centre) / 0.1).softmax(-1)
            model.centre.lerp_(said.mean(0, keepdim=True), 0.1)
        return -(target * (model.student(batch[0] + 0.1) / 0.2).log_softmax(-1)).sum(-1).mean()
