"""Put a run's files on the head host and start its coordinator there, apart from this laptop."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection, Mapping

from hetero_tui import deadlines
from hetero_tui.errors import CommandFailed, RunError
from hetero_tui.fleet import agent
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.fleet.preflight import training_devices
from hetero_tui.fleet.survey import head_name, refuse_renamed, refuse_unlike, running_head
from hetero_tui.inventory import Inventory
from hetero_tui.runs.order import Order
from hetero_tui.runs.profile_names import profile_name
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent import settings as fields

STEP = "start run"


def plan_devices(fleet: LiveFleet, hosts: Collection[str]) -> tuple[protocol.DeviceSpec, ...]:
    """The devices that train, of these hosts that are in the cluster now; raises RunError if there is none."""
    devices: list[protocol.DeviceSpec] = []
    facts, members = fleet.facts, fleet.members
    for host in fleet.inventory.hosts:
        known = facts.get(host.name)
        if known is None or host.name not in members or host.name not in hosts:
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


async def launch(fleet: LiveFleet, order: Order, archive: bytes | None = None) -> tuple[str, str]:
    """Start a run on the running cluster; the answer is its name and the head host's name.

    ``archive`` is the code of an order that has some.

    Raises:
        RunError: no cluster runs, or it has no device that trains.
        HostError: the head failed at it.
    """
    job = order.job
    run = f"{'sweep-' if order.search is not None else ''}{job.slug}-{secrets.token_hex(2)}"
    document = specification(fleet, run, job.reference, order.settings)
    if order.hosts:
        devices = tuple(device for device in document.devices if device.host in order.hosts)
        document = dataclasses.replace(document, devices=devices)
    if order.script is None:
        document = dataclasses.replace(document, profile=profile_name(order, archive, document, fleet.facts))
    else:
        document = dataclasses.replace(document, script=True, arguments=order.script, search=order.search)
    head = document.host
    transport = fleet.transports[head]
    place = f"{agent.folder(fleet.cluster)}/runs/{run}"
    if archive is not None:
        deadline = deadlines.SHIP_JOB
        await transport.put(archive, f"{place}/{protocol.JOB_ARCHIVE}", step=STEP, deadline=deadline)
    written = protocol.encode(document).encode() + b"\n"
    await transport.put(written, f"{place}/run.json", step=STEP, deadline=deadlines.COMMAND)
    module = SWEEP if order.search is not None else COORDINATOR if order.script is None else SCRIPT
    await start_coordinator(transport, fleet.inventory, run, module)
    return run, head


def specification(fleet: LiveFleet, run: str, job: str, settings: Mapping[str, str]) -> protocol.RunSpec:
    """A run on the cluster as it is now.

    Raises:
        RunError: no cluster runs, it has no device that trains, or the strategy can't be encrypted as it has to be.
        ClusterError: the cluster was formed by another version, or with another ``security`` or ``network``.
    """
    head, spec = head_name(fleet.surveyed), running_head(fleet.surveyed)
    if head is None or spec is None:
        raise RunError("the cluster is down", step=STEP, hint="run `hetero-tui up` first")
    refuse_unlike(spec, fleet.inventory)
    refuse_renamed(fleet.surveyed)
    devices = plan_devices(fleet, fleet.members)
    if spec.encrypted:
        refuse_in_clear(settings, len({each.host for each in devices}))
    servers = [host.name for host in fleet.inventory.hosts if host.role == "server" and host.name in fleet.members]
    return protocol.RunSpec(
        run=run,
        job=job,
        cluster=fleet.cluster,
        host=head,
        ray_address=protocol.join_address(spec.head_address, spec.gcs_port),
        node_address=spec.head_address,
        devices=devices,
        server_host=servers[0] if servers else head,
        config=dict(settings),
        epoch=spec.epoch,
    )


def refuse_in_clear(settings: Mapping[str, str], hosts: int) -> None:
    """Refuse what would not be encrypted between so many hosts that train.

    Raises:
        RunError: the strategy can't be encrypted.
    """
    known = fields.values_of(settings)
    wanted = [f"strategy={known['strategy']}"] if known.get("strategy") == "allreduce" else []
    wanted += ["deterministic=true"] if known.get("deterministic") else []  # it runs as allreduce
    if wanted and hosts > 1:
        raise RunError(
            f"{wanted[0]} would send gradients in clear between hosts, and the inventory says `security: tls`",
            step=STEP,
            hint=f"leave {wanted[0]} out (torch's gloo has no TLS), or train on one host",
        )


_ENVIRONMENT = (
    'export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$PWD/token" RAY_USAGE_STATS_ENABLED=0 RAY_ENABLE_AUTO_CONNECT=0; '
    'export RAY_USE_TLS=1; tls="$PWD/tls.pem"; '
    'export RAY_TLS_SERVER_CERT="$tls" RAY_TLS_SERVER_KEY="$tls" RAY_TLS_CA_CERT="$tls"; '
)

COORDINATOR, SCRIPT, SWEEP = "remote_agent.coordinate", "remote_agent.raw_ray script", "remote_agent.sweep"
"""What carries out a run: the module, with the words before the run's folder."""


def environment(inventory: Inventory) -> str:
    """A coordinator's, as a shell in the cluster's folder sets it. Secrets go by file, never by a command line.

    One that is disconnected from the cluster must not have Ray start one of its own.
    """
    return f"{_ENVIRONMENT}export {protocol.EXCHANGE}={'tls' if inventory.encrypted else 'clear'}"


async def start_coordinator(transport: Transport, inventory: Inventory, run: str, module: str = COORDINATOR) -> None:
    """Start the process of a run whose files are on the host; raises CommandFailed."""
    # The agent starts programs in the cluster's folder.
    program = f'{environment(inventory)}; exec sh agent/run {module} "$PWD/runs/$0"'
    home = agent.home_folder(inventory.cluster)
    done = await agent.call(
        transport,
        inventory.cluster,
        "host.processes",
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
