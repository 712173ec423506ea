"""Starts the cluster: every fit host gets the agent, its secrets and a Ray node, in parallel; running nodes stay.

The order on each host is: ledger, agent, secrets, node. After a crash between any two of them there is a ledger entry,
so that ``down`` knows where to look, and the next ``up`` continues.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from hetero_tui import deadlines, events
from hetero_tui.errors import ClusterError, CommandFailed, HostError, RequirementMissing
from hetero_tui.events import ClusterState, Emit, HostState
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import agent
from hetero_tui.fleet.findings import of_network
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.preflight import judge_fleet
from hetero_tui.fleet.probing import Probed, changed_by
from hetero_tui.fleet.reaching import reaching
from hetero_tui.fleet.survey import (
    FleetView,
    Surveyed,
    head_name,
    newest_epoch,
    refuse_renamed,
    refuse_unlike,
    running_head,
)
from hetero_tui.inventory import Host, Inventory
from hetero_tui.planning.cluster import Candidate, ClusterPlan, PlannedNode, plan_cluster
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent.states import RayState

STEP = "start Ray"
_KEPT = re.compile(
    r"^(?P<token>[0-9a-f]{64})\n*(?P<authority>-----BEGIN PRIVATE KEY-----.*-----END CERTIFICATE-----\n)?\Z",
    re.MULTILINE | re.DOTALL,
)

OnHead = Callable[[], Awaitable[None]]
"""Called once the head of a new cluster is up."""


class _HeadFailed(ClusterError):
    """The machine that was chosen as the new head answers, but Ray does not start there."""

    def __init__(self, error: HostError) -> None:
        hint = "name another machine as the cluster's `head:` in the inventory"
        hint = f"{error.hint}; or {hint}" if error.hint else hint
        super().__init__(f"the head {error.host} did not start: {error.cause}", step=STEP, hint=hint)
        self.error = error


@dataclass(frozen=True, slots=True)
class UpReport:
    """The hosts that are in the cluster now, and the errors of the others."""

    plan: ClusterPlan | None
    joined: tuple[str, ...]
    failed: Mapping[str, HostError]


async def bring_up(
    fleet: FleetView,
    ledger: Ledger,
    emit: Emit,
    holders: frozenset[str] | None = None,
    only: str | None = None,
    on_head: OnHead | None = None,
) -> UpReport:
    """Start Ray on every host that was probed and is fit; with ``only``, if a head runs, on this host alone.

    ``holders`` is given to form a cluster anew that has lost its head, to continue a run: one of these hosts becomes
    the head. What the hosts still have of the old cluster is removed. ``on_head`` is called once a new head is up,
    while the other hosts join; it must not raise.

    A host that fails is in the report, also the head of a running cluster; the others are in the cluster all the same.
    If the inventory names no head and Ray does not start on the chosen one, another one is tried once.

    Raises:
        ClusterError: no cluster is possible: no fit host, no head, no port, a new head that did not start, or a running
            head that does not answer or has another ``security`` or ``network`` than the inventory.
    """
    try:
        return await _bring_up(fleet, ledger, emit, holders, only, on_head)
    except _HeadFailed as first:
        failed = first.error
        rest = tuple(found for found in fleet.probed if found.host != failed.host)
        if fleet.inventory.head or holders is not None or not judged(fleet.inventory, rest, None)[0]:
            raise
        text = f"Ray does not start on {failed.host}, so another machine is the head: {failed.cause}"
        emit(events.Notice(level=events.Level.WARNING, text=text, host=failed.host))
        report = await _bring_up(replace(fleet, probed=rest), ledger, emit, holders, only, on_head)
        return replace(report, failed={**report.failed, failed.host: failed})


async def _bring_up(
    fleet: FleetView,
    ledger: Ledger,
    emit: Emit,
    holders: frozenset[str] | None,
    only: str | None,
    on_head: OnHead | None,
) -> UpReport:
    inventory, transports, surveyed = fleet.inventory, fleet.transports, fleet.surveyed
    running = running_head(surveyed) if holders is None else None
    if running is not None:
        refuse_unlike(running, inventory)
        refuse_renamed(surveyed)
    fit, failed = judged(inventory, fleet.probed, head_name(surveyed) if running is not None else None)
    _tell_unfit(failed.values(), emit)
    candidates = {name: Candidate(host, facts, transports[name].address) for name, (host, facts) in fit.items()}
    head = _running_head_name(running, surveyed, inventory)
    candidates, apart = await reaching(fleet, candidates, ledger, emit, is_running=running is not None, head=head)
    failed |= apart
    if not candidates and failed:
        first = next(iter(failed.values()))
        raise ClusterError(f"no host can join; {first.host}: {first.cause}", step="up", hint=first.hint)
    plan = plan_cluster(inventory, candidates, head=head, holders=holders)
    if running is not None:  # the head's address and ports stay as they are
        plan = _as_running(plan, running)
    nodes = tuple(node for node in plan.nodes if running is None or only in (None, node.host))
    # A machine of the replaced cluster that comes back must not join the new one, so the new one has a new secret.
    try:
        token, own = await _credentials(
            inventory.cluster, ledger, transports[plan.head], running is not None, new=is_new(surveyed, holders)
        )
    except HostError as silent:
        emit(changed_by(silent, plan.head))
        emit(events.ClusterChanged(state=ClusterState.DEGRADED, head=plan.head))
        cause = f"the running cluster's head, {plan.head}, can't be asked for its secret, so no host joins"
        raise ClusterError(f"{cause}: {silent.cause}", step=STEP, hint=silent.hint) from silent
    members = None if running is None else {name for name, found in surveyed.items() if found.runs_ray}
    for node in nodes:
        ledger.intend(candidates[node.host].host, "node")
    if running is None or not all(node.host in surveyed and surveyed[node.host].runs_ray for node in plan.nodes):
        emit(events.ClusterChanged(state=ClusterState.STARTING, head=plan.head))
        for reason in plan.reasons:
            emit(events.Notice(level=events.Level.INFO, text=reason))
    if running is None and (warning := of_network((node.address for node in plan.nodes), inventory)):
        emit(events.Notice(level=events.Level.INFO, text=warning))
    epoch = running.epoch if running is not None else max(newest_epoch(surveyed) + 1, int(time.time()))
    async with asyncio.TaskGroup() as group:
        starting = {
            node.host: group.create_task(
                _start(
                    transports[node.host],
                    candidates[node.host].facts.python.executable,
                    _spec_of(inventory, candidates[node.host].host.role, node, plan, epoch),
                    _secrets_of(node, plan.head, token, own, members),
                    emit,
                    runs=members is not None and node.host in members,
                )
            )
            for node in nodes
        }
        # A new cluster needs its head. In a running one the others stay, whatever the result of this call.
        error = await starting[plan.head] if running is None else None
        if error is not None:
            for task in starting.values():
                task.cancel()  # the others wait for the head's port
        elif running is None and on_head is not None:
            await on_head()
    if error is not None:
        others = [transports[name] for name in starting if name != plan.head]
        await asyncio.gather(*(_undo(inventory.cluster, transport, emit) for transport in others))
        emit(events.ClusterChanged(state=ClusterState.DOWN))
        if isinstance(error, CommandFailed):
            raise _HeadFailed(error)
        raise ClusterError(f"the head {plan.head} did not start: {error.cause}", step=STEP, hint=error.hint)
    failed |= {name: failure for name, task in starting.items() if (failure := task.result()) is not None}
    if running is not None and (error := failed.get(plan.head)) is not None:
        text = f"the head of the running cluster failed: {error.cause}; the other machines stay in the cluster"
        hint = f" -> {error.hint}" if error.hint else ""
        emit(events.Notice(level=events.Level.BAD, text=f"{text}{hint}", host=plan.head))
    there = {name for name, found in surveyed.items() if found.runs_ray} | starting.keys()
    joined = tuple(node.host for node in plan.nodes if node.host in there and node.host not in failed)
    whole = len(joined) == len(inventory.hosts)
    state = ClusterState.UP if whole else ClusterState.DEGRADED
    emit(events.ClusterChanged(state=state, head=plan.head))
    return UpReport(plan, joined, failed)


def judged(
    inventory: Inventory, probed: tuple[Probed, ...], head: str | None
) -> tuple[dict[str, tuple[Host, HostFacts]], dict[str, HostError]]:
    """The hosts that may join by their last probe, and the errors of the others. Pure."""
    failed = {entry.host: entry.error for entry in probed if entry.error is not None}
    fit: dict[str, tuple[Host, HostFacts]] = {}
    facts = {entry.host: entry.facts for entry in probed if entry.facts is not None}
    for name, problems in judge_fleet(inventory, facts, head).items():
        host = inventory.host(name)
        if problems:
            causes = "; ".join(problem.cause for problem in problems)
            failed[name] = RequirementMissing(name, causes, step="probe", hint=problems[0].hint)
        elif host is not None:
            fit[name] = (host, facts[name])
    return fit, failed


def _tell_unfit(failed: Iterable[HostError], emit: Emit) -> None:
    for error in failed:
        if isinstance(error, RequirementMissing):
            emit(events.HostChanged(host=error.host, state=HostState.UNFIT, detail=error.cause, hint=error.hint))


def _running_head_name(
    running: protocol.NodeSpec | None, surveyed: Mapping[str, Surveyed], inventory: Inventory
) -> str | None:
    if running is None:
        return None
    name = head_name(surveyed)
    if name is None:
        for found in surveyed.values():
            if found.node is not None and found.node.spec is not None and found.node.spec.role == "head":
                raise ClusterError(
                    f"a cluster runs, but Ray has ended on its head {found.host}: {found.node.cause}",
                    step="up",
                    hint="`hetero-tui resume` goes on with its run; `down` and then `up` starts afresh, runs stay",
                )
        if all(host.name in surveyed and surveyed[host.name].error is None for host in inventory.hosts):
            raise ClusterError(
                f"a cluster runs, and none of the inventory's hosts is its head ({running.head_address})",
                step="up",
                hint="`hetero-tui add` that one again; or `down` and then `up` forms another, runs stay",
            )
        raise ClusterError(
            f"a cluster runs, but its head ({running.head_address}) does not answer",
            step="up",
            hint="`hetero-tui resume` goes on with its run on the others; or wait until it is back",
        )
    return name


def _as_running(plan: ClusterPlan, running: protocol.NodeSpec) -> ClusterPlan:
    nodes = tuple(
        PlannedNode(node.host, running.head_address if node.host == plan.head else node.address, node.cpus)
        for node in plan.nodes
    )
    return ClusterPlan(
        head=plan.head,
        head_address=running.head_address,
        gcs_port=running.gcs_port,
        dashboard_port=running.dashboard_port,
        nodes=nodes,
        reasons=plan.reasons,
    )


def is_new(surveyed: Mapping[str, Surveyed], holders: frozenset[str] | None) -> bool:
    """Whether no host has a node of the cluster; a killed `up` may have started some."""
    return holders is not None or not any(found.has_node for found in surveyed.values())


async def _credentials(
    cluster: str, ledger: Ledger, head: Transport, running: bool, *, new: bool
) -> tuple[str, str | None]:
    """Token and authority of the running cluster, which its head keeps too, or new ones; no authority: it is lost.

    They are sent by stdin and files, never in a command.
    """
    from hetero_tui.fleet import authority  # takes a moment to load

    if running:
        script = 'echo; cat "$0/token" && echo && cat "$0/authority.pem"'
        done = await head.run(
            ["sh", "-c", script, agent.folder(cluster)], step="read token", deadline=deadlines.COMMAND
        )
        if found := _KEPT.search(done.stdout.raw):
            ledger.keep_token(found["token"])
            if found["authority"] and authority.is_one(found["authority"]):
                ledger.keep_authority(found["authority"])
            return found["token"], ledger.authority()
    token, own = ledger.token(), ledger.authority()
    if token is None or new:
        token, own = secrets.token_hex(32), None
        ledger.keep_token(token)
    if own is None and not running:
        own = authority.create(cluster)
        ledger.keep_authority(own)
    return token, own


def _secrets_of(
    node: PlannedNode, head: str, token: str, own: str | None, members: Collection[str] | None
) -> Mapping[str, str]:
    """The secret files of a node, by name. ``members`` of a running cluster already have certificates."""
    if own is None or node.host in (members or ()):
        return {"token": token}
    from hetero_tui.fleet import authority  # takes a moment to load

    files = {"token": token, "tls.pem": authority.certificate(own, node.host, [node.address])}
    return files | ({"authority.pem": own} if node.host == head else {})


def _spec_of(inventory: Inventory, role: str, node: PlannedNode, plan: ClusterPlan, epoch: int) -> protocol.NodeSpec:
    cluster = inventory.cluster
    return protocol.NodeSpec(
        cluster=cluster,
        host=node.host,
        role="head" if node.host == plan.head else "worker",
        folder=agent.home_folder(cluster),
        node_address=node.address,
        head_address=plan.head_address,
        gcs_port=plan.gcs_port,
        dashboard_port=plan.dashboard_port,
        labels={"hetero-cluster": cluster, "hetero-role": role},
        resources={},
        cpus=node.cpus,
        epoch=epoch,
        encrypted=inventory.encrypted,
        meshed=inventory.meshed,
        code=agent.code(),
    )


async def _start(
    transport: Transport, python: str, spec: protocol.NodeSpec, given: Mapping[str, str], emit: Emit, *, runs: bool
) -> HostError | None:
    """Start a node, or look at one that ``runs``."""
    cluster = spec.cluster
    began = time.time()
    if not runs:
        emit(events.HostChanged(time=began, host=spec.host, state=HostState.STARTING, detail="Ray"))
    try:
        await agent.ship(transport, cluster, python)
        for name, text in given.items():
            path = f"{agent.folder(cluster)}/{name}"
            await transport.put(text.encode(), path, step=f"send {name}", deadline=deadlines.COMMAND)
        report = await _node_start(transport, cluster, spec)
    except HostError as error:
        emit(changed_by(error, spec.host))
        return error
    detail = "ran already" if report.already else f"joined in {time.time() - began:.1f} s"
    emit(events.HostChanged(host=spec.host, state=HostState.UP, detail=detail))
    return None


async def _undo(cluster: str, transport: Transport, emit: Emit) -> None:
    """Undo the start of a cluster whose head did not start; it would look like a cluster that has lost its head."""
    try:
        await agent.call(
            transport,
            cluster,
            "host.node",
            "stop",
            *("--folder", agent.home_folder(cluster)),
            step=STEP,
            deadline=deadlines.NODE_STOP,
        )
    except HostError as error:
        emit(changed_by(error, transport.host))
    else:
        emit(events.HostChanged(host=transport.host, state=HostState.READY))


async def _node_start(transport: Transport, cluster: str, spec: protocol.NodeSpec) -> protocol.NodeReport:
    done = await agent.call(
        transport,
        cluster,
        "host.node",
        "start",
        step=STEP,
        deadline=deadlines.NODE_START,
        stdin=protocol.encode(spec).encode() + b"\n",
    )
    if done is None:
        raise CommandFailed(transport.host, "the agent that was just sent is gone", step=STEP, hint="try again")
    report = agent.answer(protocol.NodeReport, transport.host, done, step=STEP)
    if report.state is not RayState.RUNNING:
        raise CommandFailed(transport.host, report.cause or "Ray did not start", step=STEP, hint=report.hint)
    return report
