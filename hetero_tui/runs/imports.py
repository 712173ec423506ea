"""The modules that a Python file imports from its own folder, and those that they import: found without running any."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_THERE = frozenset({*sys.stdlib_module_names, "remote_agent"})
"""What every host has, whatever lies beside the job."""


@dataclass
class Found:
    """What is found.

    Attributes:
        files: modules, those of imported packages among them, in the order in which they were found.
        mistakes: what can't be imported.
    """

    files: list[Path] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


def find_imports(file: Path, root: Path) -> Found:
    """The modules in ``root`` that ``file`` imports, and those that these import, and so on.

    A package goes as a whole, with all its modules. Where a name is that of a module of Python's own, or of ours, that
    is meant.

    Args:
        file: a Python file that can be parsed.
        root: where modules are looked for, as Python looks beside a script.
    """
    found = Found()
    seen = {file.resolve()}
    waiting = [(file, True)]
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
        for dotted in _imported(tree, package):
            top = dotted.partition(".")[0]
            if top in _THERE or not top:
                continue
            for module, is_named in _modules(dotted, root):
                if module.resolve() not in seen:
                    seen.add(module.resolve())
                    found.files.append(module)
                    waiting.append((module, is_named))
    return found


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


def _imported(tree: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    """Full names of all modules that a file names to import, in functions as well."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                base = package[: len(package) - node.level + 1] if node.level else ()
                module = ".".join((*base, *([node.module] if node.module else [])))
                if node.level and not base:
                    continue  # Python refuses it as well
                yield from (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")
                yield module
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _is_import_call(node.func):
                if not name.startswith("."):
                    yield name
            case _:
                pass


def _is_import_call(function: ast.expr) -> bool:
    """``importlib.import_module`` or ``__import__``."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")
