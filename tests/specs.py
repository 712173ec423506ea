"""Nodes and runs as tests describe them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero_tui.fleet import agent, authority
from remote_agent.host import layout, processes
from remote_agent.protocol import NodeSpec, RunSpec, encode

AUTHORITY = authority.create("lab")


def give_certificate(spec: NodeSpec) -> None:
    """Write the file with the node's certificate into its folder."""
    text = authority.certificate(AUTHORITY, spec.host, [spec.node_address])
    processes.write_private(layout.tls_path(Path(spec.folder)), text)


def node_spec(host: str, role: str) -> NodeSpec:
    """A node of the cluster ``lab``."""
    return NodeSpec(
        cluster="lab",
        host=host,
        role=role,
        folder="~/x",
        node_address="10.0.0.2",
        head_address="10.0.0.2",
        gcs_port=6389,
        dashboard_port=8365,
        labels={},
        resources={},
        epoch=1,
        code=agent.code(),
    )


def write_run(place: Path, job: str, config: Mapping[str, Any] | None = None) -> None:
    """What the agent writes into ``place``, the folder of a run without devices, before its coordinator starts."""
    spec = RunSpec(
        run=place.name,
        job=job,
        cluster="lab",
        host="a",
        ray_address="127.0.0.1:1",
        node_address="127.0.0.1",
        devices=(),
        server_host="a",
        config=dict(config or {}),
    )
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").write_text(encode(spec))
