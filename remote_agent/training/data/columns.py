"""Data that comes as columns of one length: arrays, tensors, tables of pandas, data sets of Hugging Face.

Numbers stay what they are, as torch takes them: a column of float64, numpy's default, is float64 in the batch, too,
and a model in float32 needs ``x.astype("float32")``. Hugging Face's own ``with_format("torch")`` gives float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from remote_agent.errors import first_line
from remote_agent.training.errors import JobError


def collated(samples: Sequence[Any], names: Sequence[int]) -> Any:
    """``samples`` as one batch.

    Args:
        samples: at least one.
        names: the number of each in the data.

    Raises:
        JobError: two differ in their shape, or one can't be in a batch.
    """
    try:
        return default_collate(list(samples))
    except (RuntimeError, TypeError, KeyError) as error:
        shapes = [shape_of(sample) for sample in samples]
        other = next((place for place, shape in enumerate(shapes) if shape != shapes[0]), 0)
        if other:
            raise JobError(
                f"samples {names[0]} and {names[other]} can't be put together: {shapes[0]} and {shapes[other]}",
                hint="give a DataLoader with a collate_fn that pads them" + _if_columns(samples),
            ) from error
        if isinstance(error, TypeError):
            raise JobError(
                f"sample {names[0]} can't be put into a batch: {shapes[0]}: {first_line(error)}",
                hint="make tensors, arrays and numbers of it, or give a DataLoader with a collate_fn",
            ) from error
        raise


def shape_of(sample: Any) -> str:
    """What a sample consists of, in words: ``([3, 32, 32], number)``."""
    if isinstance(sample, torch.Tensor | np.ndarray):
        return str(list(sample.shape))
    if isinstance(sample, int | float | np.number):
        return "number"
    if isinstance(sample, str | bytes):
        return "text"
    if isinstance(sample, Mapping):
        return "{" + ", ".join(f"{key!r}: {shape_of(value)}" for key, value in sample.items()) + "}"
    if isinstance(sample, tuple):
        return "(" + ", ".join(map(shape_of, sample)) + ")"
    if isinstance(sample, list):
        return f"list of {len(sample)}"
    return type(sample).__name__


def _if_columns(samples: Sequence[Any]) -> str:
    """A hint for a user who gave a list of whole columns."""
    is_columns = all(isinstance(sample, torch.Tensor | np.ndarray) and sample.ndim for sample in samples)
    if is_columns and len({len(sample) for sample in samples}) == 1:
        return "; or a tuple (x, y), if these are the inputs and targets of all samples"
    return ""


_NUMBERS = "biufc"
"""Kinds of numpy arrays that are numbers."""


_FORMATS = ("torch", "numpy", "pandas")
"""Formats of Hugging Face whose columns can be used as they are."""


class Columns:
    """Columns by name, of one length; a batch is a dictionary of them."""

    def __init__(self, columns: dict[str, Tensor]) -> None:
        self.tensors = columns

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.tensors.items()}

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        """The samples at ``indices``."""
        return {name: column[indices] for name, column in self.tensors.items()}


class Table:
    """A ``datasets.Dataset`` of Hugging Face; a batch is a dictionary of its columns, as tensors.

    Args:
        given: as the user gave it. One without a format has that of torch here.

    Raises:
        JobError: a column holds no numbers.
    """

    def __init__(self, given: Any) -> None:
        self._dataset = given if given.format["type"] in _FORMATS else given.with_format("torch")
        if len(given):
            self.batch(torch.tensor([0]))

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[0] for name, column in self.batch(torch.tensor([index])).items()}

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        """The samples at ``indices``."""
        wanted = indices.tolist()
        return {name: _column(name, values, indices) for name, values in self._dataset[wanted].items()}


class Items:
    """A data set whose samples are made one by one, though it could give several at once: each is random by itself."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def __len__(self) -> int:
        return len(self._given)

    def __getitem__(self, index: int) -> Any:
        return self._given[index]


def is_column(given: object) -> bool:
    """Whether ``given`` is a tensor or array with a first dimension, or a column or table of pandas or polars."""
    if isinstance(given, Tensor | np.ndarray):
        return given.ndim > 0
    return callable(getattr(given, "to_numpy", None)) and hasattr(given, "__len__")


def column(name: str, given: Any) -> Tensor:
    """``given`` as a tensor, whose memory it shares where that can be.

    Args:
        name: for the error.
        given: what :func:`is_column` holds of, or a list of numbers.

    Raises:
        JobError: it holds no numbers.
    """
    if isinstance(given, Tensor):
        return given
    array = given.to_numpy() if callable(getattr(given, "to_numpy", None)) else given
    try:
        array = np.asarray(array)
    except ValueError:  # lists of several lengths
        array = np.empty(0, object)
    if array.dtype.kind not in _NUMBERS or not array.ndim:
        raise _no_numbers(name, given[0] if isinstance(given, list) else array.flat[0] if array.size else None)
    # A tensor can be written to, and shares no memory with what goes backwards.
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())


def named(given: Mapping[str, Any]) -> Columns:
    """The dataset of these columns; raises JobError if they differ in length, or one holds no numbers."""
    columns = {str(name): column(f"the column {name!r}", part) for name, part in given.items()}
    for name, part in given.items():
        if isinstance(part, list) and columns[name].dtype == torch.float64:  # torch.tensor(part) has the default's
            columns[name] = columns[name].to(torch.get_default_dtype())
    check_lengths({f"the column {name!r}": part for name, part in columns.items()})
    return Columns(columns)


def check_lengths(columns: Mapping[str, Tensor]) -> None:
    """Raise a ``JobError`` where columns, by their names in words, differ in length."""
    lengths = {name: len(part) for name, part in columns.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length:,}" for name, length in lengths.items())
        raise JobError(f"the parts of the data differ in length: {said}", hint="give each as many samples")


def library_of(given: object) -> tuple[str, str]:
    """The top-level module and the name of the class of ``given``: libraries are not imported to know their types."""
    return type(given).__module__.split(".")[0], type(given).__name__


def in_memory(given: Any) -> Any:
    """A ``datasets.Dataset`` with its rows in memory, to be sent to hosts that do not have its files."""
    if not given.cache_files:
        return given
    from datasets import Dataset
    from datasets.table import InMemoryTable

    rows, kept = given.with_format("arrow")[:], given.format
    copied = Dataset(InMemoryTable(rows), info=given.info, split=given.split)
    return copied.with_format(kept["type"], kept["columns"], kept["output_all_columns"], **kept["format_kwargs"])


def _column(name: str, values: Any, indices: Tensor) -> Tensor:
    """A column of some rows as one tensor."""
    if isinstance(values, Tensor):
        return values
    if isinstance(values, list | tuple) and values and all(isinstance(value, Tensor | np.ndarray) for value in values):
        values = [torch.as_tensor(value) for value in values]
        shapes = [shape_of(value) for value in values]
        for place, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise JobError(
                    f"the column {name!r}: samples {int(indices[0])} and {int(indices[place])} have the shapes"
                    f" {shapes[0]} and {shape}",
                    hint="give a DataLoader with a collate_fn that pads them, for example DataCollatorWithPadding",
                )
        return torch.stack(values)
    return column(f"the column {name!r}", values)


def _no_numbers(name: str, first: object) -> JobError:
    held = "text" if isinstance(first, str | bytes) else f"what is of type {type(first).__name__}"
    if first is None or isinstance(first, list | tuple | dict):
        held = "lists of several lengths, or no numbers"
    return JobError(
        f"{name}{' of the data' * (name != 'the data')} holds {held}",
        hint="leave it out (Hugging Face: remove_columns), or turn it into numbers of one shape for each sample",
    )
