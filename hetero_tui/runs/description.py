"""Asks the head what a job is, before Ray starts: it imports the job, and tells mistakes in the file or its settings.

The last description of each job's file is kept on the laptop: the train form and the shell completion show the settings
in it. They check nothing by it, since it may be of an earlier version of the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from platformdirs import user_cache_path

from hetero_tui import deadlines
from hetero_tui.errors import CommandFailed, OrderError
from hetero_tui.events import Level
from hetero_tui.fleet import agent
from hetero_tui.fleet.bring_up import judged
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.fleet.survey import head_name
from hetero_tui.planning.cluster import Candidate, plan_cluster
from hetero_tui.runs.order import Job, Order, placed
from hetero_tui.text import last_lines
from remote_agent import protocol
from remote_agent import settings as fields
from remote_agent.job_settings import CONFIGS, OwnSetting, written
from remote_agent.protocol import JobDescription, JobQuestion

STEP = "describe job"


async def described(
    fleet: LiveFleet, order: Order, archive: bytes | None, notice: Callable[[Level, str], None]
) -> Order:
    """Return ``order`` with the job's name and its settings' whole names, as the head found them.

    Raises:
        OrderError: the job can't be imported there, is no job, or its settings are wrong; with every mistake.
        HostError: the head failed at it.
        ClusterError: no host can be the head.
    """
    job = order.job
    if (order.script is not None and order.search is None) or not (job.is_open or job.own):
        return order
    question = _question(order)
    head = _head_of(fleet)
    key = hashlib.sha256(f"{head} {agent.code()} {protocol.encode(question)}".encode() + (archive or b"")).hexdigest()
    found = known(job)
    if found is None or found.key != key:
        notice(Level.INFO, f"{head} imports {job.file.name if job.file is not None else job.name}")
        found = await _ask(fleet, head, question, archive or b"")
        if found.detail:
            notice(Level.INFO, found.detail)
        if found.failure:
            raise OrderError((found.failure,), hint=found.hint)
        if found.mistakes:
            raise OrderError(tuple(_placed(mistake, order) for mistake in found.mistakes))
        _keep(job, replace(found, key=key))
    return replace(order, job=replace(job, name=found.job or job.name), settings=found.settings)


def _placed(mistake: str, order: Order) -> str:
    name = re.split("[=:]", mistake, maxsplit=1)[0]
    if order.search is not None and name in [each.name for each in order.search.parameters]:
        return f"--param {mistake}"
    return placed(mistake, fields.with_whole_names(order.settings), order.job)


def known(job: Job) -> JobDescription | None:
    """The last description of a job's file; None: there is none."""
    with contextlib.suppress(OSError, ValueError):
        return protocol.decode(JobDescription, _place(job).read_text(encoding="utf-8"))
    return None


def own_settings(job: Job) -> tuple[OwnSetting, ...]:
    """The job's own settings, of a file as it was described last."""
    found = known(job) if job.is_open else None
    if found is None:
        return job.own
    return tuple(
        OwnSetting(name=each.name, hint=None, default=each.default, help=f"{each.help} ({each.kind})".lstrip())
        for each in found.own
    )


def chosen_by(job: Job) -> Mapping[str, str]:
    """Settings that the job has in the place of the defaults, of a file as it was described last."""
    if job.is_open:
        found = known(job)
        return found.config if found is not None else {}
    return {name: written(value) for name, value in CONFIGS.get(job.name, {}).items()}


def _keep(job: Job, found: JobDescription) -> None:
    place = _place(job)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(protocol.encode(found), encoding="utf-8")


def _place(job: Job) -> Path:
    about = f"{job.file.resolve() if job.file is not None else ''}:{job.name}"
    return user_cache_path("hetero-tui") / "jobs" / f"{hashlib.sha256(about.encode()).hexdigest()[:32]}.json"


def _question(order: Order) -> JobQuestion:
    job, trials = order.job, list[dict[str, str]]()
    if order.search is not None:
        ends = [each.choices or (each.at(0.0), each.at(1.0)) for each in order.search.parameters]
        names = [each.name for each in order.search.parameters]
        most = max(map(len, ends))
        trials = [dict(zip(names, (each[n % len(each)] for each in ends), strict=True)) for n in range(most)]
    reference = job.reference if job.name else f"{job.reference}:"
    return JobQuestion(job=reference, settings=dict(order.settings), trials=tuple(trials))


def _head_of(fleet: LiveFleet) -> str:
    """The head, or the host that becomes it."""
    if (head := head_name(fleet.surveyed)) is not None:
        return head
    fit, _ = judged(fleet.inventory, fleet.probed, None)
    candidates = {name: Candidate(host, facts, fleet.transports[name].address) for name, (host, facts) in fit.items()}
    return plan_cluster(fleet.inventory, candidates).head


async def _ask(fleet: LiveFleet, head: str, question: JobQuestion, archive: bytes) -> JobDescription:
    transport, host = fleet.transports[head], fleet.inventory.host(head)
    if head not in fleet.members and host is not None:
        fleet.ledger.intend(host, "node")
        await agent.ship(transport, fleet.cluster, fleet.facts[head].python.executable)
    home = agent.home_folder(fleet.cluster)
    given = protocol.encode(question).encode() + b"\n" + archive
    deadline = deadlines.DESCRIBE
    done = await agent.call(transport, fleet.cluster, "describe", home, step=STEP, deadline=deadline, stdin=given)
    if done is None or done.exit_status != 0:
        detail = "no agent there" if done is None else last_lines(done.stderr)
        cause = f"the job could not be imported: {last_lines(detail, 1)}"
        hint = "look at what the file does when it is imported"
        raise CommandFailed(head, cause, step=STEP, hint=hint, output=detail)
    return agent.answer(JobDescription, head, done, step=STEP)
