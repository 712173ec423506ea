"""Data, once more: datasets with state, subclasses of torch's, dropped samples, graphs, packing, and odd batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.compatible.case import BATCH, SAMPLES, Case, Samples, case, points
from benchmarks.compatible.data import AREA
from benchmarks.compatible.datasets import listed


def without_bad(samples: list[Any]) -> Any:
    """Leave out samples that are broken."""
    kept = [sample for sample in samples if sample is not None]
    return torch.stack([x for x, _ in kept]), torch.stack([y for _, y in kept])


@case("dropping-collate", AREA)
class Dropping(Case):
    """A collate_fn that leaves out broken samples, one in six."""

    def bad(self, index: int) -> bool:
        return index % 6 == 1

    def create_data(self) -> Any:
        samples = [None if self.bad(index) else sample for index, sample in enumerate(listed())]
        return DataLoader(Samples(samples), batch_size=BATCH, shuffle=True, collate_fn=without_bad)


@case("dropping-collate-mse", AREA)
class DroppingMse(Dropping):
    """The same with a loss that is a mean over samples."""

    expect, says = "refused", ""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.mse_loss(model(batch[0]), batch[0][:, :3])


@case("dropping-collate-rarely", AREA)
class DroppingRarely(DroppingMse):
    """The same with one broken sample in 240."""

    expect, says = "ended", "collate_fn"
    steps = 24

    def create_data(self) -> Any:
        listing: list[Any] = list(zip(*points(samples=240), strict=True))
        listing[77] = None
        return DataLoader(Samples(listing), batch_size=BATCH, shuffle=True, collate_fn=without_bad)


class Graph(NamedTuple):
    """Nodes of several graphs, edges, and which graph a node is of."""

    x: Tensor
    edges: Tensor
    graph: Tensor
    y: Tensor


def graphs() -> list[Any]:
    """Graphs of unequal sizes."""
    generator = torch.Generator().manual_seed(2)
    found = []
    for index in range(SAMPLES):
        size = 3 + index % 4
        edges = torch.randint(0, size, (2, 2 * size), generator=generator)
        found.append((torch.randn(size, 6, generator=generator), edges, index % 3))
    return found


def as_one(samples: list[Any]) -> Graph:
    """Several graphs as one."""
    offsets = np.cumsum([0] + [len(x) for x, _, _ in samples])
    return Graph(
        torch.cat([x for x, _, _ in samples]),
        torch.cat([edges + int(offset) for (_, edges, _), offset in zip(samples, offsets, strict=False)], 1),
        torch.cat([torch.full((len(x),), number) for number, (x, _, _) in enumerate(samples)]),
        torch.tensor([y for _, _, y in samples]),
    )


class Passing(nn.Module):
    """Messages along edges, and a mean over each graph's nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def nodes(self, graph: Graph) -> Any:
        h = torch.tanh(self.first(graph.x))
        return h + torch.zeros_like(h).index_add(0, graph.edges[1], h[graph.edges[0]])

    def forward(self, graph: Graph) -> Any:
        h, count = self.nodes(graph), len(graph.y)
        sums = torch.zeros(count, 16).index_add(0, graph.graph, h)
        return self.last(sums / torch.bincount(graph.graph, minlength=count)[:, None])


@case("graphs", AREA)
class Graphs(Case):
    """Graphs put together into one big graph (a NamedTuple), classified one by one."""

    def create_model(self) -> nn.Module:
        return Passing()

    def create_data(self) -> Any:
        return DataLoader(Samples(graphs()), batch_size=BATCH, shuffle=True, collate_fn=as_one)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch), batch.y)


@case("graph-nodes", AREA)
class GraphNodes(Graphs):
    """The same with a mean over nodes."""

    expect, says = "refused", "(sum, weight)"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Passing)
        return functional.mse_loss(model.last(model.nodes(batch)), batch.x[:, :3])


@case("graph-nodes-entropy", AREA)
class GraphNodesEntropy(Graphs):
    """The same with a cross entropy over nodes."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Passing)
        return functional.cross_entropy(model.last(model.nodes(batch)), batch.x[:, :3].argmax(1))


class Batch:
    """A batch object with to(), as graph libraries have."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def to(self, device: Any, **_: Any) -> Batch:
        return Batch(self.x.to(device), self.y.to(device))


def as_object(samples: list[Any]) -> Batch:
    """A batch object."""
    return Batch(torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples]))


@case("batch-object", AREA)
class Objects(Case):
    """Batches that are objects with to()."""

    def create_data(self) -> Any:
        return DataLoader(Samples(listed()), batch_size=BATCH, shuffle=True, collate_fn=as_object)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch.x), batch.y)


@case("texts-beside", AREA)
class Texts(Case):
    """Samples with a text and an identifier beside the numbers."""

    def create_data(self) -> Any:
        return Samples([{"x": x, "y": y, "text": f"sample {i}", "id": i} for i, (x, y) in enumerate(listed())])

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert all(text.startswith("sample") for text in batch["text"])
        return functional.cross_entropy(model(batch["x"]), batch["y"])


def packed(samples: list[Any]) -> Any:
    """Texts one behind the other, in rows of eight tokens."""
    flat = torch.cat([text for text, _ in samples])
    flat = functional.pad(flat, (0, -len(flat) % 8))
    return flat.view(-1, 8)


@case("packed-sequences", AREA)
class Packed(Case):
    """A collate_fn that packs texts into rows: attention reaches across samples."""

    expect, says = "refused", ""

    def create_model(self) -> nn.Module:
        return Attending()

    def create_data(self) -> Any:
        generator = torch.Generator().manual_seed(3)
        texts = [(torch.randint(1, 9, (2 + i % 5,), generator=generator), 0) for i in range(SAMPLES)]
        return DataLoader(Samples(texts), batch_size=BATCH, shuffle=True, collate_fn=packed)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


class Attending(nn.Module):
    """Causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, x: Tensor) -> Any:
        h = self.embedding(x)
        return self.out(functional.scaled_dot_product_attention(h, h, h, is_causal=True))


@case("batch-larger-than-data", AREA)
class Larger(Case):
    """batch_size is larger than the data, in a DataLoader: a step is all of it."""

    settings: ClassVar = {"batch_size": None}

    def create_data(self) -> Any:
        return DataLoader(TensorDataset(*points(samples=9)), batch_size=12, shuffle=True)

    def mistake_in_order(self, steps: Sequence[NDArray[np.int64]]) -> str:
        return "" if all(sorted(step.tolist()) == list(range(9)) for step in steps) else "steps are not the data"


@case("last-partial-batch", AREA)
class Partial(Case):
    """A DataLoader's last batch is smaller: each batch counts as one step."""

    settings: ClassVar = {"batch_size": None}
    steps = 8

    def create_data(self) -> Any:
        return DataLoader(TensorDataset(*points()), batch_size=BATCH, shuffle=True)


@case("last-partial-sum", AREA)
class PartialSum(Partial):
    """The same with a sum over samples divided by the configured batch size."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum") / BATCH


@case("single-samples", AREA)
class Single(Case):
    """batch_size=1."""

    settings: ClassVar = {"batch_size": 1}


@case("uneven-epoch-clip", AREA)
class Clipped(Partial):
    """Partial batches with clip_norm."""

    settings: ClassVar = {"batch_size": None, "clip_norm": 0.3}


class Half(nn.Module):
    """From float64 or bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        return self.network(x.float())


@case("half-and-bytes", AREA)
class HalfBytes(Case):
    """float16 inputs, bool and uint8 beside."""

    def create_model(self) -> nn.Module:
        return Half()

    def create_data(self) -> Any:
        x, y = points()
        return x.half(), (x > 0), y.to(torch.uint8)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, mask, y = batch
        return functional.cross_entropy(model(x * mask), y.long())


@case("sparse-inputs", AREA)
class Sparse(Case):
    """Sparse inputs made by a collate_fn."""

    def create_data(self) -> Any:
        return DataLoader(Samples(listed()), batch_size=BATCH, shuffle=True, collate_fn=as_sparse)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0].to_dense()), batch[1])


def as_sparse(samples: list[Any]) -> Any:
    """A sparse matrix."""
    return torch.stack([x * (x > 0) for x, _ in samples]).to_sparse(), torch.stack([y for _, y in samples])


def sorted_by_length(samples: list[Any]) -> Any:
    """Padded, the longest first."""
    samples = sorted(samples, key=lambda sample: -len(sample[0]))
    lengths = torch.tensor([len(x) for x, _ in samples])
    return nn.utils.rnn.pad_sequence([x for x, _ in samples], True), lengths, torch.tensor([y for _, y in samples])


class LastState(nn.Module):
    """A GRU's last state over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.GRU(4, 8, batch_first=True, bidirectional=True), nn.Linear(8, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed_ = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
        return self.out(self.cells(packed_)[1][-1])


@case("sorted-by-length", AREA)
class Sorted(Case):
    """A collate_fn that sorts by length, for packed sequences."""

    def create_model(self) -> nn.Module:
        return LastState()

    def create_data(self) -> Any:
        generator = torch.Generator().manual_seed(8)
        ragged = [(torch.randn(2 + i % 5, 4, generator=generator), i % 3) for i in range(SAMPLES)]
        return DataLoader(Samples(ragged), batch_size=BATCH, shuffle=True, collate_fn=sorted_by_length)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0], batch[1]), batch[2])


class Pooled(nn.Module):
    """A mean over all positions, padding among them."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.out(self.cells(x)[0].mean(1))


@case("pooled-over-padding", AREA)
class PooledCase(Sorted):
    """A mean over positions with the padding of the batch: a common slip."""

    expect, says = "refused", "unit"

    def create_model(self) -> nn.Module:
        return Pooled()
