"""Serves the current state as metrics for Prometheus, in its text format, on loopback.

Who can read them can see names of hosts and runs and nothing else; still they are for this computer alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hetero_tui import deadlines
from hetero_tui.errors import UsageError
from hetero_tui.events import ClusterState, HostState
from hetero_tui.reporting.figures import PARTS
from hetero_tui.state import HostView, RunView, State
from remote_agent.states import RunState

PORT = 9464
ADDRESS = "127.0.0.1"
PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, str], float | None]
"""Labels and a value; None: it is not known, and not told."""


def metrics(state: State, now: float) -> str:
    """All of them that hold ``now``: no use of a host that is silent, and of a run that is over only how it ended.

    None of a run of which only the past is known yet. Pure.
    """
    run = state.run
    of_run = _of_run(run) if run is not None and run.behind is None else ()
    of_live = _of_live_run(run) if run is not None and run.behind is None and not run.state.final else ()
    return "".join((*_of_fleet(state), *_of_hosts(state.hosts, now), *of_run, *of_live))


def _of_fleet(state: State) -> Iterator[str]:
    cluster = {"cluster": state.cluster}
    is_up = state.cluster_state in (ClusterState.UP, ClusterState.DEGRADED)
    yield _gauge("cluster_up", "1: a Ray cluster of ours runs.", [(cluster, float(is_up))])
    counts = {kind: sum(host.state is kind for host in state.hosts) for kind in HostState}
    samples: list[Sample] = [({"state": str(kind)}, float(count)) for kind, count in counts.items()]
    yield _gauge("hosts", "Hosts of the inventory, by where they stand.", samples)


def _of_hosts(hosts: Iterable[HostView], now: float) -> Iterator[str]:
    answering = [host for host in hosts if host.sampled is not None and host.state is not HostState.UNREACHABLE]
    fresh = [host for host in answering if now - (host.sampled or 0.0) <= deadlines.STALE]
    known = [(host, host.sample) for host in fresh if host.sample is not None]

    def each(name: str) -> list[Sample]:
        return [({"host": host.name}, getattr(sample, name)) for host, sample in known]

    yield _gauge("host_cpu_use_ratio", "Use of all processors together.", each("cpu_use"))
    yield _gauge("host_memory_used_bytes", "Main memory in use.", each("memory_used"))
    yield _gauge("host_memory_bytes", "Main memory.", each("memory_total"))
    yield _gauge("host_sent_bytes_per_second", "Through its network interfaces.", each("bytes_sent_per_s"))
    yield _gauge("host_received_bytes_per_second", "Through its network interfaces.", each("bytes_received_per_s"))
    seen: list[Sample] = [({"host": host.name}, host.last_seen) for host in hosts]
    yield _gauge("host_last_seen_timestamp_seconds", "When it answered last.", seen)
    trips: list[Sample] = [({"host": host.name}, host.round_trip_s) for host in fresh]
    yield _gauge("host_round_trip_seconds", "From this computer to it and back.", trips)
    devices = [({"host": host.name, "device": use.device}, use) for host, sample in known for use in sample.devices]
    yield _gauge("device_use_ratio", "Use of a device.", [(labels, use.use) for labels, use in devices])
    yield _gauge("device_memory_used_bytes", "Its memory.", [(labels, use.memory_used) for labels, use in devices])
    warm: list[Sample] = [(labels, use.temperature_c) for labels, use in devices]
    yield _gauge("device_temperature_celsius", "Its temperature.", warm)
    yield _gauge("device_power_watts", "What it takes.", [(labels, use.power_w) for labels, use in devices])


def _of_run(run: RunView) -> Iterator[str]:
    name = {"run": run.run}

    def one(value: float | None) -> list[Sample]:
        return [(name, value)]

    states: list[Sample] = [(name | {"state": str(kind)}, float(kind is run.state)) for kind in RunState]
    yield _gauge("run_state", "1 for where the newest run stands, 0 for the others.", states)
    yield _gauge("run_step", "Its newest step.", one(run.step))
    yield _gauge("run_steps", "Its last step to come.", one(run.iterations))
    yield _gauge("run_loss", "Of its newest step.", one(run.loss))
    yield _gauge("run_samples", "That were trained on so far.", one(run.samples))
    yield _gauge("run_checkpoint_step", "Of its newest checkpoint.", one(run.checkpoint_step or None))


def _of_live_run(run: RunView) -> Iterator[str]:
    name = {"run": run.run}
    rates = (
        ("run_samples_per_second", "Over its recent steps.", run.samples_per_second),
        ("run_step_seconds", "What a step takes: the median of its last 20.", run.step_seconds),
        ("run_remaining_seconds", "Until its last step, as far as is known.", run.remaining_seconds),
    )
    for title, text, value in rates:
        yield _gauge(title, text, [(name, value)])
    alive: list[Sample] = [(name | {"worker": worker.worker}, float(worker.alive)) for worker in run.workers]
    yield _gauge("worker_up", "1: the worker takes part.", alive)
    shares: list[Sample] = [(name | {"worker": worker.worker}, float(worker.samples)) for worker in run.workers]
    yield _gauge("worker_samples", "Its share of a step.", shares)
    if run.recent:
        times: list[Sample] = [
            (name | {"worker": part.worker, "part": what}, getattr(part, f"{what}_s"))
            for part in run.recent[-1].workers
            for what in PARTS
        ]
        yield _gauge("worker_step_seconds", "Where its time of the newest step went.", times)


def _gauge(name: str, text: str, samples: Iterable[Sample]) -> str:
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return ""
    name = f"hetero_tui_{name}"
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    for labels, value in known:
        words = ",".join(f'{label}="{_escaped(word)}"' for label, word in labels.items())
        lines.append(f"{name}{{{words}}} {float(value)!r}")
    return "\n".join(lines) + "\n"


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@contextmanager
def served(state: Callable[[], State], port: int = PORT, now: Callable[[], float] = time.time) -> Iterator[str]:
    """Answer on loopback while open; yields the address. ``port`` 0: any. Raises UsageError if it is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in (PATH, "/")
            body = (metrics(state(), now()) if found else f"see {PATH}\n").encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class names it so
            """A scrape every few seconds is no news."""

    try:
        server = ThreadingHTTPServer((ADDRESS, port), Handler)
    except OSError as error:
        cause = f"{ADDRESS} port {port} can't be used: {error.strerror}"
        raise UsageError(cause, step="metrics", hint="name another one with --port") from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{ADDRESS}:{server.server_port}{PATH}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
