"""Let a run that ended too early go on, in its own folder on the head host, from its newest checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_tui import deadlines
from hetero_tui.errors import CommandFailed, RunError
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import agent
from hetero_tui.fleet.survey import Surveyed
from hetero_tui.inventory import Inventory
from hetero_tui.runs.launch import specification, start_coordinator
from hetero_tui.runs.listing import find_run
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol

STEP = "resume run"


async def resume(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    members: Mapping[str, Surveyed],
    facts: Mapping[str, HostFacts],
    run: str | None,
) -> tuple[str, protocol.RunSummary]:
    """Start the coordinator of a run again (None: of the newest), with the devices that are in the cluster now.

    Returns:
        The head host, and the run as it stood.

    Raises:
        RunError: there is no such run, it runs or is finished, it has no checkpoint, its host is not the head, or the
            cluster is down.
        HostError: the host failed at it.
    """
    place, summary = await find_run(inventory.cluster, transports, run)
    if summary.state in ("starting", "running"):
        hint = f"`hetero-tui attach {summary.id}` follows it"
        raise RunError(f"{summary.id} is under way", step=STEP, hint=hint)
    if summary.state == "finished":
        raise RunError(f"{summary.id} is finished: there is nothing left to do", step=STEP)
    spec = specification(inventory, members, facts, summary.id, summary.job, {})
    if spec.host != place:
        raise RunError(
            f"{summary.id} and its checkpoints are on {place}, and the head is {spec.host}",
            step=STEP,
            hint=f"make {place} the head (`head:` in the inventory), or start the run anew",
        )
    transport = transports[place]
    done = await agent.call(
        transport,
        inventory.cluster,
        "runs",
        *("--folder", agent.home_folder(inventory.cluster)),
        *("--reopen", summary.id),
        step=STEP,
        stdin=protocol.encode(spec).encode() + b"\n",
        deadline=deadlines.COMMAND,
    )
    if done is not None and done.exit_status == protocol.RUN_NOT_RESUMABLE:
        raise RunError(last_lines(done.stderr, 1), step=STEP, hint="start the run anew with `hetero-tui train`")
    if done is None or done.exit_status != 0:
        detail = "no agent there" if done is None else last_lines(done.stderr)
        cause = f"{summary.id} could not be resumed: {last_lines(detail, 1)}"
        raise CommandFailed(place, cause, step=STEP, hint="run `hetero-tui up` again", output=detail)
    await start_coordinator(transport, inventory.cluster, summary.id)
    return place, summary
