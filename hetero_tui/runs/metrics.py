"""Which validation metrics a job has, as far as its text tells: ``keep_best`` has to name one of them. Pure."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase

from hetero_tui.runs.outline import Outline, own_nodes
from remote_agent.goals import VAL_LOSS, Goal
from remote_agent.kinds import nearest


def metrics_of(text: Outline, job: str) -> frozenset[str] | None:
    """The names of a job's metrics, which may be patterns (``val_*``); None: only running it would tell them."""
    factory = text.factory(job)
    if factory is None or factory.decorator_list or factory.keywords:
        return None
    members, is_known = text.members(factory, frozenset())
    if not is_known or "__getattr__" in members:
        return None
    if "metrics" in members:
        found = [node for node in factory.body if isinstance(node, ast.FunctionDef) and node.name == "metrics"]
        return _returned(found[0]) if len(found) == 1 and not found[0].decorator_list else None
    return frozenset((VAL_LOSS, "val_*") if "loss" in members else (VAL_LOSS, "accuracy", "val_*"))


def mistake(keep_best: str, known: frozenset[str] | None) -> str:
    """What is wrong with a valid ``keep_best`` where these are all metrics that there are; empty: nothing is known."""
    metric = Goal.of(keep_best).metric
    if known is None or any(fnmatchcase(metric, name) for name in known):
        return ""
    names = sorted(name for name in known if "*" not in name)
    close = nearest(metric, names, alike=0.5)  # such names are short: f1, f2
    advice = f"did you mean {close!r}? " if close else ""
    return f"{advice}the job's validation measures {', '.join(names) or 'nothing'}"


def _returned(function: ast.FunctionDef) -> frozenset[str] | None:
    """The keys of the mappings that a function returns, where each is written out; None: one is not."""
    names: set[str] = set()
    returned = [node.value for node in own_nodes(function) if isinstance(node, ast.Return)]
    for value in returned:
        keys = value.keys if isinstance(value, ast.Dict) else [None]
        written = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        if len(written) < len(keys):
            return None
        names.update(written)
    return frozenset(names) if returned else None
