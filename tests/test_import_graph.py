"""No module imports itself by way of others, imports for types alone included: the graph of modules has no circle."""

from __future__ import annotations

import grimp
import pytest


def circles(package: str) -> list[list[str]]:
    """The strongly connected parts of the import graph with more than one module (Tarjan, 1972)."""
    graph = grimp.build_graph(package)
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        path.append(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if imported not in numbers:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in path:
                lowest[module] = min(lowest[module], numbers[imported])
        if lowest[module] == numbers[module]:
            part = path[path.index(module) :]
            del path[path.index(module) :]
            if len(part) > 1:
                found.append(sorted(part))

    for module in sorted(graph.modules):
        if module not in numbers:
            visit(module)
    return found


@pytest.mark.parametrize("package", ["remote_agent", "hetero_tui"])
def test_no_module_imports_itself_by_way_of_others(package: str) -> None:
    assert circles(package) == []
