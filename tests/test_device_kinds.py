"""A kind of device is one row of a table, by which the probe, the inventory, the builds and the engine know it."""

import re
from pathlib import Path

import pytest
import torch

from hetero_tui.facts import parse_facts
from hetero_tui.inventory.schema import Host
from hetero_tui.planning.builds import torch_build
from remote_agent import probe
from remote_agent.device_kinds import KINDS, NUMBERED, TORCH_NAMES, built_for
from remote_agent.host import verify
from remote_agent.training.worker.device import backend

EVERY = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


def test_a_kind_is_named_where_it_is_found_where_it_computes_and_in_the_table() -> None:
    """A further one, such as Intel's, touches these files and the one that reads its use."""
    package = Path(probe.__file__).parent
    sources = [path for folder in (package, package.parent / "hetero_tui") for path in folder.rglob("*.py")]
    named = {path.name for path in sources if re.search(r"""["']xpu""", path.read_text(encoding="utf-8"))}
    assert named == {"device_kinds.py", "probe.py", "backend.py"}


@EVERY
def test_a_device_that_is_found_may_be_named_in_the_inventory_and_has_a_build_and_a_backend(make_facts, kind):
    card = {"kind": kind.name, "index": 0, "name": "A card", "driver": "580.1", "capability": "8.6"}
    facts = make_facts(accelerators=[card])
    (name,) = facts.devices
    assert name == kind.device(0)
    assert Host(name="a", address="b", devices=(name,)).devices == (name,)
    assert torch_build(facts).name.startswith(kind.build)
    assert kind.torch in backend.BACKENDS
    assert backend.of(torch.device(name)).kind == kind.torch


@pytest.mark.parametrize(
    ("build", "read"),
    [
        (None, ("cuda", "xpu", "mps")),
        ("cpu", ("cuda", "xpu", "mps")),
        ("cu126", ("cuda", "xpu", "mps")),
        ("rocm7.2", ("rocm", "xpu", "mps")),
        ("xpu", ("cuda", "xpu", "mps")),
        ("mps", ("cuda", "xpu", "mps")),
    ],
)
def test_of_two_kinds_that_torch_calls_the_same_the_one_that_it_is_built_for_counts(build, read):
    assert tuple(kind.name for kind in built_for(build)) == read
    assert {kind.torch for kind in built_for(build)} == set(TORCH_NAMES)


@pytest.mark.parametrize("name", [*(f"{each}:1" for each in NUMBERED), *TORCH_NAMES, "cpu"])
def test_the_inventory_takes_a_kind_and_one_of_several(name):
    assert Host(name="a", address="b", devices=(name,)).devices == (name,)


@pytest.mark.parametrize("name", ["gpu", "mps:0", "rocm", "cpu:1", "cuda:", "cuda:x", "xcuda", "cuda:0:0"])
def test_the_inventory_takes_no_other_names(name):
    with pytest.raises(ValueError, match="devices"):
        Host(name="a", address="b", devices=(name,))


def test_a_kind_that_nothing_here_knows_is_a_bad_answer_of_the_probe(make_facts):
    raw = make_facts().model_dump() | {"accelerators": [{"kind": "tpu", "name": "v4"}]}
    with pytest.raises(ValueError, match=r"bad field accelerators\.0\.kind"):
        parse_facts(raw)


@pytest.mark.parametrize(
    ("kind", "count", "names"), [("cuda", 1, ["cuda:0"]), ("xpu", 2, ["xpu:0", "xpu:1"]), ("mps", 1, ["mps"])]
)
def test_a_new_environment_finds_every_device_that_its_torch_is_built_for(monkeypatch, kind, count, names):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    assert verify._devices(torch) == ["cpu", *names]
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert verify._devices(torch) == ["cpu"]


def test_a_new_environment_is_tried_on_the_cpu_and_the_devices_that_train_and_on_no_other(monkeypatch, capsys):
    monkeypatch.setattr(verify, "_devices", lambda torch: ["cpu", "meta", "cuda:0"])
    first, second, third = verify._tried(["meta", "cuda:1"])
    assert capsys.readouterr().out.splitlines() == ["trying cpu", "trying meta", "trying cuda:1"]
    assert (first["device"], first["error"]) == ("cpu", "")
    assert second["error"], "it holds no numbers"
    assert third["error"] == f"torch {torch.__version__} does not find it"
