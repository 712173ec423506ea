from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from remote_agent import tls
from remote_agent.host import ray_command
from remote_agent.protocol import EXCHANGE
from tests.specs import node_spec

MIB = 2**20
SPEC = node_spec(
    "crosby", "worker", head_address="192.168.1.10", labels={"tier": "gpu"}, resources={"device:0": 1.0}, cpus=4
)


def test_the_token_is_never_on_a_command_line_or_in_the_environment(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    environment = ray_command.environment({"PATH": "/bin"}, token, tmp_path / "tls.pem", encrypted=False)
    argv = ray_command.arguments(SPEC, tmp_path / "ray", 10**9, dashboard=False)
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert not any("secret" in text for text in (*argv, *environment.values()))


def test_what_would_steer_ray_or_python_elsewhere_is_dropped_and_the_rest_stays():
    base = {
        "RAY_ADDRESS": "elsewhere",
        "PYTHONHOME": "/x",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": "/y",
        "LD_LIBRARY_PATH": "/cuda",
    }
    environment = ray_command.environment(base, Path("/t"), Path("/c"), encrypted=False)
    assert "RAY_ADDRESS" not in environment
    assert "PYTHONHOME" not in environment
    assert "PYTHONDONTWRITEBYTECODE" not in environment, "each process would compile torch where it has no byte code"
    assert environment["PYTHONPATH"] == str(ray_command.AGENT_PATH)
    assert environment["LD_LIBRARY_PATH"] == "/cuda"


@pytest.mark.parametrize("encrypted", [False, True])
def test_ray_encrypts_always_and_we_where_it_is_wanted_whatever_the_users_own_environment_says(encrypted):
    base = {"RAY_USE_TLS": "0", "RAY_TLS_CA_CERT": "/theirs", EXCHANGE: "tls" if not encrypted else "clear"}
    environment = ray_command.environment(base, Path("/t"), Path("/own/tls.pem"), encrypted=encrypted)
    assert environment["RAY_USE_TLS"] == "1"
    assert tls.enabled(environment) is encrypted
    assert environment["RAY_TLS_CA_CERT"] == "/own/tls.pem"


LISTEN_FOR_METRICS = """
import socket, sys
from ray.autoscaler._private.constants import AUTOSCALER_METRIC_PORT
from ray.dashboard.consts import DASHBOARD_METRIC_PORT

for port in (AUTOSCALER_METRIC_PORT, DASHBOARD_METRIC_PORT):
    try:
        socket.create_server(("", port))
    except OverflowError:
        continue
    sys.exit(f"it listens on {port}")
"""


def test_no_part_of_this_ray_can_listen_for_metrics_where_its_packages_are_installed():
    environment = ray_command.environment(os.environ, Path("/t"), Path("/c"), encrypted=False)
    done = subprocess.run([sys.executable, "-c", LISTEN_FOR_METRICS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_host_is_found_by_its_label_and_the_dashboard_is_on_loopback_only(tmp_path):
    worker = ray_command.arguments(SPEC, tmp_path, 10**9, dashboard=True)
    assert "--labels=hetero-host=crosby,tier=gpu" in worker
    assert "--address=192.168.1.10:6389" in worker
    assert not any("dashboard" in argument for argument in worker)
    head = ray_command.arguments(replace(SPEC, role="head", cpus=None), tmp_path, 10**9, dashboard=True)
    assert {"--head", "--port=6389", "--dashboard-host=127.0.0.1", "--dashboard-port=8365"} <= set(head)
    assert not any(argument.startswith(("--address", "--num-cpus")) for argument in head)


@pytest.mark.parametrize(
    ("available", "shared", "simulated", "expected"),
    [
        (32000 * MIB, 16000 * MIB, False, 9600 * MIB),
        (32000 * MIB, 1000 * MIB, False, 900 * MIB),
        (64000 * MIB, 64 * MIB, False, 1024 * MIB),
        (32000 * MIB, None, False, 2048 * MIB),
        (32000 * MIB, 16000 * MIB, True, 1024 * MIB),
        (100 * MIB, 50 * MIB, False, 80 * MIB),
    ],
    ids=["plenty", "small shm", "container with 64 MB shm", "macOS", "simulated", "tiny"],
)
def test_the_object_store_fits_the_machine(available, shared, simulated, expected):
    assert ray_command.object_store_bytes(available, shared, simulated=simulated) == expected


def test_rays_folder_is_the_clusters_own_unless_its_socket_paths_would_be_too_long():
    short, long = Path("/home/me/.hetero-tui/lab"), Path("/home/me") / ("x" * 60)
    assert ray_command.ray_folder(short) == short / "ray"
    assert str(ray_command.ray_folder(long)).startswith(f"/tmp/ht-{os.getuid()}-")
    assert ray_command.ray_folder(long) != ray_command.ray_folder(long / "other")


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(ray_command.UnsafeFolderError, match="is a link"):
        ray_command.private_folder(link)
    ray_command.private_folder(target)
    assert target.stat().st_mode & 0o777 == 0o700


PREFIX = "2026-11-21 07:48:53,374\tINFO scripts.py:1043 -- Local node IP: 127.0.0.2\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "scripts.py", line 1, in start\n'


@pytest.mark.parametrize(
    ("log", "cause", "hint"),
    [
        (
            "ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing\n",
            "InvalidAuthToken",
            "token",
        ),
        (
            "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n",
            "Version",
            "same versions",
        ),
        ("AssertionError: Session name a does not match persisted value b'c'.\n", "Session name", "port"),
        ("RuntimeError: Failed to connect to GCS. Last connection error: UNAVAILABLE\n", "GCS", "firewall"),
        ("OSError: [Errno 28] No space left on device\n", "No space", "disk"),
        ("/env/bin/python: Error while finding module: No module named 'ray'\n", "ray", "docs/hosts.md"),
    ],
    ids=["token", "version", "port", "head", "disk", "not installed"],
)
def test_a_known_failure_is_explained_in_one_line_with_what_to_do(log, cause, hint):
    said, todo = ray_command.explain(PREFIX + TRACEBACK + log)
    assert cause in said
    assert "\n" not in said
    assert hint in todo


def test_an_unknown_failure_names_the_log():
    cause, hint = ray_command.explain(PREFIX + "something odd\n")
    assert (cause, hint) == ("something odd", "the log says more: logs/ray.log")


@pytest.mark.parametrize(
    "log", ["", f"{PREFIX}2026-01-01 10:00:00,000\tINFO scripts.py:1080 -- Local node IP: 10.0.0.2\n"]
)
def test_a_ray_that_was_killed_while_it_started_is_told_with_what_to_do(log):
    """It leaves nothing but lines of progress, none of which is a cause."""
    cause, hint = ray_command.explain(log)
    assert "killed while it started" in cause
    assert "run `up` again" in hint
    assert ray_command.explain_end(log) == cause


def test_a_cause_is_never_a_line_of_a_stack_trace():
    log = (
        "2026-01-01 10:00:00,000\tINFO scripts.py:1 -- starting\n"
        "[2026-01-01 10:00:01,000 C 7 7] gcs_server.cc:12: Check failed: port is taken\n"
        "*** StackTrace Information ***\n"
        "[2026-01-01 10:00:01,000 E 7 7] @ 0x55d0  ray::ERROR::Handle()\n"
        "    @     0x7f12 ERR start_thread\n"
        '  File "/x/ray/node.py", line 3, in start_error\n'
        "    ^^^^^^\n"
    )
    assert ray_command.explain(log)[0].endswith("Check failed: port is taken")
