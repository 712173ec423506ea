"""Builds Ray's command line, environment and folders on this machine, and explains Ray's failures.

Pure except for :func:`private_folder`. The choices follow what Ray 2.60 does:

- Its token and ports are set on every node. A ``ray start`` without them turns authentication on by itself when the
  user happens to have a token in ``~/.ray``, and falls back to ports that other clusters use.
- Silence is noticed after 3 x 1 s, not after a minute, so that a pulled cable is a short pause. A machine
  that is back after a silence asks within 1 s, not 5, whether it was declared dead meanwhile.
- Its gRPC is always under mutual TLS: without, the token goes over the network in clear, and one call of a stranger
  (``RaySyncer/StartSync``) ends a node before the token is looked at.
- Its metrics are off: those ports are open to the whole network and know no token.
- Its log monitor, which would print what actors print in a driver's terminal, is left out on every node: no user
  looks at one, and it is a process that takes part of the start's time.
- No process is started in advance. Ray would have one for each core of the head, 80 MB each, while a run starts; actors
  with an environment of their own, as all of ours, can't use them.
- Its unix sockets lie below the temporary folder, and the kernel allows about a hundred bytes for such a path.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from remote_agent import protocol, tls
from remote_agent.host.processes import AGENT_PATH, TRACES_GRPC
from remote_agent.protocol import HOST_LABEL, SIMULATED_SPEED, NodeSpec

STARTED_LINE = "Ray runtime started."
"""What ``ray start`` prints once this machine is a node of the cluster."""

MIB = 1024 * 1024
_SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103  # sizeof(sockaddr_un.sun_path) - 1
_PLAIN_PATH = re.compile(r"[\w./+@=-]+", re.ASCII)
_BELOW_RAY_FOLDER = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_OBJECT_STORE_LEAST = 80 * MIB  # Ray refuses less than 75 MiB
_OBJECT_STORE_WITHOUT_SHM = 2048 * MIB
_OBJECT_STORE_SIMULATED = 1024 * MIB  # several simulated machines share one computer's memory
_NO_PORT = "-1"
_DASHBOARD_MODULES = ("aiohttp", "aiohttp_cors", "grpc", "opencensus", "opentelemetry", "prometheus_client", "pydantic")


class UnsafeFolderError(Exception):
    """A folder that Ray needs belongs to another user, or is a link."""


def arguments(spec: NodeSpec, ray_folder: Path, object_store: int, *, dashboard: bool) -> list[str]:
    """The command line of ``ray start`` for this machine; it stays in the foreground (``--block``)."""
    labels = {HOST_LABEL: spec.host} | spec.labels
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    argv += ["--log-style=record", "--log-color=false", "--include-log-monitor=false"]
    if spec.role == "head":
        argv += ["--head", f"--port={spec.gcs_port}", f"--include-dashboard={str(dashboard).lower()}"]
        if dashboard:
            argv += ["--dashboard-host=127.0.0.1", f"--dashboard-port={spec.dashboard_port}"]
    else:
        argv += [f"--address={protocol.join_address(spec.head_address, spec.gcs_port)}"]
    argv += [f"--node-ip-address={spec.node_address}", f"--temp-dir={ray_folder}"]
    argv += [f"--object-store-memory={object_store}"]
    argv += ["--labels=" + ",".join(f"{key}={value}" for key, value in labels.items())]
    if spec.resources:
        argv += [f"--resources={json.dumps(spec.resources)}"]
    if spec.cpus is not None:
        argv += [f"--num-cpus={spec.cpus}"]
    return argv


def environment(base: Mapping[str, str], token: Path, bundle: Path, *, encrypted: bool) -> dict[str, str]:
    """Ray's environment: the user's own without anything that would steer Ray or Python elsewhere, and our settings.

    ``bundle`` is the file with this machine's certificate; ``encrypted``: our own connections use it too.
    """
    steers = ("RAY_", "PYTHON", *TRACES_GRPC)
    kept = {key: value for key, value in base.items() if not key.startswith(steers)}
    kept |= tls.variables(bundle, encrypted=encrypted)
    return kept | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_raylet_liveness_self_check_interval_ms": "1000",
        "RAY_enable_metrics_collection": "0",
        # The autoscaler and the dashboard have ports of their own for metrics where prometheus_client is installed (it
        # is part of ray[default]), and no switch. They log that they can't listen on this one, and go on.
        "AUTOSCALER_METRIC_PORT": _NO_PORT,
        "DASHBOARD_METRIC_PORT": _NO_PORT,
        "RAY_prestart_worker_first_driver": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",
        # A host asks again for what has not arrived by then, and gets all of it a second time. Ray's 10 s are too few
        # for a job's data on a slow link: the copies take the link from each other, from measurements and from steps.
        "RAY_object_manager_pull_timeout_ms": "60000",
        # Runs are stopped before Ray is: there is nothing to drain, and a head that is gone would be waited for.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # CUDA then numbers the GPUs as nvidia-smi and NVML do.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONPATH": str(AGENT_PATH),
    }


def object_store_bytes(available_memory: int, shared_memory: int | None, *, simulated: bool) -> int:
    """Size of Ray's object store in bytes.

    Ray's own choice is 30 % of the memory, even where ``/dev/shm`` is smaller (64 MB in a container): above 10 GB it
    then refuses to start, below it works on disk. Here the size is what fits; only where hardly anything fits, the
    store lies on disk and stays small. ``shared_memory`` is the free space of ``/dev/shm``, None where there is none.
    """
    size = int(available_memory * 0.3)
    if shared_memory is None:
        size = min(size, _OBJECT_STORE_WITHOUT_SHM)
    elif shared_memory * 0.9 >= 256 * MIB:
        size = min(size, int(shared_memory * 0.9))
    else:
        size = min(size, _OBJECT_STORE_WITHOUT_SHM // 2)
    return max(_OBJECT_STORE_LEAST, min(size, _OBJECT_STORE_SIMULATED) if simulated else size)


def shared_memory_bytes() -> int | None:
    """Free bytes in ``/dev/shm``; None where the system has none."""
    try:
        usage = os.statvfs("/dev/shm")  # noqa: S108 - Ray's object store lies there
    except OSError:
        return None
    return usage.f_bavail * usage.f_frsize


def dashboard_installed() -> bool:
    """Whether Ray's dashboard can run here: it is not part of plain ``ray`` (see ``ray.dashboard.optional_deps``)."""
    return all(importlib.util.find_spec(name) is not None for name in _DASHBOARD_MODULES)


def is_simulated(base: Mapping[str, str]) -> bool:
    """Whether this is a simulated machine, one of several on a computer."""
    return SIMULATED_SPEED in base


# --- Folders -------------------------------------------------------------------------------------------------------


def short_folder(folder: Path) -> Path:
    """Ray's folder where the cluster's own would make socket paths too long; private to this user."""
    return Path(protocol.short_folder(str(folder)))


def ray_folder(folder: Path) -> Path:
    """Where Ray's temporary files and sockets go: ``<folder>/ray`` when its socket paths fit, else a short one.

    So it is where the path has more than plain letters: Ray splits the command lines of its workers at blanks and
    quotation marks, and takes its session's name for ASCII. Ray opens this folder to all users (mode 0777): it is the
    parent that has to be private.
    """
    own = folder / "ray"
    fits = len(os.fsencode(own)) + _BELOW_RAY_FOLDER <= _SOCKET_PATH_LIMIT
    return own if fits and _PLAIN_PATH.fullmatch(str(own)) else short_folder(folder) / "r"


def private_folder(path: Path) -> None:
    """Make a folder of mode 0700, or accept it when it is one of this user's already.

    Raises:
        UnsafeFolderError: it is a link, not a folder, or another user's: in ``/tmp`` anyone can get there first.
        OSError: it can't be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own_folder(path):
        raise UnsafeFolderError(f"{path} is a link, or belongs to another user")
    path.chmod(0o700)


def is_own_folder(path: Path) -> bool:
    """Whether this is a real folder (no link) that belongs to this user."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


# --- What went wrong -----------------------------------------------------------------------------------------------

ENVIRONMENT_HINT = "look at the machine's environment (docs/hosts.md), then run `up` again"

_HINTS = (
    (
        r"CERTIFICATE_VERIFY_FAILED|SSL_ERROR_SSL|Ssl handshake failed|TSI_PROTOCOL_FAILURE",
        "the head does not accept this machine's certificate, or has none: run `down`, then `up`; look at both clocks",
    ),
    (
        r"AuthenticationError|InvalidAuthToken|Unauthenticated",
        "the head refused this machine's token: run `down`, then `up`, so that all machines get the same one",
    ),
    (
        r"[Vv]ersion mismatch",
        "Ray or Python differs from the head's: install the same versions on all machines (docs/hosts.md)",
    ),
    (
        r"does not match persisted value|[Aa]ddress already in use|already occupied|is already running at",
        "another program took Ray's port on this machine: `up` picks a free one when it is run again",
    ),
    (
        r"Failed to connect to GCS|Failed to get cluster ID|Timed out while waiting|Deadline Exceeded|UNAVAILABLE",
        "the head does not answer: see that its Ray runs (`status`) and that no firewall stands between the two",
    ),
    (
        r"No node info found for head node",
        "the head was not ready in time, as on a machine that has other work: run `up` again",
    ),
    (r"No space left on device|Disk quota exceeded", "free some disk space on this machine"),
    (
        r"No module named '?ray",
        "Ray is not installed in this machine's environment: see docs/hosts.md, or set `python:` to one that has it",
    ),
    (
        r"Cannot allocate memory|MemoryError|out of memory",
        "this machine has too little free memory for a Ray node (about 0.5 GB)",
    ),
)
_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit)\b.*|^.*\bERR(?:OR)?\b.*|^Error: .*", re.MULTILINE)
_FRAME = re.compile(r"""^(?:\[[^\]]*\] )*(?:\*\*\* |@ |PC: @|File "|\^+$|~*\^+~*$|0x[0-9a-f]+ )""")
"""A line of a stack trace, of Python's or of C++'s, which says nothing to people."""

_LOG_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+\s+(?:[A-Z]+ \S+ -- )?")
_PROGRESS = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+\s+INFO ")
_CAUSE_LENGTH = 200
_KILLED_EARLY = (
    "Ray was killed while it started, by someone or for lack of memory",
    "see how much memory is free on this machine (Ray needs about 0.5 GB), then run `up` again; logs/ray.log says more",
)


def last_error(log: str) -> str:
    """The last line in the log of a ``ray start`` that tells of an error; empty: there is none."""
    return next(reversed(_errors(log)), "")[:_CAUSE_LENGTH]


def explain(log: str) -> tuple[str, str]:
    """(cause, hint) from the log of a ``ray start`` that failed: its last error line, and what to do about it."""
    lines = [_LOG_PREFIX.sub("", line).strip() for line in log.splitlines() if _PROGRESS.match(line) is None]
    said = _errors(log) or [line for line in lines if _says(line)]
    if not said:
        return _KILLED_EARLY
    cause = said[-1]
    if len(cause) > _CAUSE_LENGTH:
        cause = cause[:_CAUSE_LENGTH].rpartition(" ")[0] + " ..."
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, log)), "the log says more: logs/ray.log")
    return cause, hint


def _errors(log: str) -> list[str]:
    lines = (_LOG_PREFIX.sub("", line).strip() for line in _ERROR_LINE.findall(log))
    return [line for line in lines if _says(line)]


def _says(line: str) -> bool:
    return bool(line.strip("-")) and _FRAME.match(line) is None


_ENDED = re.compile(r"\b([a-z_]+)(?:\.(?:out|err) tail)? [\[(]exit code(?:\(s\))?=(-?\d+)")


def explain_end(log: str) -> str:
    """Why a Ray that had joined is no more, from the log of its ``ray start --block``."""
    if "marked as dead by the GCS" in log:
        return "the head had declared this machine dead after it was silent"
    found = _ENDED.search(log)
    if found is None:
        return "Ray was killed" if STARTED_LINE in log else explain(log)[0]
    name, status = found[1], int(found[2])
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
    return f"Ray's {name} {how}"
