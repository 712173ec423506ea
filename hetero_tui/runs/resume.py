"""Let a run that ended too early go on from its newest checkpoint, in its folder on the head or the copy there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hetero_tui import deadlines
from hetero_tui.errors import CommandFailed, HostError, RunError
from hetero_tui.fleet import agent
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.planning.cluster import holders
from hetero_tui.runs.launch import specification, start_coordinator
from hetero_tui.runs.listing import START_ANEW, find_among, list_copies, told_best, with_silent
from hetero_tui.runs.watching import Seen
from hetero_tui.text import last_lines
from remote_agent import protocol
from remote_agent.settings import GOALS
from remote_agent.states import RunState

STEP = "resume run"


def refuse_if_done(summary: protocol.RunSummary, settings: Mapping[str, str]) -> None:
    """Raise RunError if a run has made all its steps, and is not to make more with these settings, or makes none."""
    if summary.script:
        hint = "run it again with `hetero-tui run` or `hetero-tui sweep`"
        raise RunError(f"{summary.id} is a script or a sweep, which has no checkpoints", step=STEP, hint=hint)
    wanted = settings.get("num_iterations")
    if wanted is not None and int(wanted) <= summary.step:
        cause = f"{summary.id} has made {summary.step:,} steps already"
        raise RunError(cause, step=STEP, hint="num_iterations counts all steps of the run: give more")
    if summary.state is RunState.FINISHED and not set(GOALS) & set(settings):
        hint = f"`hetero-tui resume {summary.id} --set num_iterations={2 * summary.step}` has it train on"
        raise RunError(f"{summary.id} is finished: there is nothing left to do", step=STEP, hint=hint)


def refuse_without_checkpoint(
    summary: protocol.RunSummary, copies: Sequence[tuple[str, protocol.RunSummary]], failed: Sequence[HostError] = ()
) -> None:
    """Raise RunError if no host has a checkpoint of a run; ``failed`` are of hosts that could not be asked."""
    if holders(summary.id, copies):
        return
    cause, hint = f"{summary.id} ended before its first checkpoint", START_ANEW
    if failed:
        cause, hint = f"no host that answers holds a checkpoint of {summary.id}", "try again once those are back"
    cause, hint = with_silent(cause, hint, failed)
    raise RunError(cause, step=STEP, hint=hint)


def refuse_beside(known: Sequence[tuple[str, protocol.RunSummary]], run: str) -> None:
    """Raise RunError if another run, which has the devices, is under way; ``known``: pairs of host and run."""
    for _, other in known:
        if other.id != run and not other.state.final and not other.script:
            raise RunError(f"{other.id} is under way", step=STEP, hint=f"stop it first: `hetero-tui stop {other.id}`")


async def resume(
    fleet: LiveFleet,
    run: str | None,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    cause: str = "",
    seen: Seen | None = None,
) -> tuple[str, protocol.RunSummary]:
    """Start the coordinator of a run again (None: of the newest), with the devices that are in the cluster now.

    Args:
        fleet: as it is now; its hosts that answer are asked for the run.
        settings: with which it goes on, beside its own.
        cause: why its head was lost, where that is why it has to go on elsewhere.
        seen: its events as this laptop has them, which can be more than its new host's copy has.

    Returns:
        The head host, and the run as it stood there.

    Raises:
        RunError: there is no such run, it or another one runs, it is finished, it has no checkpoint, the head does not
            hold its newest one, or the cluster is down.
        HostError: the host failed at it.
    """
    cluster, transports = fleet.cluster, fleet.answering
    copies = await list_copies(cluster, transports)
    runs = told_best(copies)
    _, summary = find_among(runs, run)
    if not summary.state.final:
        hint = f"`hetero-tui attach {summary.id}` follows it"
        raise RunError(f"{summary.id} is under way", step=STEP, hint=hint)
    refuse_beside(runs, summary.id)
    refuse_if_done(summary, settings)
    # A run that had the hosts that are away takes them in once they are back.
    awaited = (host.name for host in fleet.inventory.hosts if host.role != "server" and host.name not in fleet.members)
    spec = specification(fleet, summary.id, summary.job, settings)
    spec = replace(spec, ended=cause, awaited=tuple(awaited))
    able = holders(summary.id, copies)
    if able and spec.host not in able:
        raise RunError(
            f"the newest checkpoint of {summary.id} is on {', '.join(sorted(able))}, and the head is {spec.host}",
            step=STEP,
            hint="run `hetero-tui down`, then `hetero-tui resume`: it makes one of them the head",
        )
    place = spec.host
    transport = transports[place]
    # What only this laptop has was shown, and must not be numbered anew; the rest is there, in a long run much of it.
    known = next((entry.seq for host, entry in copies if host == place and entry.id == summary.id), 0)
    lacking = seen.lines(after=known) if seen is not None else b""
    done = await agent.call(
        transport,
        cluster,
        "runs",
        *("--folder", agent.home_folder(cluster)),
        *("--reopen", summary.id),
        step=STEP,
        stdin=protocol.encode(spec).encode() + b"\n" + lacking,
        deadline=deadlines.COMMAND,
    )
    if done is not None and done.exit_status == protocol.RUN_NOT_RESUMABLE:
        raise RunError(last_lines(done.stderr, 1), step=STEP, hint="start the run anew with `hetero-tui train`")
    if done is None or done.exit_status != 0:
        detail, hint = "no agent there", "run `hetero-tui up` again"
        if done is not None:
            detail, hint = last_lines(done.stderr), f"see to that there, then run `hetero-tui resume {summary.id}`"
        cause = f"{summary.id} could not be resumed: {last_lines(detail, 1)}"
        raise CommandFailed(place, cause, step=STEP, hint=hint, output=detail)
    await start_coordinator(transport, fleet.inventory, summary.id)
    return place, summary
