"""Do the tests notice when what is decided goes wrong? Pure modules are broken on purpose, one small change at a time.

    python -m benchmarks.mutation                 # every module of the table below
    python -m benchmarks.mutation policy shares   # those
    python -m benchmarks.mutation --most 40       # so many changes of each

A change is killed when the module's own tests fail with it. Changes that lived are listed with their line: each is a
test that is lacking, or a change that means the same. Constants with a name (deadlines, limits) are left as they are.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TIMEOUT_S = 120
"""For the tests of one module; a change that makes them hang is noticed, too."""

COORDINATOR, PLANNED = "remote_agent/training/coordinator", "tests/agent/planning"

MODULES = {
    "policy": (f"{COORDINATOR}/recovery/policy.py", ("tests/training/coordinator/recovery/test_policy.py",)),
    "culprit": (f"{COORDINATOR}/processes/culprit.py", ("tests/training/coordinator/processes/test_culprit.py",)),
    "balance": (f"{COORDINATOR}/plan/balance.py", ("tests/training/coordinator/plan/test_balance.py",)),
    "cuts": (f"{COORDINATOR}/plan/cuts.py", ("tests/training/coordinator/plan/test_cuts.py",)),
    "shares": ("remote_agent/planning/shares.py", (PLANNED,)),
    "sharding": ("remote_agent/planning/sharding.py", (PLANNED,)),
    "simulator": ("remote_agent/planning/simulator.py", (PLANNED,)),
    "exchange": ("remote_agent/planning/exchange.py", (PLANNED,)),
    "choice": ("remote_agent/planning/choice.py", (PLANNED,)),
    "cluster": ("hetero_tui/planning/cluster.py", ("tests/planning/test_cluster.py",)),
    "failover": ("hetero_tui/planning/failover.py", ("tests/planning/test_failover.py",)),
    "reach": ("hetero_tui/planning/reach.py", ("tests/planning/test_reach.py",)),
    "what_if": ("hetero_tui/planning/what_if.py", ("tests/planning/test_what_if.py",)),
    "answers": ("hetero_tui/answers.py", ("tests/test_answers.py",)),
}
"""Names of modules that decide or parse, without I/O: the file, and the tests that are its own."""

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


@dataclass(frozen=True)
class Change:
    """One way to break a module.

    Attributes:
        line: of the source.
        what: the changed expression or statement, before and after.
        source: the whole module with it.
    """

    line: int
    what: str
    source: str


def _places(tree: ast.AST) -> Iterator[ast.AST]:
    """What can be changed: within functions, and neither types, docstrings nor what an error says."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.arguments)):
            continue
        if isinstance(node, ast.AnnAssign):
            yield from _places(ast.Expr(node.value)) if node.value is not None else ()
            continue
        yield node
        yield from _places(node)


def _broken(node: ast.AST) -> Iterator[ast.AST]:
    """The node, changed in each way there is; the node itself stays."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[op]) if type(op) in OPPOSITES:
            other.ops = [OPPOSITES[type(op)]()]  # type: ignore[list-item]
        case ast.BoolOp():
            other.op = OPPOSITES[type(other.op)]()  # type: ignore[assignment]
        case ast.BinOp() if type(other.op) in OPPOSITES and not isinstance(other.right, (ast.List, ast.Tuple)):
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
        case _:
            return
    yield other


class _Put(ast.NodeTransformer):
    """Puts one node into the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def changes_of(source: str) -> list[Change]:
    """Every change of a module, in the order of its lines."""
    tree, found = ast.parse(source), list[Change]()
    functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))]
    for node in (place for function in functions for place in _places(function)):
        for broken in _broken(node):
            before = ast.unparse(node).splitlines()[0]
            after = ast.unparse(ast.fix_missing_locations(broken)).splitlines()[0]
            whole = list(ast.walk(tree)).index(node)
            again = ast.parse(source)
            put = _Put(list(ast.walk(again))[whole], broken).visit(again)
            found.append(
                Change(node.lineno, f"{before}  ->  {after}", ast.unparse(ast.fix_missing_locations(put)))  # type: ignore[attr-defined]
            )
    return sorted(found, key=lambda change: change.line)


def survives(change: Change, copy_of: Path, file: str, tests: tuple[str, ...]) -> bool:
    """Whether the tests pass with the change, in a copy of the checkout that nothing else uses."""
    original = (ROOT / file).read_text()
    (copy_of / file).write_text(change.source)
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not ray", *tests],
            cwd=copy_of,
            env={**os.environ, "PYTHONPATH": str(copy_of)},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        (copy_of / file).write_text(original)
    return done.returncode == 0


def main() -> None:
    """Break what is named, and print what lived."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; default: all")
    parser.add_argument("--most", type=int, default=40, help="changes of each module, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=2, help="how many are tried at once")
    given = parser.parse_args()
    if unknown := set(given.modules) - set(MODULES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copies = [Path(folder) / str(lane) for lane in range(given.lanes)]
        for each in copies:
            shutil.copytree(
                ROOT, each, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "docs", ".*_cache")
            )
        for name in given.modules or MODULES:
            report(name, given.most, given.seed, copies)


def report(name: str, most: int, seed: int, copies: list[Path]) -> None:
    """Try a module's changes, and print its line and those that lived."""
    file, tests = MODULES[name]
    every = changes_of((ROOT / file).read_text())
    chosen = every if len(every) <= most else random.Random(seed).sample(every, most)  # noqa: S311 - a choice to repeat
    free = list(copies)

    def tried(change: Change) -> bool:
        mine = free.pop()
        try:
            return survives(change, mine, file, tests)
        finally:
            free.append(mine)

    with ThreadPoolExecutor(len(copies)) as pool:
        lived = [change for change, survived in zip(chosen, pool.map(tried, chosen), strict=True) if survived]
    killed = len(chosen) - len(lived)
    print(f"{name}: {killed} of {len(chosen)} killed, {killed / len(chosen):.0%}", flush=True)
    for change in sorted(lived, key=lambda each: each.line):
        print(f"  {file}:{change.line}: {change.what}", flush=True)


if __name__ == "__main__":
    main()
