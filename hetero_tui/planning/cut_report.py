"""The plan of a model that is cut by its layers, as rows, lines and JSON beside those of other plans. Pure."""

from __future__ import annotations

from typing import Any

from hetero_tui.planning import plan_report
from remote_agent.planning.choice import Choice
from remote_agent.planning.pipeline import CutPlan, names_of
from remote_agent.planning.survey import Device, Host, Survey
from remote_agent.planning.verdicts import names, rate, seconds
from remote_agent.planning.ways import COMPUTE, EXCHANGE, PIPELINE, Prediction, Term, Way

HEADINGS = ["HOST", "DEVICE", "BLOCKS", "MICRO-BATCH", "MEMORY", "LINK MB/s"]

SOURCES = {
    COMPUTE: "the stages' blocks, each measured on its device",
    EXCHANGE: "links as measured, simulated; the optimizer, and calls",
}


def prediction(survey: Survey, plan: CutPlan) -> Prediction:
    """A step of the cut, as of any other way."""
    called, stages = names_of(survey), plan.cut.stages
    hosts = {device.name: host.name for host in survey.hosts for device in host.devices}
    holding = [called[stage.device] for stage in stages]
    taking = {hosts[name] for name in holding}
    return Prediction(
        way=Way(
            strategy=PIPELINE,
            hosts=tuple(name for name in survey.names if name in taking),
            codec=plan.cut.codec,
        ),
        terms=tuple(Term(name=name, seconds=took, source=SOURCES[name]) for name, took in plan.terms.items()),
        samples=survey.work.batch,
        shares=dict.fromkeys(holding, survey.work.batch),
        busy_s={name: stage.seconds * plan.micro_batches for name, stage in zip(holding, stages, strict=True)},
        parts={},
        bound=plan.bound(called),
    )


def choice(best: Prediction) -> Choice:
    """The cut as the only way that there is."""
    return Choice(best=best, ways=(best,), gains={}, alone=None, everything=None, refused=(), considered=1)


def rows(survey: Survey, plan: CutPlan) -> list[list[str]]:
    """A row for each stage, in their order, and one for each device without blocks."""
    known = {device.name: (host, device) for host in survey.hosts for device in host.devices}
    called, found = names_of(survey), list[list[str]]()
    for stage in plan.cut.stages:
        host, device = known.pop(called[stage.device])
        blocks = f"{stage.first + 1}-{stage.last} of {plan.cut.bounds[-1]}"
        found.append(_row(host, device, blocks, seconds(stage.seconds), f"{plan.memory(stage) / 1e9:.2f} GB"))
    return found + [_row(host, device, "-", "-", "-") for host, device in known.values()]


def _row(host: Host, device: Device, *cells: str) -> list[str]:
    return [host.name, device.product or device.name, *cells, plan_report.link(host)]


def verdicts(survey: Survey, plan: CutPlan, best: Prediction) -> tuple[str, ...]:
    """What the user should know."""
    cut = plan.cut
    idle = [name for name in survey.names if name not in best.way.hosts]
    limit = f"{best.bound} is the limit"
    if best.term(EXCHANGE) > best.term(COMPUTE):
        limit = f"{best.bound} limit: {seconds(best.term(EXCHANGE))} of {seconds(best.seconds)}"
    use = (
        f"use {best.way.title} on {names(best.way.hosts)}: {seconds(best.seconds)} a step of {best.samples} samples,"
        f" {rate(best.speed)} samples/s"
    )
    pieces = f"{plan.micro_batches} micro-batches of {survey.work.micro_batch} samples"
    return (
        *survey.notes,
        use,
        f"{pieces}, {cut.in_flight} in flight, sent as {cut.codec}",
        *(f"{name} gets no blocks: a step is shorter without it" for name in idle),
        limit,
    )


def document(survey: Survey, plan: CutPlan, *, measured: bool) -> dict[str, Any]:
    """For scripts: as of any plan, and the stages."""
    best, called = prediction(survey, plan), names_of(survey)
    found = plan_report.document(survey, choice(best), verdicts(survey, plan, best), measured=measured)
    stages = [
        {
            "device": called[stage.device],
            "first": stage.first,
            "last": stage.last,
            "seconds": stage.seconds,
            "memory": plan.memory(stage),
        }
        for stage in plan.cut.stages
    ]
    found["chosen"] |= {"stages": stages, "micro_batches": plan.micro_batches, "in_flight": plan.cut.in_flight}
    return found
