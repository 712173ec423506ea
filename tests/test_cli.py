"""The command line as scripts see it: exit codes, what is on stdout and what on stderr, and no escape codes."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero_tui import events
from hetero_tui.__main__ import inventory_first
from hetero_tui.fold import apply
from hetero_tui.recording.recorder import Recorder
from hetero_tui.state import initial
from tests.documents import ROOT, block_of


def test_a_missing_inventory_says_how_to_make_one(cli) -> None:
    cli.inventory.unlink()
    done = cli("probe")
    assert done.returncode == 2
    assert "inventory.yaml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("train", "no-such-job"),
        ("train", "digits", "--set", "oops"),
        ("train", "missing.py:Job"),
        ("probe", "--no-such-flag"),
        ("no-such-command",),
        (),
    ],
)
def test_wrong_usage_is_exit_code_2_and_no_traceback(cli, words: tuple[str, ...]) -> None:
    done = cli(*words)
    assert done.returncode == 2, done.stderr
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_every_mistake_in_an_order_is_told_at_once_before_anything_is_opened(cli) -> None:
    cli.inventory.unlink()  # it is not even read
    done = cli(
        "train", "digit", "--set", "batchsize=8", "--set", "seed=x", "--set", "learning_rate=nan", "--set", "oops"
    )
    assert done.returncode == 2
    assert done.stdout == ""
    for said in ("'digits'", "'batch_size'", "seed=x: expected", "learning_rate=nan: expected", "'oops' is not key"):
        assert said in done.stderr


def test_a_script_that_does_not_say_yes_tears_nothing_down(cli) -> None:
    done = cli("down")
    assert done.returncode == 2
    assert "--yes" in done.stderr


def test_a_pipe_gets_no_escape_codes(cli) -> None:
    done = cli("probe")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "laptop" in done.stdout


def test_without_a_cluster_there_is_nothing_to_attach_to_or_to_stop(cli) -> None:
    for words in (("attach",), ("attach", "text-0000"), ("stop", "text-0000")):
        done = cli(*words)
        assert done.returncode == 1
        assert "run" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_recording_is_told_in_a_pipe_and_anything_else_is_refused(cli) -> None:
    recorder = Recorder(cli.home / "kept")
    recorder.begin(initial("lab", (("nas", "10.0.0.2"),)))
    before = initial("lab", (("nas", "10.0.0.2"),))
    event = events.HostLost(time=1.0, host="nas", cause="no answer")
    recorder(event, before, apply(before, event))
    recorder.close()
    done = cli("replay", str(recorder.path))
    assert done.returncode == 0, done.stderr
    assert "nas is unreachable: no answer" in done.stderr
    assert done.stdout.endswith("cluster lab\n"), "the session never saw its state"
    document = json.loads(cli("replay", str(recorder.path), "--json").stdout)
    assert [(host["name"], host["state"]) for host in document["hosts"]] == [("nas", "unreachable")]
    assert document["cluster"]["state"] is None
    for file in (str(cli.inventory), str(cli.home / "none")):
        done = cli("replay", file)
        assert done.returncode == 2
        assert file in done.stderr
        assert "Traceback" not in done.stderr
    assert "no recording" in cli("replay").stderr


@pytest.mark.parametrize(
    ("words", "sorted_words"),
    [
        (["up", "-i", "a.yaml", "--json"], ["-i", "a.yaml", "up", "--json"]),
        (["train", "digits", "--inventory=a.yaml"], ["--inventory=a.yaml", "train", "digits"]),
        (["-i", "a.yaml", "up"], ["-i", "a.yaml", "up"]),
        (["up", "--", "-i", "b"], ["up", "--", "-i", "b"]),
        (["up", "-i"], ["-i", "up"]),
        (["-i", "a", "run", "x.py", "-i", "b"], ["-i", "a", "run", "x.py", "-i", "b"]),
        (["-i", "run", "ray", "list", "-i", "b"], ["-i", "run", "ray", "list", "-i", "b"]),
        (["logs", "-i", "run"], ["-i", "run", "logs"]),
    ],
)
def test_the_inventory_may_be_named_anywhere(words: list[str], sorted_words: list[str]) -> None:
    assert inventory_first(words) == sorted_words


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("hetero-tui undr", "undrain"),
        ("hetero-tui drain lap", "laptop"),
        ("hetero-tui train dig", "digits"),
        ("hetero-tui train digits --set batch_", "batch_size="),
    ],
)
def test_a_shell_completes_commands_hosts_jobs_and_settings(cli, words: str, found: str) -> None:
    asked = {
        "_HETERO_TUI_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "HETERO_TUI_INVENTORY": str(cli.inventory),
    }
    done = subprocess.run(
        [sys.executable, "-m", "hetero_tui"],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.split() == [found]


SCRIPT = """
import sys, time
import ray
import helper

@ray.remote
def there():
    import helper  # Ray brought it
    return helper.number()

ray.init(logging_level="ERROR")
print(sys.argv[1:], ray.get(there.remote()))
if "--wait" in sys.argv:
    time.sleep(3600)
sys.exit(3)
"""


@pytest.mark.ray
def test_the_model_in_readme_trains_up_finds_its_cluster_and_scripts_exports_and_down_work_on_this_computer(
    cli, tmp_path: Path
) -> None:
    job = tmp_path / "my_job.py"
    job.write_text(block_of(ROOT / "README.md", "python", "# my_job.py"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("def number():\n    return 1\n")
    try:
        trained = cli("train", f"{job}:job")  # which brings the cluster up
        assert trained.returncode == 0, trained.stderr
        losses = [float(loss) for loss in re.findall(r"loss +(\d+\.\d+)", trained.stdout)]
        assert losses[-1] < 0.7 * losses[0], trained.stdout
        first = cli("up", "--json")
        assert first.returncode == 0, first.stderr
        assert json.loads(first.stdout)["cluster"] == {"state": "up", "head": "laptop"}
        record = cli.home / ".hetero-tui/here/processes/ray.json"
        pid = json.loads(record.read_text())["pid"]
        assert cli("up").returncode == 0
        assert json.loads(record.read_text())["pid"] == pid, "the second up left the node alone"
        status = json.loads(cli("status", "--json").stdout)
        assert status["cluster"] == {"state": "up", "head": "laptop"}
        assert [(host["name"], host["state"]) for host in status["hosts"]] == [("laptop", "up")]
        ((name, steps),) = [(one["id"], one["step"]) for one in status["runs"]]
        token = (cli.home / ".hetero-tui/here/token").read_text()
        everything = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        assert token not in everything, "the secret is on no command line"
        deadline = time.monotonic() + 30  # until Ray's autoscaler has reported for the first time
        while "Active:" not in (said := cli("ray", "status")).stdout:
            assert said.returncode == 0, said.stderr
            assert time.monotonic() < deadline, said.stdout
        said = cli("run", "--plain", str(script), "--json", "1")
        assert (said.returncode, said.stdout) == (1, "['--json', '1'] 1\n"), said.stderr
        assert "script.py ended with exit status 3" in said.stderr
        with cli.start("run", str(script), "--wait") as waiting:
            assert waiting.stdout.readline() == "['--wait'] 1\n", waiting.stderr.read()
            (*_, run) = json.loads(cli("runs", "--json").stdout)["runs"]
            assert (run["job"], run["state"]) == ("script.py", "running")
            assert cli("stop", run["id"]).returncode == 0
            assert waiting.wait(60) == 0
        assert cli("attach").stdout.startswith("['--wait'] 1\n")
        shutil.rmtree(cli.home / ".local/state/hetero-tui/recordings")  # `attach` is recorded
        runs = cli.home / ".hetero-tui/here/runs"
        target = tmp_path / "out" / "taken.safetensors"
        target.parent.mkdir()
        done = cli("export", name, "--format", "safetensors", "--output", str(target))
        assert done.stdout == f"{name}: {target} (step {steps})\n", done.stderr
        assert target.read_bytes() == (runs / name / f"checkpoints/step-{steps:08}.safetensors").read_bytes()
        assert [path.name for path in target.parent.iterdir()] == [target.name]
        done = cli("export", name, "--format", "peft")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{name}: this run trained no adapters -> " in done.stderr
        for kept in (runs, runs.parent / "profiles"):  # which `down` leaves
            shutil.rmtree(kept)
    finally:
        down = cli("down", "--yes", "--json")
    assert down.returncode == 0, down.stderr
    report = json.loads(down.stdout)
    assert report["leftovers"] == []
    assert {"host": "laptop", "kind": "process", "detail": "ray"} in report["removed"]
    assert sorted(path.name for path in cli.home.iterdir()) == [".cache", ".local", "inventory.yaml"]
    assert list((cli.home / ".local/state/hetero-tui").iterdir()) == []
