"""Defines the paths in a cluster's folder on a machine, and the names of its processes."""

from __future__ import annotations

from pathlib import Path

from remote_agent import plain_file
from remote_agent.protocol import NodeSpec, ProtocolError, decode, run_process_name

RAY = "ray"
"""Name of Ray's process among the records."""

SUPERVISOR = "supervisor"
"""Name of the process that keeps Ray running; it is ended before Ray, which it would start again."""

RUN_PREFIX = run_process_name("")
"""Names of training runs begin with it; they are ended before Ray, so that they can save a checkpoint."""


def token_path(folder: Path) -> Path:
    """The cluster's token, written by the laptop, readable by this user only."""
    return folder / "token"


def tls_path(folder: Path) -> Path:
    """This machine's private key, its certificate and the authority's, written by the laptop."""
    return folder / "tls.pem"


def authority_path(folder: Path) -> Path:
    """The cluster's authority with its key, on the head alone: another laptop takes it from there, with the token."""
    return folder / "authority.pem"


def mesh_path(folder: Path) -> Path:
    """This machine's end of the cluster's WireGuard network, its private key among it; with that network only."""
    return folder / "mesh.json"


def log_path(folder: Path) -> Path:
    """The log of this machine's ``ray start``."""
    return folder / "logs" / "ray.log"


def supervisor_log_path(folder: Path) -> Path:
    """The log of this machine's supervisor: when Ray ended, why, and when it was back."""
    return folder / "logs" / "supervisor.log"


def spec_path(folder: Path) -> Path:
    """The specification that this machine's node was last started with."""
    return folder / "node.json"


def stop_flag(folder: Path) -> Path:
    """There while a ``stop`` waits or works: a ``start`` that sees it gives up."""
    return folder / ".stopping"


def read_spec(folder: Path) -> NodeSpec | None:
    """The specification in force; None when no node was started here."""
    try:
        return decode(NodeSpec, plain_file.read_text(spec_path(folder)))
    except (OSError, ProtocolError, UnicodeDecodeError):
        return None
