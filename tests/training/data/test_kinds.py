"""Kinds of data: arrays, dictionaries, tables and Hugging Face's data sets give batches, or a clear error."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.job import guard

X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6)
TAKEN = np.array([4, 1])


def fetched(data: Any) -> Any:
    """As on a worker: the data is sent to it."""
    return datasets.fetch(pickle.loads(pickle.dumps(datasets.as_dataset(data))), TAKEN, seed=0, begin=3)


# These take seconds to load, in each process that collects tests: what is made with them is a function in parameters.


def hugging_face(**columns: Any) -> Any:
    import datasets as huggingface

    return huggingface.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()} | columns)


def frame(**columns: Any) -> Any:
    import pandas

    return pandas.DataFrame({"x": X[:, 0], "y": Y} | columns)


def made(data: Any) -> Any:
    return data() if isinstance(data, FunctionType) else data


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (X, torch.from_numpy(Y)),
        (X, Y.tolist()),
        lambda: (frame()[["x"]].to_numpy(), frame()["y"]),
        [*zip(X, Y, strict=True)],
        DataLoader([*zip(X, Y, strict=True)]),  # type: ignore[arg-type]
    ],
)
def test_inputs_and_targets(data: Any) -> None:
    x, y = fetched(made(data))
    assert x.dtype == torch.float32
    assert x[:, 0].tolist() == X[TAKEN, 0].tolist() or x[:, 0].tolist() == [8, 2]
    assert y.tolist() == [4, 1]


@pytest.mark.parametrize(
    "data",
    [
        {"x": X, "y": Y},
        {"x": torch.from_numpy(X), "y": Y},
        {"x": X.tolist(), "y": Y.tolist()},
        hugging_face,
        lambda: hugging_face().with_format("numpy"),
    ],
)
def test_a_batch_of_named_columns_is_a_dictionary(data: Any) -> None:
    data = made(data)
    batch = fetched(data)
    assert list(batch) == ["x", "y"]
    assert batch["x"].dtype == torch.float32
    assert batch["x"].tolist() == [[8, 9], [2, 3]]
    assert batch["y"].tolist() == [4, 1]
    sample = datasets.as_dataset(data)[4]
    assert (sample["x"].tolist(), int(sample["y"])) == ([8, 9], 4)


@pytest.mark.parametrize(
    ("part", "held"), [("a text", "text"), (["a", "b"], "text"), (3, "what is of type int"), ({1: 2}, ".*no numbers")]
)
def test_a_dictionary_whose_part_is_no_column_is_refused_by_its_name(part: object, held: str) -> None:
    with pytest.raises(JobError, match=f"the column 'z' of the data holds {held}"):
        datasets.as_dataset({"x": X, "z": part})


def test_a_table_of_pandas_is_its_columns() -> None:
    batch = fetched(frame())
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([8, 2], [4, 1])


def test_a_single_array_gives_its_rows() -> None:
    assert fetched(X).tolist() == [[8, 9], [2, 3]]
    assert fetched(X[::-1]).tolist() == [[2, 3], [8, 9]]
    assert len(datasets.as_dataset(frame()["x"])) == 6


def test_float64_stays_float64_as_in_torch() -> None:
    assert fetched((X.astype(np.float64), Y))[0].dtype == torch.float64
    assert fetched([(1.0, 2)] * 6)[0].dtype == torch.float64


def test_a_model_in_float32_that_gets_float64_is_told_what_to_do() -> None:
    x = fetched((X.astype(np.float64), Y))[0]
    for model in (torch.nn.Linear(2, 1), torch.nn.Conv1d(2, 1, 1)):
        with pytest.raises(JobError) as error:
            guard("forward", model, x[:, :, None] if isinstance(model, torch.nn.Conv1d) else x)
        assert "astype('float32')" in error.value.hint


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_a_loader_over_hugging_faces_data_gives_what_torch_gives(form: str | None) -> None:
    data = hugging_face().with_format(form)
    expected = default_collate([data[4], data[1]])
    assert str(fetched(DataLoader(data))) == str(expected)


def test_data_of_hugging_face_in_files_travels_with_its_rows(tmp_path: Path) -> None:
    import datasets as huggingface

    hugging_face().save_to_disk(tmp_path / "saved")
    chosen = huggingface.load_from_disk(tmp_path / "saved").select([5, 4, 3, 2, 1, 0])
    data = [datasets.as_dataset(chosen), datasets.as_dataset(DataLoader(chosen.with_format("torch")))]
    sent = pickle.dumps(data)
    (tmp_path / "saved").rename(tmp_path / "elsewhere")
    for each in pickle.loads(sent):
        assert datasets.fetch(each, TAKEN)["y"].tolist() == [1, 4]


def test_a_transform_of_hugging_faces_data_is_random_by_sample() -> None:
    data = hugging_face().with_transform(lambda batch: {"x": torch.rand(len(batch["x"]), 2)})
    dataset = datasets.as_dataset(data)
    whole = datasets.fetch(dataset, TAKEN, seed=1, begin=8)["x"]
    assert torch.equal(whole[1:], datasets.fetch(dataset, TAKEN[1:], seed=1, begin=9)["x"])


def test_an_iterable_of_hugging_face_yields_samples_as_tensors() -> None:
    stream = datasets.as_stream(hugging_face().to_iterable_dataset())
    assert stream is not None
    assert not stream.batched
    assert torch.is_tensor(next(iter(stream.passes()))["x"])


def test_a_list_of_whole_columns_is_told_to_be_a_tuple() -> None:
    with pytest.raises(JobError) as error:
        datasets.fetch(datasets.as_dataset([X, Y]), np.array([0, 1]))
    assert "a tuple (x, y)" in error.value.hint


def test_data_without_a_length_is_told_so() -> None:
    class Unsized(torch.utils.data.Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return index

    with pytest.raises(JobError, match="Unsized has no length"):
        datasets.as_dataset(Unsized())
