"""Evaluates a run's steps when they are due, and decides which one is the best and when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remote_agent import protocol
from remote_agent.goals import Goal, Watched, up_to
from remote_agent.training.coordinator.evaluation.evaluator import Evaluation, Evaluator, NoWorkerLeft
from remote_agent.training.coordinator.session import Session
from remote_agent.training.data import record
from remote_agent.training.errors import JobError
from remote_agent.wording import number


@dataclass(frozen=True)
class Verdict:
    """The verdict on a step: whether it was evaluated, and whether it is the best so far by ``keep_best``."""

    evaluated: bool = False
    best: bool = False


class Judge:
    """Evaluates steps and decides. The session has the watched metric, for checkpoints and a later coordinator.

    Args:
        session: the run's, before its first step.
        host: the coordinator's, for events.

    Attributes:
        reason: why the run should end early; empty: it should not.

    Raises:
        JobError: the job's validation fails on its first batch, or lacks the watched metric.
    """

    def __init__(self, session: Session, host: str) -> None:
        self._host = host
        self._goal = Goal.of(session.config.keep_best)
        self._evaluator = Evaluator(session) if session.validation is not None else None
        self._evaluated = session.order.done
        self._extra: Watched = ()
        self._figures: dict[str, float] = {}
        self.reason = ""
        if self._evaluator is not None and session.takeover is None:
            self._check(session, self._evaluator)

    def after(self, session: Session, step: int, begin: int, end: int) -> Verdict:
        """After a step, evaluate it if it is due.

        Args:
            begin: the position of its first sample.
            end: the position after its last one.

        Raises:
            JobError: the job's metrics, model or data raised.
        """
        if self._evaluator is None or not session.is_evaluated(step, begin, end):
            return Verdict()
        return self._evaluate(session, self._evaluator, step, end)

    def catch_up(self, session: Session, folder: Path) -> None:
        """Evaluate the last step of a killed coordinator, if that was due and is missing.

        Args:
            folder: the run's, with the record of its slices.
        """
        step = session.order.done
        if session.takeover is None or session.takeover.open_step is not None or step in dict(session.watched):
            return
        spans = record.read(folder / record.FILE, 1).get(step)
        if spans:
            self.after(session, step, min(span.begin for span in spans), max(span.end for span in spans))

    def last(self, session: Session, step: int, end: int) -> Verdict:
        """At the end of the run, evaluate the last ``step`` unless this was done; as :meth:`after`.

        A run that resumes from here ignores this evaluation, since an uninterrupted run would not have made it.
        """
        if self._evaluator is None or self._evaluated == step:
            return Verdict()
        regular = session.watched
        verdict = self._evaluate(session, self._evaluator, step, end)
        self._extra, session.evaluations.watched = session.watched[len(regular) :], regular
        return verdict

    def go_back(self, session: Session, step: int) -> None:
        """Forget the evaluations after ``step``, to which the run returns."""
        session.evaluations.watched = up_to(session.watched, step)

    def figures_of(self, step: int) -> dict[str, float]:
        """The finite metrics of the weights after ``step``; none if a user stopped before these were evaluated."""
        return self._figures if self._evaluated == step else {}

    def best_step(self, session: Session) -> int | None:
        """The step whose checkpoint is kept as the best one; None: there is none."""
        best = self._goal.best((*session.watched, *self._extra)) if session.config.keep_best else None
        return best[0] if best is not None else None

    def _check(self, session: Session, evaluator: Evaluator) -> None:
        """Evaluate one batch with the first weights, so that errors show now and not after many steps."""
        try:
            first = evaluator.evaluate(session, numbers=(0,), checked=True)
        except NoWorkerLeft:
            return  # the first step says more
        wanted = session.config.keep_best or session.plateau
        if wanted and self._goal.metric not in first.metrics:
            measured = ", ".join(first.metrics) or "nothing"
            raise JobError(
                f"the validation measures {measured}, and not {self._goal.metric}",
                hint="name one of these in keep_best, or have metrics(model, batch) return it",
            )

    def _evaluate(self, session: Session, evaluator: Evaluator, step: int, end: int) -> Verdict:
        try:
            evaluation = evaluator.evaluate(session)
        except NoWorkerLeft as error:
            text = f"step {step} was not evaluated: {error}"
            session.journal.write(protocol.Notice, step=step, host=self._host, text=text)
            return Verdict()
        self._evaluated = step
        self._figures = {name: figure for name, figure in evaluation.metrics.items() if figure is not None}
        if self._goal.metric in evaluation.metrics:
            earlier = tuple(entry for entry in session.watched if entry[0] < step)
            session.evaluations.watched = (*earlier, (step, evaluation.metrics[self._goal.metric]))
        best = self._goal.best(session.watched)
        is_best = best is not None and best[0] == step
        self._tell(session, step, end, evaluation, is_best)
        patience = session.config.early_stopping
        if patience and self._goal.without_gain(session.watched) >= patience:
            self.reason = self._why(patience, best)
        return Verdict(evaluated=True, best=is_best and bool(session.config.keep_best))

    def _tell(self, session: Session, step: int, end: int, evaluation: Evaluation, is_best: bool) -> None:
        size = session.source.size
        session.journal.write(
            protocol.Evaluated,
            step=step,
            epoch=round(end / session.order.size, 4) if size else None,
            metrics=evaluation.metrics,
            samples=evaluation.samples,
            seconds=evaluation.seconds,
            best=is_best,
        )

    def _why(self, patience: int, best: tuple[int, float] | None) -> str:
        times, metric = f"{patience} evaluations" if patience > 1 else "1 evaluation", self._goal.metric
        if best is None:
            return f"early stopping: {metric} was no finite number in {times}"
        return f"early stopping: {metric} did not get better in {times}; best {number(best[1], 4)} at step {best[0]}"
