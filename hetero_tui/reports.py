"""Makes the reports of commands: JSON documents, whose fields are stable for scripts, and tables for people."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from hetero_tui.errors import HeteroTuiError
from hetero_tui.facts import HostFacts
from hetero_tui.fleet.bring_up import UpReport
from hetero_tui.fleet.preflight import judge_fleet
from hetero_tui.fleet.probing import Probed
from hetero_tui.intents import LoggedLine
from hetero_tui.inventory import Inventory
from hetero_tui.recording.replay import Recording
from hetero_tui.state import State
from hetero_tui.text import loss_figure, one_line, plain
from remote_agent import protocol
from remote_agent.planning.verdicts import seconds
from remote_agent.states import stands_at


def probe_document(inventory: Inventory, probed: tuple[Probed, ...], head: str | None = None) -> dict[str, Any]:
    """The JSON of ``probe``; ``problems`` are what keeps a host that answered from joining the cluster."""
    judged = judge_fleet(inventory, {entry.host: entry.facts for entry in probed if entry.facts is not None}, head)
    return {
        "hosts": [
            {
                "name": entry.host,
                "status": entry.status,
                "seconds": round(entry.seconds, 1),
                "facts": None if entry.facts is None else entry.facts.model_dump(mode="json"),
                "notes": [] if entry.facts is None else list(entry.facts.notes),
                "problems": [{"cause": problem.cause, "hint": problem.hint} for problem in judged.get(entry.host, ())],
                "error": error_document(entry.error),
            }
            for entry in probed
        ]
    }


def error_document(error: HeteroTuiError | None) -> dict[str, str] | None:
    """An error as JSON: step, cause, hint."""
    return None if error is None else {"step": error.step, "cause": error.cause, "hint": error.hint}


def probe_rows(inventory: Inventory, probed: tuple[Probed, ...], head: str | None = None) -> list[list[str]]:
    """The table of ``probe``: one line for each host that answered; ``head`` is the running cluster's."""
    judged = judge_fleet(inventory, {entry.host: entry.facts for entry in probed if entry.facts is not None}, head)
    rows = []
    for entry in probed:
        if entry.facts is None or entry.host not in judged:
            continue
        facts, problems = entry.facts, judged[entry.host]
        verdict = "; ".join(("fit", *facts.notes)) if not problems else f"{problems[0].cause} -> {problems[0].hint}"
        rows.append([entry.host, _devices(facts), _gigabytes(facts), facts.python.version, verdict])
    return rows


def up_document(state: State, report: UpReport) -> dict[str, Any]:
    """The JSON of ``up``."""
    return {
        "cluster": {"state": str(state.cluster_state), "head": state.head},
        "hosts": [
            {"name": host.name, "state": str(host.state), "error": error_document(report.failed.get(host.name))}
            for host in state.hosts
        ],
    }


def status_document(state: State, runs: tuple[tuple[str, protocol.RunSummary], ...]) -> dict[str, Any]:
    """The JSON of ``status``."""
    return {
        "cluster": {"state": "unknown" if state.is_silent else str(state.cluster_state), "head": state.head},
        "hosts": [{"name": host.name, "state": str(host.state), "detail": host.detail} for host in state.hosts],
        **runs_document(runs),
    }


def runs_document(runs: tuple[tuple[str, protocol.RunSummary], ...]) -> dict[str, Any]:
    """The JSON of ``runs``."""
    return {
        "runs": [
            {
                "id": run.id,
                "job": run.job,
                "state": run.state,
                "step": run.step,
                "loss": run.loss,
                "step_s": run.step_s,
                "predicted_s": run.predicted_s,
                "started": run.started,
                "host": host,
            }
            for host, run in runs
        ]
    }


def run_rows(runs: tuple[tuple[str, protocol.RunSummary], ...]) -> list[list[str]]:
    """The table of ``runs``."""
    return [
        [
            run.id,
            run.job,
            run.state,
            # A script makes no steps of its own, and a sweep counts its trials; its loss is that of the best one.
            "-" if run.script else f"{run.step:,}",
            "-" if run.script and run.loss is None else loss_figure(run.loss),
            "-" if run.script else _step_time(run),
            "n/a" if run.started is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)),
        ]
        for _, run in runs
    ]


def _step_time(run: protocol.RunSummary) -> str:
    if run.step_s is None:
        return "n/a"
    return seconds(run.step_s) + (f" (predicted {seconds(run.predicted_s)})" if run.predicted_s else "")


def recording_document(recording: Recording, state: State) -> dict[str, Any]:
    """Return the JSON of ``replay``: the ``state`` at the end of a recording; a cluster that it never saw has none."""
    run, shown = state.run, str(state.cluster_state) if recording.has_cluster else None
    return {
        "begins": recording.begins,
        "ends": recording.ends,
        "cluster": {"name": state.cluster, "state": shown, "head": state.head},
        "hosts": [{"name": host.name, "state": str(host.state), "detail": host.detail} for host in state.hosts],
        "run": None
        if run is None
        else {"id": run.run, "job": run.job, "state": str(run.state), "step": run.step, "loss": run.loss},
        "log": [{"time": line.time, "level": str(line.level), "text": line.text} for line in state.log],
    }


def recording_line(recording: Recording, state: State) -> str:
    """Return the same in a line, for people."""
    moments = (recording.begins, recording.ends)
    when = " to ".join(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)) for moment in moments)
    shown = state.run
    run = f"; {shown.run} {shown.state} {stands_at(shown.state, shown.step)}" if shown is not None else ""
    cluster = f" {state.cluster_state}, {state.hosts_up} hosts up" if recording.has_cluster else ""
    return f"{when}: cluster {state.cluster}{cluster}{run}"


def log_line(entry: LoggedLine) -> str:
    """A line of ``logs`` for people: time in UTC, host and process, and what it says."""
    moment = datetime.fromtimestamp(entry.line.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{moment} [{entry.host}/{one_line(entry.line.process)}] {plain(entry.line.line)}"


def log_json(entry: LoggedLine) -> str:
    """The same for scripts."""
    line = entry.line
    return json.dumps({"time": line.time, "host": entry.host, "process": line.process, "line": plain(line.line)})


def _devices(facts: HostFacts) -> str:
    return ", ".join(facts.device_name(device) for device in facts.devices)


def _gigabytes(facts: HostFacts) -> str:
    total = facts.memory.total_bytes
    return "n/a" if total is None else f"{total / 2**30:.1f} GB"
