"""Files that a data set names, which each worker reads on its own host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from remote_agent.training.data import datasets
from remote_agent.training.data.named_files import named_by
from remote_agent.training.shared.job_fingerprint import JobFingerprint, other_files


class Images(Dataset[Any]):
    """Reads its samples, as an ``ImageFolder`` does; ``shape`` gives its attribute."""

    def __init__(self, root: Path, shape: Any) -> None:
        self.root, self.files, self.classes = (
            str(root),
            shape(root, sorted(each.name for each in root.iterdir())),
            [1, 2],
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("no sample is read")


SHAPES = [
    lambda root, names: [str(root / name) for name in names],
    lambda root, names: [(str(root / name), number) for number, name in enumerate(names)],
    lambda root, names: np.array(names),
    lambda root, names: names,
    lambda root, names: [root / name for name in names],
]


def made(folder: Path, change: int | None, content: bytes) -> Path:
    folder.mkdir()
    for number in range(300):
        (folder / f"{number:03}.png").write_bytes(content if number == change else b"a" * (100 + number))
    return folder


def told(one: Any, other: Any) -> str:
    found = [JobFingerprint(files=named_by(datasets.as_dataset(each))) for each in (one, other)]
    assert found[0].files
    return other_files([("mercer/cpu", found[0]), ("nas/cpu", found[1])])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "wrapped", [lambda data: data, DataLoader, lambda data: ConcatDataset([Subset(data, [0]), Subset(data, [1])])]
)
def test_one_file_of_another_size_is_told_of(tmp_path: Path, shape: Any, wrapped: Any) -> None:
    same, other = made(tmp_path / "a", None, b""), made(tmp_path / "b", 170, b"shorter")
    again = made(tmp_path / "c", None, b"")
    text = told(wrapped(Images(same, shape)), wrapped(Images(other, shape)))
    assert "data.files names 300 files of 74,850 bytes on mercer/cpu, and 300 files of 74,587 bytes on nas/cpu" in text
    assert told(wrapped(Images(same, shape)), wrapped(Images(again, shape))) == ""


def test_a_file_that_is_missing_and_contents_of_the_same_size_are_told_of(tmp_path: Path) -> None:
    class Tokens(Dataset[Any]):
        def __init__(self, path: Path) -> None:
            self.path, self.name, self.length = path, "tokens", 3

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(1)

    one, other = tmp_path / "one", tmp_path / "other"
    numbers = np.arange(100_000)
    numbers.tofile(one)
    numbers[::100] += 1  # in one of a hundred rows
    numbers.tofile(other)
    assert "as many, with other contents," in told(Tokens(one), Tokens(other))
    assert told(Tokens(one), Tokens(one)) == ""
    same, fewer = made(tmp_path / "a", None, b""), made(tmp_path / "b", None, b"")
    data, rest = Images(same, SHAPES[0]), Images(fewer, SHAPES[0])
    (fewer / "299.png").unlink()
    assert "299 files of" in told(data, rest)


def test_a_data_set_without_files_names_none() -> None:
    assert named_by(datasets.as_dataset([(torch.zeros(2), 1)])) == {}
    assert named_by(datasets.as_dataset((torch.zeros(4, 2), torch.zeros(4)))) == {}
