"""Put a run's files on the head host and start its coordinator there, apart from this laptop."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hetero_tui import deadlines
from hetero_tui.errors import CommandFailed, RunError, UsageError
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import agent
from hetero_tui.fleet.preflight import training_devices
from hetero_tui.fleet.survey import Surveyed, head_name, running_head
from hetero_tui.inventory import Inventory
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol

READY_JOBS = ("digits", "text")
"""The jobs that come with the agent."""

STEP = "start run"


@dataclass(frozen=True, slots=True)
class Job:
    """What to train: a ready job's name, or a file of the user's and the name in it."""

    name: str
    file: Path | None = None

    @property
    def reference(self) -> str:
        """How the coordinator finds it: the ready job's name, or ``file.py:Name`` beside its ``run.json``."""
        return self.name if self.file is None else f"{self.file.name}:{self.name}"

    @property
    def slug(self) -> str:
        """The job in a run's name: lower case letters, digits and dashes."""
        base = self.name if self.file is None else self.file.stem
        return re.sub(r"[^a-z0-9]+", "-", base.lower()).strip("-")[:24] or "job"


def parse_job(text: str) -> Job:
    """``digits`` or ``path/to/file.py:Name``.

    Raises:
        UsageError: neither a ready job nor a readable Python file with a name.
    """
    if text in READY_JOBS:
        return Job(text)
    path, colon, name = text.rpartition(":")
    hint = f"a JOB is one of {', '.join(READY_JOBS)}, or path/to/file.py:Name"
    if not colon or not path.endswith(".py") or not name.isidentifier():
        raise UsageError(f"no job {text!r}", step="job", hint=hint)
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(f"no file {path}", step="job", hint=hint)
    return Job(name, file)


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """``--set key=value`` pairs as a dictionary; the coordinator checks names and values.

    Raises:
        UsageError: entries that are not ``key=value``, all of them at once.
    """
    wrong = [pair for pair in pairs if not re.fullmatch(r"[A-Za-z_]\w*=.*", pair, re.DOTALL)]
    if wrong:
        raise UsageError(
            f"not key=value: {', '.join(map(repr, wrong))}", step="--set", hint="for example --set num_iterations=50"
        )
    return dict(pair.split("=", 1) for pair in pairs)


def plan_devices(
    inventory: Inventory, facts: Mapping[str, HostFacts], members: Mapping[str, Surveyed]
) -> tuple[protocol.DeviceSpec, ...]:
    """Every device that trains: those of the hosts that are in the cluster now.

    Raises:
        RunError: there is none.
    """
    devices: list[protocol.DeviceSpec] = []
    for host in inventory.hosts:
        known = facts.get(host.name)
        if known is None or host.name not in members or not members[host.name].runs_ray:
            continue
        devices.extend(
            protocol.DeviceSpec(host=host.name, device=device, name=known.device_name(device), max_batch=host.max_batch)
            for device in training_devices(host, known)
        )
    if not devices:
        raise RunError(
            "no device to train on: no host of the cluster is up, or all are servers only",
            step=STEP,
            hint="run `hetero-tui up`, and look at `role:` and `devices:` in the inventory",
        )
    return tuple(devices)


async def launch(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    members: Mapping[str, Surveyed],
    facts: Mapping[str, HostFacts],
    job: Job,
    settings: Mapping[str, str],
) -> tuple[str, str]:
    """Start a run on the running cluster; the answer is its name and the head host's name.

    Raises:
        RunError: no cluster runs, or it has no device that trains.
        HostError: the head failed at it.
    """
    run = f"{job.slug}-{secrets.token_hex(2)}"
    document = specification(inventory, members, facts, run, job.reference, settings)
    head = document.host
    transport = transports[head]
    place = f"{agent.folder(inventory.cluster)}/runs/{run}"
    if job.file is not None:
        await transport.put(job.file.read_bytes(), f"{place}/{job.file.name}", step=STEP, deadline=deadlines.SHIP_AGENT)
    written = protocol.encode(document).encode() + b"\n"
    await transport.put(written, f"{place}/run.json", step=STEP, deadline=deadlines.COMMAND)
    await start_coordinator(transport, inventory.cluster, run)
    return run, head


def specification(
    inventory: Inventory,
    members: Mapping[str, Surveyed],
    facts: Mapping[str, HostFacts],
    run: str,
    job: str,
    settings: Mapping[str, str],
) -> protocol.RunSpec:
    """A run on the cluster as it is now.

    Raises:
        RunError: no cluster runs, or it has no device that trains.
    """
    head, spec = head_name(members), running_head(members)
    if head is None or spec is None:
        raise RunError("the cluster is down", step=STEP, hint="run `hetero-tui up` first")
    devices = plan_devices(inventory, facts, members)
    running = {name for name, found in members.items() if found.runs_ray}
    servers = [host.name for host in inventory.hosts if host.role == "server" and host.name in running]
    return protocol.RunSpec(
        run=run,
        job=job,
        cluster=inventory.cluster,
        host=head,
        ray_address=f"{spec.head_address}:{spec.gcs_port}",
        node_address=spec.head_address,
        devices=devices,
        server_host=servers[0] if servers else head,
        config=dict(settings),
        epoch=spec.epoch,
    )


async def start_coordinator(transport: Transport, cluster: str, run: str) -> None:
    """Start the coordinator of a run whose files are on the host, apart from this laptop.

    Raises:
        CommandFailed: it did not start.
    """
    # The agent starts programs in the cluster's folder; the secret goes by file, never by a command line. A coordinator
    # that is disconnected from the cluster must not have Ray start one of its own.
    program = (
        'export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$PWD/token"; '
        "export RAY_USAGE_STATS_ENABLED=0 RAY_ENABLE_AUTO_CONNECT=0; "
        'exec sh agent/run remote_agent.training.run "$PWD/runs/$0"'
    )
    home = agent.home_folder(cluster)
    done = await agent.call(
        transport,
        cluster,
        "processes",
        "launch",
        *("--folder", home),
        *("--name", protocol.run_process_name(run)),
        *("--log", f"{home}/runs/{run}/coordinator.log"),
        *("--", "sh", "-c", program, run),
        step=STEP,
        deadline=deadlines.RUN_START,
    )
    if done is None or done.exit_status != 0:
        detail = "no agent there" if done is None else last_lines(done.stderr)
        raise CommandFailed(
            transport.host,
            f"the coordinator did not start: {last_lines(detail, 1)}",
            step=STEP,
            hint="run `hetero-tui up` again",
            output=detail,
        )
