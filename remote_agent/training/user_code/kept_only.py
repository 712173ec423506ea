"""Whether what a loss changes outside of the model's state is only added up and shown, by the text of the code.

A meter (``meter.update(loss.item())``), a history or a count for a progress line differs on each worker, and nothing
goes by it. That can't be seen by trying: ``if self.steps > 1000`` looks the same in the beginning.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import FunctionType

from remote_agent.training.user_code.job_values import plain_function
from remote_agent.training.user_code.ownership import is_of_users, is_users_own

_SHOWING = frozenset({"print"})
_ADDING = frozenset({"append", "appendleft", "extend"})
_NUMBERS = frozenset({"abs", "float", "int", "len", "max", "min", "round", "str", "sum"})
_REACHING = frozenset({"getattr", "setattr", "vars", "globals", "eval", "exec"})

_TEXTS = frozenset({"__str__", "__repr__", "__format__"})

_LAST = re.compile(r"\[[^\[\]]*\]$")
_PART = re.compile(r"\.([^.\[\]]+)|\[([^\[\]]*)\]")


def are_only_kept(
    paths: Iterable[str], roots: Mapping[str, object], kinds: Iterable[type], code: Iterable[object]
) -> bool:
    """Whether no code goes by what lies at these places.

    Args:
        paths: such as ``self.meter.sum``, ``len(self.history)``, ``model.seen['a']``.
        roots: what ``self`` and ``model`` are in them.
        kinds: classes of all objects that the code can reach, by whatever way.
        code: the functions that are called first.
    """
    names = frozenset(_name(path, roots) for path in paths)
    if "" in names:
        return False
    functions = list(_reachable(tuple(kinds), code))
    if any(each.__name__ in _NUMBERS | _OF_TENSORS | _ADDING | _SHOWING for each in functions):
        return False  # such a name may be one of the user's own functions
    trees = [_tree(each) for each in functions]
    known = [each for each in trees if each is not None]
    while more := {name for each in known for name in _made_of(each, names)} - names:
        names |= more
    called = any("loss" in _names(each) for each in functions)  # which gets what is beside the loss, too
    return 0 < len(known) == len(trees) and all(
        _is_harmless(each, names, figures=tree.name == "loss" and not called) for tree in known for each in tree.body
    )


def _made_of(tree: ast.AST, names: frozenset[str]) -> Iterator[str]:
    """Attributes that are set by the ones: ``self.mean = self.sum / self.count``."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign | ast.AugAssign | ast.AnnAssign) and each.value and _reads(each.value, names):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            yield from (target.attr for target in targets if isinstance(target, ast.Attribute))


def _name(path: str, roots: Mapping[str, object]) -> str:
    """Of the attribute in which something lies; empty: it is none of an object of the user's, as a parameter is."""
    path = path.removeprefix("len(").removesuffix(")")
    while (shorter := _LAST.sub("", path)) != path:
        path = shorter
    owner, _, name = path.rpartition(".")
    root = owner.partition(".")[0].partition("[")[0]
    value = roots.get(root)
    try:
        for attribute, key in _PART.findall(owner[len(root) :]):
            value = getattr(value, attribute) if attribute else value[ast.literal_eval(key)]  # type: ignore[index]
        is_own = is_of_users(type(value).__module__) and name in vars(value)
    except (AttributeError, LookupError, SyntaxError, TypeError, ValueError):
        return ""
    return name if is_own else ""


def _reachable(kinds: Sequence[type], code: Iterable[object]) -> Iterator[FunctionType]:
    """The user's own functions that may be called, by their names alone: rather too many."""
    methods: dict[str, list[object]] = {}
    waiting, seen = list(code), set[object]()

    def enter(kind: type) -> None:
        for each in kind.__mro__:
            if each not in seen and is_of_users(each.__module__):
                seen.add(each)
                for name, value in vars(each).items():
                    methods.setdefault(name, []).append(value)
                    if name.startswith("__") and name not in _TEXTS:  # an operator calls it
                        waiting.append(value)

    for kind in kinds:
        enter(kind)
    while waiting:
        value = waiting.pop()
        function = plain_function(value)
        if function is None:
            enter(value if isinstance(value, type) else type(value))
        if function is None or function in seen:
            continue
        seen.add(function)
        if is_users_own(function.__code__.co_filename):
            yield function
            called = _names(function)
            waiting += [each for name in called for each in methods.get(name, ())]
            waiting += [function.__globals__[name] for name in called & function.__globals__.keys()]
            waiting += [cell.cell_contents for cell in function.__closure__ or ()]


def _names(function: FunctionType) -> set[str]:
    waiting, found = [function.__code__], set[str]()
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        waiting += [each for each in code.co_consts if inspect.iscode(each)]
    return found


@functools.cache
def _tree(function: FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The text of a function; None: it can't be had, or it reaches attributes by other ways than by name."""
    try:
        (found,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError, TypeError, ValueError):
        return None
    reaches = _REACHING & _names(function) or "__dict__" in _names(function)
    return found if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) and not reaches else None


def _is_harmless(statement: ast.stmt, names: frozenset[str], *, figures: bool) -> bool:
    """Whether a statement does not read one of these, or does nothing with it but keep or show it.

    ``figures``: it is one of ``loss``, which may return it beside the loss.
    """
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return not _reads(statement, names)
    if not _reads(statement, names) or _keeps(statement, names):
        return True
    if figures and isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
        first, *beside = statement.value.elts
        return not _reads(first, names) and all(isinstance(each, ast.Dict) and _is_plain(each) for each in beside)
    blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody", "handlers")]
    inner = [each for block in blocks for each in block]
    if not inner or any(isinstance(each, ast.ExceptHandler) for each in inner):
        return False
    heads = [each for each in ast.iter_child_nodes(statement) if each not in inner]
    if any(_reads(each, names) for each in heads):  # by which it is decided what is done
        return (
            isinstance(statement, ast.If) and _is_plain(statement.test) and all(_keeps(each, names) for each in inner)
        )
    return all(_is_harmless(each, names, figures=figures) for each in inner)


def _keeps(statement: ast.stmt, names: frozenset[str]) -> bool:
    """Whether a statement only changes what is kept, or shows it."""
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        value = statement.value
        return all(_is_one(each, names) for each in targets) and (value is None or _is_plain(value))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called, given = (
            statement.value.func,
            [*statement.value.args, *(each.value for each in statement.value.keywords)],
        )
        if not all(map(_is_plain, given)):
            return False
        if isinstance(called, ast.Attribute):
            return called.attr in _ADDING and _is_one(called.value, names)
        return isinstance(called, ast.Name) and called.id in _SHOWING
    return False


def _is_one(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether it is one of these, or an entry of it."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr in names


def _is_plain(expression: ast.AST) -> bool:
    """Whether an expression gives its numbers to no function that could keep them."""
    calls = [each.func for each in ast.walk(expression) if isinstance(each, ast.Call)]
    walrus = any(isinstance(each, ast.NamedExpr | ast.Lambda | ast.Await | ast.Yield) for each in ast.walk(expression))
    return not walrus and all(_is_known(each) for each in calls)


def _is_known(called: ast.expr) -> bool:
    """Whether it is a function of numbers, or a method of a tensor or a text that gives a new value."""
    if isinstance(called, ast.Name):
        return called.id in _NUMBERS
    return isinstance(called, ast.Attribute) and called.attr in _OF_TENSORS


_OF_TENSORS = frozenset(
    {"argmax", "clone", "cpu", "detach", "eq", "exp", "float", "format", "item", "long", "max", "mean", "min", "numel"}
    | {"size", "sqrt", "std", "sum", "tolist"}
)


def _reads(node: ast.AST, names: Collection[str]) -> bool:
    """Whether one of these is read in it; what is called is no number."""
    called = {each.func for each in ast.walk(node) if isinstance(each, ast.Call)}
    return any(
        isinstance(each, ast.Attribute)
        and each.attr in names
        and not isinstance(each.ctx, ast.Store)
        and each not in called
        for each in ast.walk(node)
    )
