"""Datasets of Ray Data (``ray.data``): the workers read their samples from blocks in the cluster's object store.

So the hosts need no shared file system, and no host needs room for all of the data. The dataset is materialised once;
blocks then go by reference, and a worker keeps the few that it used last. The order is the run's own, so all that is
promised of data that can be indexed holds: exactly once an epoch, and the same samples after a resume.

A batch is a dictionary of columns, as ``iter_torch_batches`` gives it; the default loss takes the first column as input
and the second as target. The global order touches blocks at random: a dataset should have blocks of a few MiB, and fit
into the object stores of the cluster (Ray spills what does not to disk).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import ray
import torch

from remote_agent.training.data import blocks
from remote_agent.training.data.blocks import Batch, Block
from remote_agent.training.deadlines import DATA_S
from remote_agent.training.errors import JobError
from remote_agent.training.shared import rpc
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.shared.slices import Indices

HINT = "install Ray Data on every host: pip install 'ray[data]' (it brings pyarrow)"

_KEPT = 64
"""Blocks that a worker keeps."""


def is_ray_dataset(given: object) -> bool:
    """Whether ``given`` is a ``ray.data.Dataset``; Ray Data is not imported for it."""
    return type(given).__module__.split(".")[:2] == ["ray", "data"] and hasattr(given, "materialize")


class RayBlocks:
    """A materialised dataset; travels to the workers, and ``data.fetch`` takes batches from it there.

    Args:
        rows: of each block.
    """

    def __init__(self, refs: Sequence[Any], rows: Sequence[int]) -> None:
        kept = [(ref, count) for ref, count in zip(refs, rows, strict=True) if count]
        self._refs = [ref for ref, _ in kept]
        self._ends = np.array(list(accumulate(count for _, count in kept)), dtype=np.int64)
        self._read: OrderedDict[int, Block] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Batch:
        batch = self.batch(torch.tensor([index]))
        return {name: column[0] for name, column in batch.items()}

    def batch(self, indices: torch.Tensor) -> Batch:
        """The samples at ``indices`` (int64), each column a tensor."""
        positions: Indices = indices.numpy()
        needed = np.unique(np.searchsorted(self._ends, positions, side="right")).tolist()
        missing = [number for number in needed if number not in self._read]
        tables: list[Any] = rpc.get_all([Ref(self._refs[number]) for number in missing], DATA_S)
        for number, table in zip(missing, tables, strict=True):
            end = int(self._ends[number])
            begin = int(self._ends[number - 1]) if number else 0
            self._read[number] = Block(begin, end, _columns(table))
        found = []
        for number in needed:
            self._read.move_to_end(number)
            found.append(self._read[number])
        while len(self._read) > max(_KEPT, len(needed)):
            self._read.popitem(last=False)
        return blocks.gather(positions, found)


def materialized(dataset: Any) -> RayBlocks:
    """Compute the dataset's blocks; raises JobError if Ray Data is not whole here, or fails."""
    try:
        whole = dataset.materialize()
        bundles = list(whole.iter_internal_ref_bundles())
    except ImportError as error:
        raise JobError(f"Ray Data can't be used: {error}", hint=HINT) from error
    except ray.exceptions.RayError as error:
        raise JobError(
            f"the dataset can't be read: {rpc.describe(error)}", hint="look at the dataset's own code"
        ) from error
    entries = [entry for bundle in bundles for entry in bundle.blocks]
    return RayBlocks([entry.ref for entry in entries], [int(entry.metadata.num_rows) for entry in entries])


def _columns(table: Any) -> Batch:
    from ray.data.block import BlockAccessor

    columns = BlockAccessor.for_block(table).to_numpy()
    try:
        return {name: torch.from_numpy(np.array(column)) for name, column in columns.items()}
    except (TypeError, AttributeError) as error:
        cause = f"a column of the dataset is no array of numbers: {error}"
        raise JobError(cause, hint="map the dataset to columns of numbers, of one shape each") from error
