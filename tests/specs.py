"""Nodes and runs as tests describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetero_tui.fleet import agent, authority
from remote_agent.host import layout, processes
from remote_agent.protocol import NodeSpec, RunSpec, Step, encode

AUTHORITY = authority.create("lab")


def give_certificate(spec: NodeSpec) -> None:
    """Write the file with the node's certificate into its folder."""
    text = authority.certificate(AUTHORITY, spec.host, [spec.node_address])
    processes.write_private(layout.tls_path(Path(spec.folder)), text)


def node_spec(host: str, role: str, **changes: Any) -> NodeSpec:
    """A node of the cluster ``lab``."""
    spec = NodeSpec(
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
    return replace(spec, **changes)


def run_spec(run: str, job: str, host: str = "a", **changes: Any) -> RunSpec:
    """A run on the cluster ``lab``, without devices."""
    spec = RunSpec(
        run=run,
        job=job,
        cluster="lab",
        host=host,
        ray_address="127.0.0.1:1",
        node_address="127.0.0.1",
        devices=(),
        server_host=host,
        config={},
    )
    return replace(spec, **changes)


def write_run(place: Path, job: str, config: Mapping[str, Any] | None = None, host: str = "a", **changes: Any) -> None:
    """What the agent writes into ``place``, the run's folder, before its coordinator starts."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").write_text(encode(run_spec(place.name, job, host, config=dict(config or {}), **changes)))


def run_step(number: int, **changes: Any) -> Step:
    """A step of 64 samples that took a second."""
    known = {"seq": number, "time": float(number), "loss": 1.0, "samples": 64, "seconds": 1.0}
    return Step(step=number, **{"bytes_pushed": 0, "bytes_pulled": 0} | known | changes)
