"""Finds the definitions in a Python file from its text with :mod:`ast`, without running it.

It says which names a module has once it is imported, which of them can be a job, and the settings that stand in it. It
never guesses: what only running the file would tell (``from x import *``, ``exec``, a base class of another module) is
left open, and the host that imports the file decides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from remote_agent.job_settings import ANY, OwnSetting, described, written

PARTS = ("create_model", "create_data")
"""Methods that a job has to have."""

TRAINER, CONFIG = "DistributedTrainer", "TrainingConfig"

Verdict = Literal["job", "no job", "open"]

_OPEN_CALLS = frozenset({"globals", "vars", "exec", "eval", "setattr"})


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A file's names.

    Attributes:
        values: what each name of the module is bound to last: an expression, a class, a function; None: something else.
        guarded: names that are bound under ``if __name__ == "__main__":`` only, with their lines; that does not run on
            the fleet.
        is_open: it may have names that the text does not show.
        configs: settings in calls of ``TrainingConfig``: the line, and name to value of those that are literals.
    """

    values: Mapping[str, ast.AST | None]
    guarded: Mapping[str, int]
    is_open: bool
    configs: tuple[tuple[int, Mapping[str, Any]], ...]

    def verdict(self, name: str) -> tuple[Verdict, str]:
        """Whether that name of the module is a job; the text says why it is none."""
        value = self.values.get(name)
        if isinstance(value, ast.ClassDef):
            return self._of_class(value, name)
        if isinstance(value, ast.FunctionDef | ast.AsyncFunctionDef):
            return "no job", f"{name!r} is a function"
        if isinstance(value, ast.Constant):
            return "no job", f"{name!r} is {value.value!r}"
        if isinstance(value, ast.Call):
            called = _last_name(value.func)
            if called == TRAINER:
                return "job", ""
            made = self.values.get(called) if isinstance(value.func, ast.Name) else None
            if isinstance(made, ast.ClassDef):
                return self._of_class(made, name)
        return "open", ""

    def jobs(self) -> tuple[str, ...]:
        """The names that are jobs for sure, in their order; a class of which an object is among them is left out."""
        found = [name for name in self.values if not name.startswith("_") and self.verdict(name)[0] == "job"]
        made = {_last_name(value.func) for name in found if isinstance(value := self.values[name], ast.Call)}
        return tuple(name for name in found if name not in made)

    def settings(self, name: str) -> tuple[tuple[OwnSetting, ...], bool]:
        """The job's own settings as far as the text says, and whether it may have others."""
        value = self.values.get(name)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            value = self.values.get(value.func.id)
        if not isinstance(value, ast.ClassDef):
            return (), self.verdict(name)[0] == "open"
        body = {bound: made for statement in value.body for bound, made in _bindings(statement)}
        if "settings" not in body:
            members, is_known = self.members(value, frozenset())
            return (), not is_known or "settings" in members
        made = body["settings"]
        called = _last_name(made.func) if isinstance(made, ast.Call) else ""
        declared = body.get(called) or self.values.get(called)
        if not isinstance(made, ast.Call) or not isinstance(declared, ast.ClassDef) or declared.bases:
            return (), True
        changed = {word.arg: word.value for word in made.keywords}
        said = described(ast.get_docstring(declared) or "")
        return tuple(
            OwnSetting(
                name=field.target.id,
                hint=_HINTS.get(ast.unparse(field.annotation), ANY),
                default=_default(changed.get(field.target.id, field.value)),
                help=said.get(field.target.id, ""),
            )
            for field in declared.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        ), False

    def public(self) -> tuple[str, ...]:
        """All names that may have been meant, those of modules that it imports left out."""
        return tuple(name for name, value in self.values.items() if value is not None and not name.startswith("_"))

    def requirements(self, name: str) -> tuple[str, ...] | None:
        """What the job of that name says it needs: ``requirements`` of its class, or else of the module.

        None: it is there, and is no list of words that the text shows.
        """
        value = self.values.get(name)
        made = self.values.get(_last_name(value.func)) if isinstance(value, ast.Call) else value
        found: ast.AST | None = self.values.get("requirements")
        while isinstance(made, ast.ClassDef):
            own = [bound for statement in made.body for to, bound in _bindings(statement) if to == "requirements"]
            if own:
                found = own[-1]
                break
            bases = [self.values.get(base.id) for base in made.bases if isinstance(base, ast.Name)]
            made = next((base for base in bases if isinstance(base, ast.ClassDef) and base is not made), None)
        if found is None:
            return ()
        try:
            words = ast.literal_eval(found) if isinstance(found, ast.expr) else None
        except ValueError:
            return None
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
            return None
        return tuple(words)

    def _of_class(self, definition: ast.ClassDef, name: str) -> tuple[Verdict, str]:
        members, is_known = self.members(definition, frozenset())
        missing = [part for part in PARTS if part not in members]
        if not missing or {"model_factory", "data_loader"} <= members:
            return "job", ""
        if not is_known or definition.decorator_list or definition.keywords or "__getattr__" in members:
            return "open", ""
        return "no job", f"{name!r} has no {' and no '.join(missing)}"

    def members(self, definition: ast.ClassDef, seen: frozenset[str]) -> tuple[set[str], bool]:
        """Names of a class's members, and whether all its bases are in the file."""
        members: set[str] = set()
        is_known = True
        for base in definition.bases:
            parent = self.values.get(base.id) if isinstance(base, ast.Name) else None
            if isinstance(parent, ast.ClassDef) and parent.name not in seen:
                inherited, known = self.members(parent, seen | {definition.name})
                members |= inherited
                is_known = is_known and known
            elif not (isinstance(base, ast.Name) and base.id == "object"):
                is_known = False
        members |= {name for statement in definition.body for name, _ in _bindings(statement)}
        members |= {
            node.attr
            for node in ast.walk(definition)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _last_name(node.value) == "self"
        }
        return members, is_known


_HINTS: Mapping[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str)}
"""Kinds of settings that a text names; of others, such as ``Annotated[...]``, the host says what they may be."""


def _default(value: ast.expr | None) -> str:
    """As ``--set`` takes it; for what takes running, as it is in the text."""
    if value is None:
        return ""
    try:
        return written(ast.literal_eval(value))
    except ValueError:
        return ast.unparse(value)


@lru_cache(maxsize=16)
def outline(tree: ast.Module) -> Outline:
    """The outline of a parsed file; kept as long as the tree is."""
    values: dict[str, ast.AST | None] = {}
    guarded: dict[str, int] = {}
    for statement, runs in _statements(tree.body):
        for name, value in _bindings(statement):
            if runs:
                values[name] = value
            else:
                guarded.setdefault(name, statement.lineno)
    is_open = "__getattr__" in values
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            values.update({name: None for name in node.names if name not in values})
        is_open = is_open or (isinstance(node, ast.ImportFrom) and any(name.name == "*" for name in node.names))
        is_open = is_open or (isinstance(node, ast.Call) and _last_name(node.func) in _OPEN_CALLS)
    guarded = {name: line for name, line in guarded.items() if name not in values}
    return Outline(values=values, guarded=guarded, is_open=is_open, configs=tuple(_configs(tree)))


def _statements(body: Iterable[ast.stmt], runs: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """The statements of a module that are not in a function or class, and whether they run when it is imported."""
    for statement in body:
        yield statement, runs
        is_main = isinstance(statement, ast.If) and _asks_for_main(statement.test)
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            parts = getattr(statement, field, ())
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for part in parts:
                if isinstance(part, ast.stmt):
                    yield from _statements([part], runs and not (is_main and field == "body"))
                else:  # an except clause, or a case
                    yield from _statements(part.body, runs)


def _asks_for_main(test: ast.expr) -> bool:
    """``__name__ == "__main__"``, either way round."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = (test.left, test.comparators[0])
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )


def _bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.AST | None]]:  # noqa: C901 - a case a statement
    """The names that a statement itself binds, and to what; the statements within it are not looked at."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name, statement
            return
        case ast.Import() | ast.ImportFrom():
            for alias in statement.names:
                yield alias.asname or alias.name.partition(".")[0], None
            return
        case ast.Assign():
            for target in statement.targets:
                for name in _names(target):
                    yield name, statement.value if isinstance(target, ast.Name) else None
        case ast.AnnAssign() if statement.value is not None:
            for name in _names(statement.target):
                yield name, statement.value
        case ast.AugAssign():
            for name in _names(statement.target):
                yield name, None
        case ast.For() | ast.AsyncFor():
            yield from ((name, None) for name in _names(statement.target))
        case ast.With() | ast.AsyncWith():
            for item in statement.items:
                if item.optional_vars is not None:
                    yield from ((name, None) for name in _names(item.optional_vars))
        case ast.Match():
            for node in ast.walk(statement):
                captured = getattr(node, "name", None) or getattr(node, "rest", None)
                if isinstance(node, ast.MatchAs | ast.MatchStar | ast.MatchMapping) and captured:
                    yield captured, None
        case _:
            pass
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.expr):
            yield from ((inner.target.id, None) for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))


def _names(target: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def _last_name(node: ast.expr) -> str:
    """``c`` of ``a.b.c``, or of ``c``; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _configs(tree: ast.Module) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Calls of the engine's ``TrainingConfig``, under whatever name it was imported."""
    known = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("remote_agent")
        for name in node.names
        if name.name == CONFIG
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
            given: dict[str, Any] = {}
            for keyword in node.keywords:
                if keyword.arg is not None:
                    try:
                        given[keyword.arg] = ast.literal_eval(keyword.value)
                    except ValueError:
                        continue  # it takes running to know
            yield node.lineno, given
