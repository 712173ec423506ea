"""Places workers and servers by node label, never by ``num_gpus`` alone (to Ray an Apple GPU is ``GPU: 1`` too)."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from remote_agent.protocol import HOST_LABEL, SAME_HASHES, DeviceSpec
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import PlacementError
from remote_agent.training.worker.device.device import ANY_GPU

NODE_LABEL = "ray.io/node-id"
"""Label that Ray gives each node itself."""


INLINE_BYTES = 1_000_000
"""Results up to this size ride in Ray's replies, not in its object store, which for them costs more than it saves."""


KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_ARENA_MAX": "1"}
"""glibc's malloc keeps what was freed, as torch's allocators on GPUs do: a step's tensors have the sizes of the last
step's, and to get fresh pages for them from the kernel can cost as much as to compute them. (See mallopt(3).)"""

MAP_LARGE_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 22),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_ARENA_MAX": "1",
}
"""The same for a stage of a pipeline, whose memory is planned, except that tensors of 4 MB and more have pages of their
own. Otherwise small tensors take pieces of the room that large ones left, and a stage grew by half within 30 steps."""

RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 18), "MALLOC_ARENA_MAX": "1"}
"""A server computes little and holds much: what it freed goes back to the system, so that nothing of the weights' size
lies about in pieces."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A living Ray node: its host's name, its label selector, and the CPU and GPU slots that Ray hands out there."""

    host: str
    selector: tuple[str, str]
    cpus: float
    gpus: float


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where one worker is to run.

    Attributes:
        worker: name of the worker, ``host/device``.
        threads: CPU threads that torch may use there.
        gpus: GPU slots to ask Ray for: 1 on a cluster that hands out GPUs itself, 0 on ours (placed by label alone).
    """

    worker: str
    spec: DeviceSpec
    node: Node
    threads: int
    gpus: int = 0

    def options(self, malloc: Mapping[str, str]) -> dict[str, Any]:
        """Ray's options for the worker's actor; ``malloc`` as for :func:`actor_options`."""
        return actor_options(self.node, malloc) | {"num_gpus": self.gpus}


def actor_options(node: Node, malloc: Mapping[str, str] = KEEP_MEMORY) -> dict[str, Any]:
    """Options of an actor that must run on ``node``, never restarts by itself, and takes no CPU slot.

    ``malloc`` is how its process treats memory that was freed.
    """
    key, value = node.selector
    return {
        "num_cpus": 0,
        "num_gpus": 0,
        "label_selector": {key: value},
        "max_restarts": 0,
        "max_task_retries": 0,
        "runtime_env": {"env_vars": {"RAY_max_direct_call_object_size": str(INLINE_BYTES), **SAME_HASHES, **malloc}},
    }


def task_options(node: Node) -> dict[str, Any]:
    """Options of a short call that must run on ``node``, in whichever process Ray has there."""
    key, value = node.selector
    return {"num_cpus": 0, "label_selector": {key: value}}


def living_nodes() -> tuple[Node, ...]:
    """The cluster's living nodes; a node of ours is named by its host label, another by its host name."""
    nodes: list[Node] = []
    for entry in ray.nodes():
        if not entry.get("Alive"):
            continue
        labels = entry.get("Labels") or {}
        label = labels.get(HOST_LABEL)
        resources = entry.get("Resources") or {}
        selector = (HOST_LABEL, label) if label else (NODE_LABEL, str(entry["NodeID"]))
        host = label or str(entry.get("NodeManagerHostname") or entry["NodeID"])
        taken = sum(node.host == host or node.host.startswith(f"{host}~") for node in nodes)
        nodes.append(
            Node(
                host=f"{host}~{taken + 1}" if taken and not label else host,
                selector=selector,
                cpus=float(resources.get("CPU", 0)),
                gpus=float(resources.get("GPU", 0)),
            )
        )
    return tuple(nodes)


def node_of(host: str, nodes: Sequence[Node]) -> Node:
    """The node on ``host``; raises PlacementError if the cluster has none."""
    for node in nodes:
        if node.host == host:
            return node
    there = ", ".join(sorted(node.host for node in nodes)) or "none"
    raise PlacementError(
        f"the cluster has no node on {host!r}; nodes: {there}",
        hint="bring the host up, or leave it out of the run",
        host=host,
    )


def seats(devices: Sequence[DeviceSpec], nodes: Sequence[Node], gpus: int = 0) -> tuple[Placement, ...]:
    """One seat for each device; the workers of a node share its CPU slots. Raises PlacementError."""
    if not devices:
        raise PlacementError("the run has no device to train on", hint="name at least one device")
    on_cpu = Counter(spec.host for spec in devices if spec.device == "cpu")
    on_gpu = Counter(spec.host for spec in devices if spec.device != "cpu")
    result = []
    for name, spec in zip(names(devices), devices, strict=True):
        node, on_gpus = node_of(spec.host, nodes), on_gpu[spec.host]
        if spec.device == "cpu":
            threads = (node.cpus - on_gpus) / on_cpu[spec.host]
        elif on_cpu[spec.host]:
            threads = 1
        else:
            threads = node.cpus / on_gpus
        result.append(
            Placement(
                worker=name,
                spec=spec,
                node=node,
                threads=max(1, math.floor(threads)),
                gpus=0 if spec.device == "cpu" else gpus,
            )
        )
    return tuple(result)


def without_sharing(seats: Sequence[Placement], machines: Sequence[tuple[str, int]]) -> tuple[Placement, ...]:
    """The seats with as many threads as there are cores, where several workers are on one computer. Pure.

    Threads that have to wait for a core hold up all others of their group, which spin meanwhile. A GPU's worker keeps
    one core busy: what waits for the GPU spins, too.

    Args:
        machines: for each, which computer it is on and how many cores that has.
    """
    wanted: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    for seat, (machine, _) in zip(seats, machines, strict=True):
        on_cpu = seat.spec.device == "cpu"
        wanted[machine] += seat.threads if on_cpu else 0
        gpus[machine] += not on_cpu

    def shared(seat: Placement, machine: str, cores: int) -> Placement:
        there = cores - gpus[machine]
        if seat.spec.device != "cpu" or wanted[machine] <= there:
            return seat
        return dataclasses.replace(seat, threads=max(1, seat.threads * there // wanted[machine]))

    return tuple(shared(seat, *computer) for seat, computer in zip(seats, machines, strict=True))


def names(devices: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """The names of the workers on these devices: ``host/device``, and a number from the second on the same device."""
    seen: Counter[str] = Counter()
    result = []
    for spec in devices:
        name = f"{spec.host}/{spec.device}"
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(result)


def check_shards(count: int, hosts: Sequence[str]) -> None:
    """Raise PlacementError if a run on these hosts can't have ``count`` shards, each on a host of its own."""
    names = list(dict.fromkeys(hosts))
    if count > len(names):
        raise PlacementError(
            f"shards={count}, but the run has {len(names)} host{'s' if len(names) > 1 else ''}: {', '.join(names)}",
            hint=f"set shards to {len(names)} or less, or to 0 to let the links decide",
        )


def choose(config: TrainingConfig, nodes: Sequence[Node]) -> tuple[DeviceSpec, ...]:
    """Devices for a script that names only numbers of workers: GPUs first, CPU workers over the nodes in turn.

    Raises:
        PlacementError: the cluster has fewer GPUs than asked for, or no node.
    """
    if not nodes:
        raise PlacementError("the Ray cluster has no living node", hint="start one with `ray start --head`")
    slots = [node for node in nodes for _ in range(int(node.gpus))]
    wanted = config.num_gpu_workers
    automatic = wanted is None and config.num_cpu_workers is None
    if wanted is not None and wanted > len(slots):
        raise PlacementError(
            f"num_gpu_workers={wanted}, but the cluster has {len(slots)} GPUs",
            hint="lower num_gpu_workers, or train on CPUs with num_cpu_workers",
        )
    on_gpu = slots if automatic else slots[: wanted or 0]
    if automatic:
        on_cpu = [node for node in nodes if not node.gpus]
    else:
        on_cpu = [nodes[index % len(nodes)] for index in range(config.num_cpu_workers or 0)]
    if not on_gpu and not on_cpu:
        raise PlacementError("no worker was asked for", hint="set num_gpu_workers or num_cpu_workers to 1 or more")
    chosen = [(node, ANY_GPU) for node in on_gpu] + [(node, "cpu") for node in on_cpu]
    return tuple(DeviceSpec(host=node.host, device=device, name=device) for node, device in chosen)


def here(nodes: Sequence[Node]) -> Node:
    """The node that this driver is on; it holds a script's parameter server."""
    own = str(ray.get_runtime_context().get_node_id())
    mine = next((entry for entry in ray.nodes() if entry["NodeID"] == own), None)
    label = ((mine or {}).get("Labels") or {}).get(HOST_LABEL)
    return next((node for node in nodes if node.selector in ((NODE_LABEL, own), (HOST_LABEL, label))), nodes[0])
