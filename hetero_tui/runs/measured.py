"""Gets the measurements of a fleet and a job before a run: stored on the head earlier, or measured now."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable

from hetero_tui import answers, deadlines
from hetero_tui.errors import CommandFailed, UsageError
from hetero_tui.events import Level
from hetero_tui.fleet import agent
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.fleet.survey import head_name
from hetero_tui.inventory import Inventory
from hetero_tui.runs.before_start import archive_of, refuse_early, refuse_for
from hetero_tui.runs.description import described
from hetero_tui.runs.launch import environment, specification
from hetero_tui.runs.listing import list_runs
from hetero_tui.runs.order import Order
from hetero_tui.runs.profile_names import profile_name
from hetero_tui.text import HostText, last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent.planning.survey import MAX_AGE_DAYS, Survey

STEP = "plan"


async def kept(transport: Transport, cluster: str, name: str) -> Survey | None:
    """What was measured before; None: nothing, or its file was cut off."""
    place = f"{agent.folder(cluster)}/{protocol.PROFILES}/{name}.json"
    found = await transport.run(["sh", "-c", 'test -f "$0" && cat "$0"', place], step=STEP, deadline=deadlines.COMMAND)
    line = found.stdout.last("{")
    if found.exit_status != 0 or line is None:
        return None
    try:
        return answers.value(Survey, HostText(line))
    except protocol.ProtocolError:
        return None


async def measure(
    inventory: Inventory,
    transport: Transport,
    spec: protocol.RunSpec,
    archive: bytes | None,
    notice: Callable[[Level, str], None],
) -> Survey:
    """Measure now: the workers start on all hosts, and end. ``notice`` is told how far it is.

    Raises:
        HostError: the head failed at it, or the job can't be trained.
    """
    name = f"plan-{secrets.token_hex(4)}"
    place = f"{agent.folder(inventory.cluster)}/{protocol.PLANS}/{name}"
    if archive is not None:
        await transport.put(archive, f"{place}/{protocol.JOB_ARCHIVE}", step=STEP, deadline=deadlines.SHIP_JOB)
    written = protocol.encode(spec).encode() + b"\n"
    await transport.put(written, f"{place}/run.json", step=STEP, deadline=deadlines.COMMAND)
    # The coordinator's environment, as for a run; what was measured is printed, and the folder has no further use.
    program = (
        f'cd "$0" || exit 1; {environment(inventory)}; '
        'sh agent/run remote_agent.training.coordinator.measuring "$PWD/plans/$1"; '
        'status=$?; rm -rf "$PWD/plans/$1"; exit $status'
    )
    last: HostText | None = None
    try:
        command = ["sh", "-c", program, agent.folder(inventory.cluster), name]
        async with transport.stream(command, step=STEP, silence=deadlines.MEASURE, stdin=b"") as lines:
            async for line in lines:
                if line.raw.startswith(protocol.MEASURING):
                    notice(Level.INFO, last_lines(line.raw.removeprefix(protocol.MEASURING), 1))
                elif line.raw.startswith("{"):
                    last = line
    except CommandFailed as error:
        raise _failed(transport.host, error.output) from None
    if last is None:
        raise _failed(transport.host, "")
    try:
        return answers.value(Survey, last)
    except protocol.ProtocolError as error:
        raise agent.refused(transport.host, error, STEP) from None


def _failed(host: str, output: str) -> CommandFailed:
    return CommandFailed(
        host,
        f"devices and links could not be measured: {last_lines(output, 1) or 'it printed nothing'}",
        step=STEP,
        hint="`hetero-tui train` writes the same to the run's log",
        output=output,
    )


async def survey_of(
    fleet: LiveFleet, order: Order, notice: Callable[[Level, str], None], *, anew: bool
) -> tuple[Survey, bool]:
    """What is known of a fleet, and whether it was measured now; a cluster that is down is brought up.

    Args:
        anew: measure, even if that was done before.
    """
    refuse_for(order, fleet.inventory.hosts)
    archive = await archive_of(order, notice)
    await fleet.look()
    refuse_early(fleet, order)
    order = await described(fleet, order, archive, notice)
    if head_name(fleet.surveyed) is None:
        await fleet.bring_up()
    spec = specification(fleet, "plan", order.job.reference, order.settings)
    spec = dataclasses.replace(spec, profile=profile_name(order, archive, spec, fleet.facts))
    head = fleet.transports[spec.host]
    found = None if anew else await kept(head, fleet.cluster, spec.profile)
    is_old = found is not None and found.is_old(time.time())
    if found is not None and not is_old:
        return found, False
    live = [run.id for _, run in await list_runs(fleet.cluster, fleet.answering) if not run.state.final]
    if live:  # be it a sweep or a script
        others = f"{' and '.join(live)} {'is' if len(live) == 1 else 'are'} under way"
        if found is not None:
            notice(Level.WARNING, f"what was measured is old, and {others}: plan again after that")
            return found, False
        hint = f"wait for the end, or `hetero-tui stop {live[0]}`"
        raise UsageError(f"{others}, and devices are not measured beside that", step=STEP, hint=hint)
    again = f"what was measured is older than {MAX_AGE_DAYS} days: " if is_old else ""
    notice(Level.INFO, f"{again}measuring devices and links on the job's own model ...")
    return await measure(fleet.inventory, head, spec, archive, notice), True
