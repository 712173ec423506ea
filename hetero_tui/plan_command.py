"""``hetero-tui plan JOB``: what training it would take, with which machines, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero_tui import commanding
from hetero_tui.cli_options import Job, Settings, With
from hetero_tui.commanding import Call
from hetero_tui.launcher import DONE, FAILED
from hetero_tui.narration import Output

if TYPE_CHECKING:
    from hetero_tui.runs.order import Order
    from remote_agent.planning.survey import Survey
    from remote_agent.settings import TrainingConfig


async def plan(
    call: Call,
    output: Output,
    job: Job,
    settings: Settings = None,
    paths: With = None,
    allow: Annotated[
        str, typer.Option("--allow", help="inexact: ways that give other weights than one process would, too.")
    ] = "exact",
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="CHANGE", help="add=rtx4070@1gbit, link=wifi or without=nas; repeatable."),
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option("--fleet", help="Plan for the fleet that this file describes; nothing is measured.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Each term of the step's time, and its source.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure anew, even if nothing has changed.")] = False,
) -> int:
    """Say what a step will take and which machines help. Nothing is trained."""
    from hetero_tui.planning import fleet_file
    from hetero_tui.planning import what_if as what_if_changes

    pairs = [*(settings or ()), *([f"allow={allow}"] if allow == "inexact" else [])]
    wrong = [f"--allow {allow}: valid: exact, inexact"] if allow not in ("exact", "inexact") else []
    if measure and fleet is not None:
        wrong.append("--measure looks at the machines that are there, not at those of --fleet")
    order = _order(job, pairs, paths or (), wrong)
    config = _config(order, fleet=fleet is not None)
    changes = what_if or []
    if fleet is not None:
        survey = fleet_file.under(fleet_file.read(fleet), config)
        return _print(output, survey, config, changes, explain=explain)
    async with call.session() as session:
        what_if_changes.check([host.name for host in session.inventory.hosts], changes)
        survey, measured = await session.survey_of(order, anew=measure)
        absent = session.absent
        code = _print(output, survey, config, changes, explain=explain, measured=measured)
        return commanding.without(output, code, absent)


def _order(job: str, pairs: list[str], paths: list[str] | tuple[()], wrong: list[str]) -> Order:
    """The order; raises PlanError with its mistakes and those that are ``wrong`` beside it."""
    from hetero_tui.errors import OrderError, PlanError
    from hetero_tui.runs.order import read_order

    try:
        order = read_order(job, pairs, paths)
    except OrderError as error:
        if not wrong:
            raise
        raise PlanError((*wrong, *error.mistakes), hint=error.hint) from error
    if wrong:
        raise PlanError(tuple(wrong))
    return order


def _does_not_fit(output: Output, error: Exception) -> int:
    output.complain(f"hetero-tui: plan: the job does not fit: {error} -> a smaller batch or model, or more memory")
    return FAILED


def _config(order: Order, *, fleet: bool) -> TrainingConfig:
    """The settings; a plan chooses the strategy unless one is named.

    Raises:
        UsageError: they do not go together, or nothing is known of how long a step of the named strategy takes.
    """
    from hetero_tui.errors import PlanError, UsageError
    from hetero_tui.runs.order import own_hints
    from remote_agent.errors import ConfigError
    from remote_agent.planning.ways import PIPELINE, PREDICTED
    from remote_agent.settings import TrainingConfig, names
    from remote_agent.strategies import AUTO

    own = own_hints(order.job)
    given = {name: value for name, value in order.settings.items() if not order.job.is_open or name in {*own, *names()}}
    try:
        config = TrainingConfig.from_settings({"strategy": AUTO, **given}, own=own)
    except ConfigError as error:
        raise PlanError(tuple(f"--set {mistake}" for mistake in error.mistakes)) from error
    known = (*PREDICTED, *(() if fleet else (PIPELINE,)))
    if config.strategy not in (AUTO, *known):
        raise UsageError(
            f"--set strategy={config.strategy}: no prediction for it; there are those of {', '.join(known)}",
            step="plan",
            hint="a model's blocks are measured, which --fleet does not" if config.strategy == PIPELINE else "",
        )
    return config


def _print(
    output: Output,
    survey: Survey,
    config: TrainingConfig,
    changes: list[str],
    *,
    explain: bool,
    measured: bool = False,
) -> int:
    from hetero_tui.planning import plan_report
    from hetero_tui.planning.what_if import changed
    from remote_agent.planning.choice import choose, limits_of
    from remote_agent.planning.pipeline import is_cut
    from remote_agent.planning.sites import DoesNotFit
    from remote_agent.planning.verdicts import verdicts

    survey = changed(survey, changes)
    if is_cut(survey):
        return _print_cut(output, survey, config, explain=explain, measured=measured)
    limits = limits_of(config)
    try:
        found = choose(survey, limits)
    except DoesNotFit as error:
        return _does_not_fit(output, error)
    told = (*survey.notes, *verdicts(survey, found))
    if output.as_json:
        output.document(plan_report.document(survey, found, told, measured=measured))
        return DONE
    output.table(plan_report.HOST_HEADINGS, plan_report.host_rows(survey, found))
    output.data("")
    output.table(plan_report.WAY_HEADINGS, plan_report.way_rows(found, all_ways=explain))
    output.data("")
    more = plan_report.explained(found.best) if explain else []
    more += plan_report.measured_at(survey) if not measured else []
    for line in (*told, *(f"does not fit: {why}" for why in found.refused), *more, *plan_report.estimates(survey)):
        output.data(line)
    return DONE


def _print_cut(output: Output, survey: Survey, config: TrainingConfig, *, explain: bool, measured: bool) -> int:
    """The plan of a model that is cut by its layers."""
    from hetero_tui.planning import cut_report, plan_report
    from remote_agent.planning.pipeline import planned
    from remote_agent.planning.sites import DoesNotFit
    from remote_agent.planning.ways import PIPELINE
    from remote_agent.strategies import AUTO

    if config.strategy not in (AUTO, PIPELINE):
        return _does_not_fit(
            output, DoesNotFit(f"strategy={config.strategy} needs all of it on each device; {'; '.join(survey.notes)}")
        )
    try:
        plan = planned(survey, config)
    except DoesNotFit as error:
        return _does_not_fit(output, error)
    if output.as_json:
        output.document(cut_report.document(survey, plan, measured=measured))
        return DONE
    best = cut_report.prediction(survey, plan)
    output.table(cut_report.HEADINGS, cut_report.rows(survey, plan))
    output.data("")
    output.table(plan_report.WAY_HEADINGS, plan_report.way_rows(cut_report.choice(best)))
    output.data("")
    more = plan_report.explained(best) if explain else []
    more += plan_report.measured_at(survey) if not measured else []
    for line in (*cut_report.verdicts(survey, plan, best), *more, *plan_report.estimates(survey)):
        output.data(line)
    return DONE
