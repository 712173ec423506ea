"""The commands that README, docs/ and the examples show work as they stand there, but for names and lengths.

One lab, one cluster; the tests tell one story in the file's order. Commands to a run under way are in
``test_end_to_end.py``; from bare machines to a fleet, ``test_from_nothing.py`` takes the page about hosts. What is
planned, trained and found has tests of its own: here each command, with each of its options, has to do what stands
beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

import pytest
from safetensors.torch import load_file

from remote_agent import protocol
from tests.documents import block_of
from tests.lab.following import Following
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec, login
from tests.lab.mounts import REPOSITORY
from tests.lab.product import HeteroTui
from tests.lab.reader import Reader

pytestmark = [pytest.mark.long, pytest.mark.lab, pytest.mark.ray]

SHORT = ("--set", "num_iterations=3", "--set", "measure_seconds=0.1")
STARTED = re.compile(r"^([\w-]+-\w+) is on its way", re.MULTILINE)

JOB = """
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Mine:
    depth: int = 2


class Job:
    settings = Mine()

    def create_model(self):
        return nn.Sequential(*[nn.Linear(8, 8) for _ in range(self.settings.depth)])

    def create_data(self):
        return torch.randn(64, 8), torch.randint(8, (64,))

    create_validation_data = create_data
"""

SCRIPT = """
import sys
from pathlib import Path

import ray

ray.init(logging_level="ERROR")
print(sys.argv[1:], len(ray.nodes()), [path.name for path in Path().glob("data/*")])
"""


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    specs = [HostSpec(name=name, simulated_speed=speed, cpus=1) for name, speed in (("mercer", 1), ("studio", 0.9))]
    with Lab([*specs, HostSpec(name="nas", simulated_speed=0.8, cpus=1)], rate_mbit=1000) as lab:
        yield lab


@pytest.fixture(scope="module")
def reader(product: HeteroTui) -> Reader:
    """With the cluster up."""
    reader = Reader(product, {"examples/": f"{REPOSITORY}/examples/"})
    assert "cluster lab is up, head mercer" in reader.run("hetero-tui up")
    return reader


@pytest.fixture(scope="module")
def run(reader: Reader, product: HeteroTui) -> str:
    """A run of ``text`` that was stopped, with the moving average of its weights."""
    kept = ("--set", "ema_decay=0.9")
    with Following(product, *reader.words("hetero-tui train text --set num_iterations=500", *kept)) as training:
        training.until(protocol.Step)
        reader.names |= {"text-7f3a": training.run, "text-7f3": training.run}
        assert f"{training.run} is stopped at step" in reader.run("hetero-tui stop text-7f3a")
    return training.run


def started(said: str) -> str:
    """The name of the run that a command said it started."""
    found = STARTED.search(said)
    assert found is not None, said
    return found[1]


def generated(lab: Lab, printed: Iterable[str]) -> list[str]:
    """The pieces that the line for ``/generate`` which ``serve`` prints gives in a shell."""
    line = next(line for line in printed if "/generate" in line)
    return re.findall(r"^data: (.*)", lab.laptop.run(["sh", "-c", line]).stdout, re.MULTILINE)


def test_machines_are_added_looked_at_and_taken_out(lab: Lab, reader: Reader, product: HeteroTui) -> None:
    home, studio = lab.laptop.home, lab.host("studio").address
    (home / ".ssh/config").write_text("Host *.local\n  User x\nHost nas\n  HostName nas\n")
    empty = HeteroTui(lab.laptop, home / "new/inventory.yaml")
    empty.inventory.parent.mkdir()
    names = {"me@": f"{login().pw_name}@", "mercer.local": "mercer", "192.168.1.12:2222": f"{studio}:22"}
    new = Reader(empty, names | {"~/.ssh/lab": "~/.ssh/id_ed25519"})
    assert "mercer is in " in new.run("hetero-tui add me@mercer.local")
    assert " is in " in new.run("hetero-tui add me@192.168.1.12:2222 --identity-file ~/.ssh/lab")
    assert empty.run("add", "nas").returncode == 0  # a Host of ~/.ssh/config
    assert re.findall(r"^  ([\w-]+):", empty.inventory.read_text(), re.MULTILINE)[::2] == ["mercer", "nas"]
    assert "nas is no longer in " in new.run("hetero-tui remove nas")
    assert "nas" not in empty.inventory.read_text()
    (home / ".ssh/config").unlink()
    assert len(re.findall(r"^(?:mercer|studio|nas) .* Mbit/s", reader.run("hetero-tui check"), re.MULTILINE)) == 3
    assert "nas" in reader.run("hetero-tui probe")


def test_a_run_is_shown_and_its_figures_and_weights_are_taken_elsewhere(lab: Lab, reader: Reader, run: str) -> None:
    home = lab.laptop.home
    said = reader.at_once(
        [
            "hetero-tui status",
            "hetero-tui runs",
            "hetero-tui attach text-7f3",
            "hetero-tui attach text-7f3a",
            "hetero-tui report text-7f3 --output text.html",
            "hetero-tui export text-7f3 --format safetensors",
            "hetero-tui --help",
        ]
    )
    assert "cluster lab: up, head mercer" in said["hetero-tui status"]
    assert run in said["hetero-tui runs"]
    for shown in ("hetero-tui attach text-7f3", "hetero-tui attach text-7f3a"):
        assert re.search(r"^step +1/500 ", said[shown], re.MULTILINE)
    assert "<svg" in (home / "text.html").read_text()
    assert load_file(home / f"{run}.safetensors")
    assert "bootstrap" in said["hetero-tui --help"]
    best = reader.run("hetero-tui export text-7f3 --format pt --weights best", code=1)
    assert "no best checkpoint was kept -> set keep_best" in best
    with reader.staying("hetero-tui serve text-7f3 --weights average") as served:
        assert served.stdout is not None
        assert "on cpu of mercer" in served.stdout.readline()
        assert len(generated(lab, served.stdout)) > 1
    recordings = sorted((home / ".local/state/hetero-tui/recordings").glob("*.jsonl"))
    again = Reader(HeteroTui(lab.laptop, home / "none.yaml"), {"lab-20261123-103409-812.jsonl": str(recordings[0])})
    for shown in ("hetero-tui replay", "hetero-tui replay lab-20261123-103409-812.jsonl", "hetero-tui replay --plain"):
        assert "cluster lab" in again.run(shown)
    for shown in ("hetero-tui --show-completion", "hetero-tui --install-completion"):
        done = lab.laptop.run(["bash", "-c", f"{shown}; exit $?"])  # it asks which shell it was started by
        assert done.returncode == 0, done.stderr
        assert "complet" in done.stdout
    assert "hetero-tui" in (home / ".bashrc").read_text()


def test_a_job_is_planned(lab: Lab, reader: Reader, product: HeteroTui) -> None:
    (lab.laptop.home / "lab.yaml").write_text(block_of(REPOSITORY / "docs/planning.md", "yaml", "parameters:"))
    for shown in (
        "hetero-tui plan text",
        "hetero-tui plan text --what-if link=wifi --what-if without=nas",
        "hetero-tui plan text --fleet lab.yaml",
        "hetero-tui plan text --allow inexact",
    ):
        assert re.search("^use .* a step", reader.run(shown), re.MULTILINE), shown
    done = product.run(*reader.words("hetero-tui plan text --set batch_size=96 --json"))
    assert json.loads(done.stdout)["batch"] == 96


def test_a_job_is_trained(lab: Lab, reader: Reader) -> None:
    (lab.laptop.home / "text.txt").write_text("of sheep and men " * 6000)
    reader.run("hetero-tui train examples/language.py:Language --with text.txt", *SHORT)
    run = started(reader.run("hetero-tui train text --log-to csv", *SHORT))
    assert (lab.host("mercer").home / f".hetero-tui/lab/runs/{run}/steps.csv").read_text().count("\n") == 4


def test_hugging_face_weights_are_trained_exported_and_served(lab: Lab, reader: Reader) -> None:
    tiny_models = pytest.importorskip("tests.jobs.tiny_models", reason="needs transformers: pip install -e '.[hf]'")
    for host in lab.hosts:
        tiny_models.save(host.home / "models/qwen", "Qwen2")
    notes = "".join(json.dumps({"text": line}) + "\n" for line in tiny_models.text(200).splitlines())
    (lab.host("mercer").home / "notes.jsonl").write_text(notes)
    shown = (
        "hetero-tui train hf-lm --set model=~/models/qwen --set data=~/notes.jsonl --set lora_rank=16"
        " --set quantize=nf4"
    )
    run = started(reader.run(shown, *SHORT, "--set", "context=8", "--set", "batch_size=8"))
    reader.names |= {"hf-lm-7f3": run, "--host nas": "--host mercer"}  # its head holds its newest checkpoint
    reader.run("hetero-tui export hf-lm-7f3 --format merged --output tuned")
    assert list((lab.laptop.home / "tuned").glob("*.safetensors"))
    with reader.staying("hetero-tui serve hf-lm-7f3 --host nas --device cpu --port 8000") as served:
        assert served.stdout is not None
        assert f"{run}, step 3, on cpu of mercer" in served.stdout.readline()
        assert len(generated(lab, served.stdout)) > 1


def test_settings_are_searched_for_and_the_best_are_trained_with(lab: Lab, reader: Reader) -> None:
    (lab.laptop.home / "job.py").write_text(JOB)
    said = reader.run("hetero-tui sweep digits --param lr=1e-4..1e-2:log --trials 20", *SHORT, "--trials", "3")
    assert "trains with the best settings on all devices" in said
    shown = "hetero-tui sweep job.py:Job --param depth=2..8 --by max:accuracy --set evaluate_every=50"
    said = reader.run(shown, *SHORT, "--trials", "3")
    reader.names["sweep-digits-7f3"] = started(said)
    assert "depth=" in reader.run("hetero-tui train --from sweep-digits-7f3", *SHORT)


def test_scripts_and_rays_own_commands_run_on_the_cluster(lab: Lab, reader: Reader) -> None:
    home = lab.laptop.home
    (home / "tune.py").write_text(SCRIPT)
    (home / "data").mkdir()
    (home / "data/one.txt").write_text("1")
    assert "['--trials', '20'] 3 []" in reader.run("hetero-tui run tune.py --trials 20")
    assert "[] 3 []" in reader.run("hetero-tui run tune.py")
    assert "[] 3 ['one.txt']" in reader.run("hetero-tui run --with data tune.py")
    assert "Active:" in reader.run("hetero-tui ray status")
    assert "object" in reader.run("hetero-tui ray memory").lower()


def test_all_is_taken_down(lab: Lab, reader: Reader) -> None:
    assert "nothing of ours runs any more" in reader.run("hetero-tui down", "--yes")
