"""What is imported when: the laptop's side starts fast and light, and the probe runs on a bare Python.

Which package may import which is held by the import-linter contracts in pyproject.toml (``make lint``).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "ray", "numpy", "textual")
DEADLINE = 60.0


def loaded_after(statements: str) -> set[str]:
    """Top-level names of all modules that a fresh Python has loaded after ``statements``."""
    script = f"import sys\ntry:\n    {statements}\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    script += "print('loaded:', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "statements",
    [
        "import hetero_tui.cli",
        "import hetero_tui.session, hetero_tui.narration, hetero_tui.demo",
        "sys.argv = ['hetero-tui', '--help']; import hetero_tui.__main__ as program; program.main()",
    ],
)
def test_the_command_line_starts_without_torch_ray_or_textual(statements: str) -> None:
    loaded = loaded_after(statements)
    assert "hetero_tui" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_the_screens_do_load_textual_so_the_check_above_can_fail() -> None:
    assert "textual" in loaded_after("import hetero_tui.ui.app")


def test_the_probe_needs_nothing_but_the_standard_library_of_python_3_8() -> None:
    source = (REPOSITORY / "remote_agent/probe.py").read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            imported.add((node.module or "").partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == set()


def test_what_both_sides_share_loads_nothing_that_a_laptop_lacks() -> None:
    assert loaded_after("import remote_agent.protocol, remote_agent.settings").isdisjoint((*HEAVY, "psutil"))


@pytest.mark.parametrize("package", ["hetero_tui", "remote_agent"])
def test_every_module_says_in_a_docstring_what_it_is(package: str) -> None:
    modules = sorted((REPOSITORY / package).rglob("*.py"))
    assert modules
    silent = [
        str(path.relative_to(REPOSITORY)) for path in modules if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []
