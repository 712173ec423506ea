"""The probe as a whole: on this computer, and with vendors' programs on PATH that hang, fail or print garbage."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import vermin

from remote_agent import probe

PROBE = Path(probe.__file__)


def _probe(python: str, *arguments: str, **environment: str) -> dict:
    with PROBE.open() as file:
        done = subprocess.run(
            [python, "-", *arguments],
            stdin=file,
            capture_output=True,
            text=True,
            timeout=90,
            env=os.environ | environment,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith('{"probe":')
    return json.loads(line)


def _python(version: str) -> str:
    """A working Python of this version on this computer, on PATH or installed by pyenv; else the test is skipped."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in (shutil.which(f"python{version}"), *map(str, installed)):
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip(f"no Python {version} on this computer")


@pytest.mark.parametrize("name", ["probe.py", "host/hold.py"])
def test_what_a_hosts_own_python_runs_needs_no_newer_one_than_the_probe_says(name: str) -> None:
    """By its grammar and its use of the standard library; annotations that are never evaluated do not count."""
    source = (Path(probe.__file__).parent / name).read_text()
    config = vermin.Config()
    config.set_eval_annotations("from __future__ import annotations" not in source)
    _, needed = vermin.detect(source, config=config)
    assert needed <= probe.OLDEST_PYTHON


def _program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_this_computer_is_described_as_it_is(tmp_path):
    facts = _probe(sys.executable, "--folder", str(tmp_path / "not" / "yet"))

    assert facts["hostname"] == socket.gethostname()
    assert facts["home"] == str(Path.home())
    assert facts["python"]["version"] == ".".join(str(part) for part in sys.version_info[:3])
    assert facts["cpu"]["logical"] == os.cpu_count()
    assert facts["memory"]["total_bytes"] <= psutil.virtual_memory().total
    assert 0 < facts["memory"]["available_bytes"] <= facts["memory"]["total_bytes"]
    assert facts["disk"]["path"] == str(tmp_path)
    assert facts["disk"]["total_bytes"] == shutil.disk_usage(tmp_path).total
    assert abs(facts["clock"] - time.time()) < 10
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    assert {entry["address"] for entry in facts["addresses"]} <= own
    assert facts["problems"] == []


def test_versions_are_told_without_importing_the_packages():
    from importlib.metadata import version

    with PROBE.open() as file:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-"],
            stdin=file,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    facts = json.loads(done.stdout)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "json" in imported
    assert imported.isdisjoint({"ray", "torch"})
    assert "importlib.metadata" not in imported, "it takes a third of the probe's processor time"
    assert facts["packages"]["ray"] == version("ray")
    assert facts["packages"]["torch"] == version("torch")
    assert facts["torch_build"] in {"cpu", "mps"} or facts["torch_build"].startswith(("cu", "rocm"))


def test_packages_are_found_whoever_installed_them(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    files = {
        first / "torch-2.9.0a0+git1234.dist-info/METADATA": "Name: torch\nVersion: 2.9.0a0+git1234\n",
        first / "torch/version.py": "__version__ = '2.9.0a0+git1234'\ncuda: str = '12.6'\n",
        first / "psutil-5.9.4.egg-info": "Metadata-Version: 1.1\nName: psutil\nVersion: 5.9.4\n",  # of Debian's package
        first / "numpy-1.0.dist-info/INSTALLER": "pip\n",  # what is left of one that was removed
        second / "numpy.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: numpy\nVersion: 1.24.2\n\nVersion: none\n",
        second / "torch-1.0.dist-info/METADATA": "Name: torch\nVersion: 1.0\n",
        second / "rayon-9.dist-info/METADATA": "Name: rayon\nVersion: 9\n",
        second / "ray/__init__.py": "",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    versions, build = probe.read_packages([str(tmp_path / "none"), str(first), str(second)])
    assert versions == {
        "ray": None,
        "torch": "2.9.0a0+git1234",
        "psutil": "5.9.4",
        "safetensors": None,
        "numpy": "1.24.2",
    }
    assert build == "cu126"


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.12", "3.13"])
def test_every_python_from_3_8_on_can_run_the_probe_with_nothing_installed(version):
    facts = _probe(_python(version))
    assert facts["python"]["version"].startswith(version)


@pytest.mark.parametrize("version", ["3.6", "3.7"])
def test_an_older_python_gets_one_clear_line(version):
    python = _python(version)
    with PROBE.open() as file:
        done = subprocess.run([python, "-"], stdin=file, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "is too old: 3.8 or newer is needed" in line


def test_a_driver_that_hangs_does_not_hold_up_the_rest(tmp_path):
    _program(tmp_path, "nvidia-smi", "exec sleep 60")
    began = time.monotonic()
    facts = _probe(sys.executable, "--deadline", "4", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert time.monotonic() - began < 30, "what hangs does so for a minute"
    assert facts["cpu"]["logical"] == os.cpu_count()
    assert facts["accelerators"] == []
    (problem,) = facts["problems"]
    assert "nvidia-smi" in problem or "NVIDIA" in problem


def test_a_driver_that_fails_is_a_line_in_problems_and_another_vendors_gpu_is_still_found(tmp_path):
    _program(
        tmp_path, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo more; exit 18"
    )
    _program(tmp_path, "rocm-smi", 'echo \'{"card0": {"Card series": "Navi 21", "VRAM Total Memory (B)": "1024"}}\'')
    facts = _probe(sys.executable, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert facts["problems"] == [
        "nvidia-smi is there but failed: Failed to initialize NVML: Driver/library version mismatch"
    ]
    assert [gpu["name"] for gpu in facts["accelerators"]] == ["Navi 21"]


def test_a_driver_that_prints_garbage_is_a_line_in_problems(tmp_path):
    _program(tmp_path, "nvidia-smi", "echo 'Segmentation fault (core dumped)'")
    _program(tmp_path, "amd-smi", "printf '\\377\\376'")
    facts = _probe(sys.executable, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert facts["accelerators"] == []
    assert len(facts["problems"]) == 2


def test_a_simulated_machine_has_the_cpu_alone(tmp_path):
    """On a computer with a GPU, too, the demo's machines train at the speeds that they show."""
    _program(tmp_path, "nvidia-smi", "echo '0, NVIDIA GeForce RTX 3060, 12288, 580.1, GPU-1, 8.6'")
    assert _probe(sys.executable, PATH=f"{tmp_path}:/usr/bin:/bin")["accelerators"]
    facts = _probe(sys.executable, PATH=f"{tmp_path}:/usr/bin:/bin", HETERO_TUI_SIMULATED_SPEED="0.5")
    assert facts["accelerators"] == []


def test_a_port_that_is_taken_is_not_offered():
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 6398))
        except OSError:
            pytest.skip("port 6398 is in use on this computer")
        taken.listen()
        assert 6398 not in _probe(sys.executable)["free_ports"]


def test_a_ready_environment_is_found_with_its_versions(tmp_path):
    package = tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "ray-9.9.9.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: ray\nVersion: 9.9.9\n")
    (tmp_path / "env" / "bin").mkdir()
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    facts = _probe(sys.executable, "--folder", str(tmp_path), HETERO_TUI_SIMULATED_SPEED="0.25")
    assert facts["environment_python"] == str(tmp_path / "env" / "bin" / "python")
    assert facts["environment_packages"]["ray"] == "9.9.9"
    assert facts["environment_packages"]["torch"] is None
    assert facts["simulated_speed"] == 0.25
