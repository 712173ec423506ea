"""Small changes that break a module: what can be changed in its functions, and how. For :mod:`benchmarks.mutation`.

Left as they are: constants with a name (deadlines, limits, the defaults of fields), annotations, assertions (with
``zip(strict=True)``), and what errors and logs say.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
LOGGERS = {"LOG", "_LOG"}


@dataclass(frozen=True)
class Change:
    """One way to break a module.

    Attributes:
        line: of the source.
        function: first line of the function that it is in, decorators included; of nested ones the outermost.
        what: the changed expression or statement, before and after.
        place: the number of the changed node, as ``ast.walk`` counts them.
        way: which of the ways to break that node.
    """

    line: int
    function: int
    what: str
    place: int
    way: int


def outermost(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """A module's functions and its classes' methods."""
    waiting: list[ast.stmt] = list(tree.body)
    for statement in waiting:
        if isinstance(statement, FUNCTION):
            yield statement
        elif isinstance(statement, (ast.ClassDef, ast.If)):
            waiting.extend(statement.body)


def first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """As a code object counts: its decorators belong to it."""
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def _places(node: ast.AST) -> Iterator[ast.AST]:
    """What can be changed below a node."""
    inner = node.body if isinstance(node, FUNCTION) else ast.iter_child_nodes(node)
    for child in inner:
        match child:
            case ast.Raise() | ast.JoinedStr() | ast.arguments() | ast.Assert() | ast.keyword(arg="strict"):
                continue
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in LOGGERS:
                continue
            case ast.AnnAssign():
                if child.value is not None:
                    yield child.value
                    yield from _places(child.value)
            case _:
                yield child
                yield from _places(child)


def _broken(node: ast.AST) -> list[ast.AST]:
    """The node, changed in each way there is; the node itself stays."""
    other: ast.AST = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[op]) if type(op) in OPPOSITES:
            other.ops = [OPPOSITES[type(op)]()]  # type: ignore[list-item]
        case ast.BoolOp():
            other.op = OPPOSITES[type(other.op)]()  # type: ignore[assignment]
        case ast.BinOp() if type(other.op) in OPPOSITES and not isinstance(other.right, (ast.List, ast.Tuple)):
            other.op = OPPOSITES[type(other.op)]()  # type: ignore[assignment]
        case ast.AugAssign() if type(other.op) in OPPOSITES and not isinstance(other.value, (ast.List, ast.Tuple)):
            other.op = OPPOSITES[type(other.op)]()  # type: ignore[assignment]
        case ast.UnaryOp(op=ast.Not()):
            other = other.operand
        case ast.Constant(value=bool(value)):
            other.value = not value
        case ast.Constant(value=int(value) | float(value)):
            other.value = value + 1
        case ast.If() | ast.IfExp():
            other.test = ast.UnaryOp(ast.Not(), other.test)
        case ast.Call(func=ast.Name(id="min")):
            other.func = ast.Name("max", ast.Load())
        case ast.Call(func=ast.Name(id="max")):
            other.func = ast.Name("min", ast.Load())
        case ast.Continue():
            other = ast.Break()
        case ast.Expr(value=ast.Call()):
            other = ast.Pass()
        case _:
            return []
    return [ast.copy_location(other, node)]


def changes_of(source: str) -> list[Change]:
    """Every change of a module, in the order of its lines."""
    tree = ast.parse(source)
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    found = list[Change]()
    for function in outermost(tree):
        for node in _places(function):
            for way, broken in enumerate(_broken(node)):
                what = "  ->  ".join(ast.unparse(each).splitlines()[0] for each in (node, broken))
                line = int(getattr(node, "lineno", function.lineno))
                found.append(Change(line, first_line(function), what, numbers[id(node)], way))
    return sorted(found, key=lambda change: change.line)


class _Put(ast.NodeTransformer):
    """Puts one node into the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def compiled(source: str, file: str, change: Change) -> dict[tuple[str, int], CodeType]:
    """The broken module's functions by name and first line; all other lines stay where they were."""
    tree = ast.parse(source)
    node = next(each for number, each in enumerate(ast.walk(tree)) if number == change.place)
    put = ast.fix_missing_locations(_Put(node, _broken(node)[change.way]).visit(tree))
    assert isinstance(put, ast.Module)
    return codes(compile(put, file, "exec", dont_inherit=True))


def codes(module: CodeType) -> dict[tuple[str, int], CodeType]:
    """Everything that a compiled module defines, nested functions included, by name and first line."""
    found, waiting = dict[tuple[str, int], CodeType](), [module]
    for each in waiting:
        inner = [constant for constant in each.co_consts if isinstance(constant, CodeType)]
        found |= {(code.co_qualname, code.co_firstlineno): code for code in inner}
        waiting += inner
    return found
