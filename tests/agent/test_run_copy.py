"""Another machine's copy of a run's folder is whole at every moment, and holds nothing of a head that was replaced."""

from pathlib import Path

import pytest

from remote_agent.protocol import CLUSTER_MARK
from remote_agent.run_copy import RunCopy, digest
from remote_agent.runs import newest_checkpoint


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCopy:
    monkeypatch.setenv(CLUSTER_MARK, str(tmp_path))
    return RunCopy("digits-1")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "digits-1"


def send_checkpoint(copy: RunCopy, step: int, keep: int = 2) -> None:
    names = [f"step-{step:08d}.json", f"step-{step:08d}.safetensors"]
    for name in names:
        copy.write(name, 0, b"abc")
        copy.write(name, 3, b"def")
    copy.publish(names, keep)


def names(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "checkpoints").iterdir())


def test_lines_are_added_where_the_copy_ends(copy: RunCopy, place: Path) -> None:
    copy.replace("events.jsonl", b"1\n2\n")
    assert copy.append("events.jsonl", 4, b"3\n") == 6
    assert (place / "events.jsonl").read_bytes() == b"1\n2\n3\n"
    assert copy.append("events.jsonl", 2, b"x\n") == 4
    assert (place / "events.jsonl").read_bytes() == b"1\nx\n"


def test_a_copy_that_lacks_lines_is_not_continued_with_a_gap(copy: RunCopy, place: Path) -> None:
    copy.replace("events.jsonl", b"1\n")
    with pytest.raises(ValueError, match="2 bytes"):
        copy.append("events.jsonl", 4, b"3\n")
    assert (place / "events.jsonl").read_bytes() == b"1\n"


def test_what_is_there_from_before_is_known_and_continued(copy: RunCopy, place: Path, tmp_path: Path) -> None:
    head = tmp_path / "events.jsonl"
    head.write_bytes(b"1\n2\n3\n")
    nothing = digest(head, 0)
    assert copy.known("events.jsonl", 6) == (0, nothing)
    copy.append("events.jsonl", 0, b"1\n2\n")
    assert copy.known("events.jsonl", 6) == (4, digest(head, 4))
    copy.append("events.jsonl", 4, b"3\n")
    assert copy.known("events.jsonl", 6) == (6, digest(head, 6))
    copy.append("events.jsonl", 6, b"of a head that was replaced\n")
    assert copy.known("events.jsonl", 6) == (6, digest(head, 6)), "what the head has is compared"
    copy.append("events.jsonl", 6, b"")
    assert (place / "events.jsonl").read_bytes() == head.read_bytes()
    copy.append("events.jsonl", 2, b"x\n3\n")
    assert copy.known("events.jsonl", 6) != (6, digest(head, 6))


def test_a_checkpoint_counts_once_it_is_whole(copy: RunCopy, place: Path) -> None:
    copy.write("step-00000005.json", 0, b"{}")
    assert newest_checkpoint(place) is None
    send_checkpoint(copy, 5)
    assert newest_checkpoint(place) == 5
    assert (place / "checkpoints" / "step-00000005.safetensors").read_bytes() == b"abcdef"


def test_the_newest_checkpoints_are_kept_and_nothing_half_written(copy: RunCopy, place: Path) -> None:
    copy.write("step-00000001.json", 0, b"{}")
    for step in (5, 10, 15):
        send_checkpoint(copy, step)
    assert names(place) == [
        "step-00000010.json",
        "step-00000010.safetensors",
        "step-00000015.json",
        "step-00000015.safetensors",
    ]


def test_checkpoints_of_a_head_that_was_replaced_do_not_stay(copy: RunCopy, place: Path) -> None:
    send_checkpoint(copy, 5)
    send_checkpoint(copy, 80)
    copy.begin(10)
    assert names(place) == ["step-00000005.json", "step-00000005.safetensors"]
    copy.begin(-1)
    assert names(place) == []
