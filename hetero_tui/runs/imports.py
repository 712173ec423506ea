"""The modules that a Python file imports from its own folder, and those that they import: found without running any."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hetero_tui.runs.outline import only_in_scripts

_THERE = frozenset({*sys.stdlib_module_names, "remote_agent"})
"""What every host has, whatever lies beside the job."""

_COMPILED = (".so", ".pyd", ".dylib")

MAX_TEXT = 200
"""Characters of a text in the code that can be a path."""


@dataclass
class Found:
    """What is found.

    Attributes:
        files: modules, those of imported packages among them, in the order in which they were found.
        mistakes: what can't be imported.
        elsewhere: modules that lie near the job and are not sent: their names, and what to say.
        names: texts in the code that may be paths: where they stand, and the text.
    """

    files: list[Path] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    elsewhere: dict[str, str] = field(default_factory=dict)
    names: list[tuple[str, str]] = field(default_factory=list)


def find_imports(file: Path, root: Path) -> Found:
    """The modules in ``root`` that ``file`` imports, and those that these import, and so on.

    A package goes as a whole, with all its modules. Where a name is that of a module of Python's own, or of ours, that
    is meant. A library with compiled modules that was installed beside the job stays: it is useless without these, and
    would hide that of the hosts.

    Args:
        file: a Python file that can be parsed.
        root: where modules are looked for, as Python looks beside a script.
    """
    found = Found()
    seen = {file.resolve()}
    waiting = [(file, True)]
    missing: dict[str, str] = {}
    compiled = _compiled(root)
    while waiting:
        path, is_imported = waiting.pop(0)
        shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            if is_imported:
                where = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
                found.mistakes.append(f"{shown}{where}: {getattr(error, 'msg', error)}")
            continue
        package = _package(path, root)
        if is_imported:
            found.names += [(f"{shown}:{line}", text) for line, text in _paths(tree)]
        for line, dotted in _imported(tree, package):
            top = dotted.partition(".")[0]
            if top in _THERE or not top:
                continue
            if top in compiled:
                found.elsewhere.setdefault(
                    top,
                    f"{shown}:{line} imports {top}, which was installed beside the job and is not sent, since it has"
                    " compiled modules: the hosts need their own; name it in `requirements`",
                )
                continue
            modules = list(_modules(dotted, root))
            if not modules and not (root / top).is_dir():
                missing.setdefault(top, f"{shown}:{line}")
            for module, is_named in modules:
                if module.resolve() not in seen:
                    seen.add(module.resolve())
                    found.files.append(module)
                    waiting.append((module, is_named))
    for top, place in missing.items():
        near = _nearby(top, root)
        if near is not None:
            found.elsewhere[top] = (
                f"{place} imports {top}, which lies in {near.parent} and not beside the job; add --with {near} if the"
                " hosts have none of their own"
            )
    return found


def _compiled(root: Path) -> frozenset[str]:
    """Top-level names of the distributions with compiled modules that an installer copied into the job's folder."""
    names: set[str] = set()
    for record in root.glob("*.dist-info/RECORD"):
        with contextlib.suppress(OSError, ValueError):
            files = [line.partition(",")[0].strip('"') for line in record.read_text(encoding="utf-8").splitlines()]
            if any(file.endswith(_COMPILED) for file in files):
                names.update(file.partition("/")[0].partition(".")[0] for file in files)
    return frozenset(names)


def _modules(dotted: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """The files of a module, and whether it is what is imported; a package's others come along."""
    here = root
    for part in dotted.split("."):
        if (here / part / "__init__.py").is_file():
            package = here / part
            named = _within(package, dotted, root)
            for path in sorted(package.rglob("*.py")):
                if not any(name.startswith(".") or name == "__pycache__" for name in path.relative_to(package).parts):
                    yield path, path in named
            return
        if (here / f"{part}.py").is_file():
            yield here / f"{part}.py", True
            return
        here /= part  # a folder without __init__.py is a package as well
        if not here.is_dir():
            return


def _within(package: Path, dotted: str, root: Path) -> set[Path]:
    """The package's files that importing ``dotted`` runs."""
    path = root.joinpath(*dotted.split("."))
    candidates = {path.with_name(f"{path.name}.py"), path / "__init__.py"}
    return candidates | {parent / "__init__.py" for parent in path.parents if parent.is_relative_to(package)}


def _package(path: Path, root: Path) -> tuple[str, ...]:
    """The names of the packages that a module is in."""
    return path.relative_to(root).parent.parts if path.is_relative_to(root) else ()


def _imported(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Lines and full names of all modules that a file names to import, in functions as well."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                base = package[: len(package) - node.level + 1] if node.level else ()
                module = ".".join((*base, *([node.module] if node.module else [])))
                if node.level and not base:
                    continue  # Python refuses it as well
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names if alias.name != "*")
                yield node.lineno, module
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _is_import_call(node.func):
                if not name.startswith("."):
                    yield node.lineno, name
            case _:
                pass


def _is_import_call(function: ast.expr) -> bool:
    """``importlib.import_module`` or ``__import__``."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def _paths(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and texts that may name files: what is handed to a call, or put together with ``/``.

    What only a script does, under ``if __name__ == "__main__":``, is left out.
    """
    inert = {id(inner) for block in only_in_scripts(tree) for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in inert:
            continue
        given: list[ast.expr] = []
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            given = [node.left, node.right]
        for value in given:
            text = value.value if isinstance(value, ast.Constant) else None
            if isinstance(text, str) and 0 < len(text) < MAX_TEXT and text.isprintable() and text.strip("./"):
                yield value.lineno, text


def _nearby(name: str, root: Path) -> Path | None:
    """A module or package of that name in the present folder or around the job's; None: there is none."""
    for folder in dict.fromkeys((Path.cwd(), *list(root.parents)[:2])):
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            if path.is_file():
                return path.parent if path.name == "__init__.py" else path
    return None
