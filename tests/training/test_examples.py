"""The jobs in ``examples/`` train as their commands say, and learn."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hetero_tui.runs.order import read_order
from remote_agent.protocol import JOB_ARCHIVE, DeviceSpec, RunSpec, encode
from remote_agent.runs import list_runs
from remote_agent.training.checkpoint import checkpoint
from tests.specs import node_spec
from tests.training import loopback
from tests.training.conftest import Launch, Run
from tests.training.loopback import ROOT, Cluster

EXAMPLES = ROOT / "examples"
SCRIPT_S = 120.0
RAY_SCRIPTS_S = 240.0
"""All of the documents' at once: Ray Train's processes load for half a minute on a busy computer."""


def text(file: str) -> str:
    return (EXAMPLES / file).read_text(encoding="utf-8")


def trained(launch: Launch, folder: Path, file: str, beside: dict[str, bytes], most: int, **settings: Any) -> Run:
    """A run of the command in the example's docstring, on workers a and b, to its end.

    Args:
        launch: the fixture.
        folder: a new one, whose name is the run's.
        file: the example's.
        beside: the files of ``--with``, by name.
        most: samples of a step that each of the two can take: less than a batch, so that neither does it alone.
        settings: of ``--set``.
    """
    (command,) = re.findall(
        rf"^    hetero-tui train (examples/{file}:\w+)((?: --with \S+)*)$", text(file), re.MULTILINE
    )
    job, names = command[0], command[1].split()[1::2]
    assert set(names) == set(beside)
    folder.mkdir()
    for name, content in beside.items():
        (folder.parent / name).write_bytes(content)
    order = read_order(str(ROOT / job), (), [str(folder.parent / name) for name in names])
    assert order.code is not None
    (folder / JOB_ARCHIVE).write_bytes(order.code.archive())
    settings = {"checkpoint_seconds": 0.0, "measure_seconds": 0.05, "limits": {"a": most, "b": most}} | settings
    run = launch(order.job.reference, "ab", **settings)
    assert run.folder == folder
    assert run.finish()[0] == 0, run.events()[-1]
    assert {work["worker"] for step in run.of_kind("step") for work in step["workers"]} == {"a/cpu", "b/cpu"}
    return run


def losses(run: Run) -> list[float]:
    """Of each step."""
    return [event["loss"] for event in run.of_kind("step")]


def validated(run: Run) -> dict[str, float]:
    """The figures of the last evaluation on the validation data."""
    figures: dict[str, float] = run.of_kind("evaluated")[-1]["metrics"]
    return figures


def saved(run: Run) -> Path:
    """The weights at the end."""
    return Path(run.of_kind("run_finished")[0]["checkpoint"])


def parts_of(weights: dict[str, Tensor], *prefixes: str) -> list[Tensor]:
    """The tensors of some modules, ordered by name."""
    return [weights[name] for prefix in prefixes for name in sorted(weights) if name.startswith(f"{prefix}.")]


@pytest.mark.ray
@pytest.mark.long
def test_images_are_told_apart_and_finetune_starts_from_these_weights(launch: Launch, tmp_path: Path) -> None:
    run = trained(launch, tmp_path / "run0", "images.py", {}, 96, num_iterations=60)
    assert validated(run)["accuracy"] > 0.94
    assert sum(losses(run)[-5:]) < 0.2 * sum(losses(run)[:5])

    beside = {"digits.safetensors": saved(run).read_bytes()}
    tuned = trained(launch, tmp_path / "run1", "finetune.py", beside, 96, num_iterations=20)
    assert validated(tuned)["accuracy"] > 0.97
    before, after = checkpoint.load(saved(run)), checkpoint.load(saved(tuned))
    frozen = parts_of(before, "stem", "first"), parts_of(after, "trunk.0", "trunk.1")
    assert len(frozen[0]) == 18, "weights and statistics of three convolutions and of what normalises after them"
    assert all(torch.equal(one, other) for one, other in zip(*frozen, strict=True))
    assert not torch.equal(before["last.shortcut.weight"], after["last.shortcut.weight"])


@pytest.mark.ray
def test_language_is_learned_from_a_text_and_a_sample_is_written(launch: Launch, tmp_path: Path) -> None:
    pages = b"".join(path.read_bytes() for path in sorted((ROOT / "docs").glob("*.md")))
    run = trained(launch, tmp_path / "run0", "language.py", {"text.txt": pages}, 24, num_iterations=60)
    assert losses(run)[0] > 5.0
    assert validated(run)["val_loss"] < 3.2, "that of the bytes' frequencies is 3.3"
    # What the model writes may hold line breaks: the log continues a message on indented lines, or as it was printed.
    assert len((run.folder / "coordinator.log").read_text().partition(" sample: ")[2]) >= 180


@pytest.mark.ray
def test_ray_data_is_trained_on(launch: Launch, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="Ray Data needs pyarrow: pip install -e '.[data]'")
    run = trained(launch, tmp_path / "run0", "ray_data.py", {}, 192, num_iterations=100)
    assert validated(run)["accuracy"] > 0.9
    assert run.of_kind("evaluated")[-1]["samples"] == 600


@pytest.mark.ray
def test_script_trains_on_a_cluster_that_runs_and_uses_the_result(cluster: Cluster, tmp_path: Path) -> None:
    (file,) = re.findall(r"^    RAY_ADDRESS=\S+ python (examples/script\.py) ", text("script.py"), re.MULTILINE)
    done = subprocess.run(
        [sys.executable, ROOT / file],
        cwd=tmp_path,
        env=cluster.environment | {"RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, last, error = map(float, re.findall(r"\b\d\.\d{3}\b", done.stdout))
    assert last < 0.4 * first
    assert error < 0.4, "1.0 is that of the mean"
    assert (tmp_path / re.findall(r"checkpoint (\S+)", done.stdout)[0]).is_file()


@pytest.mark.ray
@pytest.mark.long
def test_scripts_of_the_documents_find_the_cluster_and_its_devices() -> None:
    pytest.importorskip("pyarrow", reason="Ray Data needs pyarrow: pip install -e '.[data]'")
    with loopback.running("abc", encrypted=True) as cluster:
        scripts_of_the_documents(cluster)


def scripts_of_the_documents(cluster: Cluster) -> None:
    host, _, port = cluster.address.rpartition(":")
    (cluster.folder / "node.json").write_text(
        encode(replace(node_spec("a", "head"), node_address=host, head_address=host, gcs_port=int(port)))
    )
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/raw-ray.md").read_text(encoding="utf-8"), re.DOTALL)
    texts = {"where": blocks[0], "train": blocks[1], "data": blocks[2]}
    started: dict[str, subprocess.Popen[bytes]] = {}
    for name, written in texts.items():
        place = cluster.folder / "runs" / name
        place.mkdir(parents=True)
        with zipfile.ZipFile(place / JOB_ARCHIVE, "w") as archive:
            archive.writestr("code/script.py", written)
        devices = tuple(DeviceSpec(host=each, device="cpu", name="test") for each in "abc")
        spec = RunSpec(
            run=name,
            job="script.py",
            cluster="test",
            host="a",
            server_host="a",
            ray_address=cluster.address,
            node_address=host,
            devices=devices,
            script=True,
            arguments=("--lr", "1"),
        )
        (place / "run.json").write_text(encode(spec))
        words = [sys.executable, "-m", "remote_agent.raw_ray", "script", str(place)]
        started[name] = subprocess.Popen(words, env=cluster.environment, stdin=subprocess.DEVNULL)
    try:
        codes = {name: process.wait(RAY_SCRIPTS_S) for name, process in started.items()}
    finally:
        for process in started.values():
            process.terminate()  # which ends its script, where one did not end
            process.wait()
    said = {name: (cluster.folder / "runs" / name / "script.log").read_text() for name in texts}
    assert codes == dict.fromkeys(texts, 0), said
    assert re.findall("cpu of (.*)", said["where"]) == ["a", "b", "c"]
    assert "'workers': 3" in said["train"]
    assert "Ray Data: 332833500" in said["data"]
    summaries = {run.id: (run.state, run.script) for run in list_runs(cluster.folder).runs}
    assert summaries == dict.fromkeys(texts, ("finished", True))
