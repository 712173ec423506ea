"""Continues a step that a killed coordinator had issued: issues the missing parts, and finishes the step."""

from __future__ import annotations

import dataclasses
import time

from remote_agent.training.coordinator.session import OpenStep, Session
from remote_agent.training.coordinator.strategies.step_in_flight import SliceAssignment, StepInFlight
from remote_agent.training.shared.messages import Slice, StreamedTask


def resumed(session: Session, open_step: OpenStep) -> tuple[StepInFlight, dict[str, StreamedTask]]:
    """Continue the step: ask workers that have started it for their results, and give the others their parts.

    The original cut is used. So a slice that is computed twice, since its first worker had sent a part of it before it
    was lost, is the same slice.

    Returns:
        The step, and the tasks of slices whose workers are gone, by the workers' names, to be issued to others.
    """
    now = time.monotonic()
    common = dataclasses.replace(open_step.common, coordinator=session.coordinator)
    current = StepInFlight(common, common.spans[-1].end, inherited=True)
    begun = {task.own.index for task in open_step.begun.values() if task.own is not None}
    missing = {
        span.worker: Slice(
            index=index,
            indices=session.order.take(span.begin, span.end),
            begin=span.begin,
            first=common.spans[0].begin,
            total=common.samples,
        )
        for index, span in enumerate(common.spans)
        if index not in begun
    }
    for member in session.members:
        if member.name in open_step.begun:
            task, answer = open_step.begun[member.name], member.call("outcome", common.step)
        else:
            for earlier in open_step.earlier.get(member.name, ()):
                member.call("step", dataclasses.replace(earlier, coordinator=session.coordinator))
            task = current.task(missing.pop(member.name, None))
            answer = member.call("step", task)
        current.parts.append(SliceAssignment(task, member, answer, now))
    return current, {owner: current.task(own) for owner, own in missing.items()}
