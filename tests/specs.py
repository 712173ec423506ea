"""Nodes as tests describe them."""

from __future__ import annotations

from remote_agent.protocol import NodeSpec


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
    )
