"""Nodes as tests describe them."""

from __future__ import annotations

from pathlib import Path

from hetero_tui.fleet import agent, authority
from remote_agent.host import layout, processes
from remote_agent.protocol import NodeSpec

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
