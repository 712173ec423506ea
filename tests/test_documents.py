"""Every command that README, CONTRIBUTING and docs/ name exists, with these options, and a test runs it."""

import ast
import functools
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
import typer.core

from hetero_tui.cli import application
from hetero_tui.inventory.file import load
from hetero_tui.runs.order import parse_settings
from remote_agent.job_settings import READY, of_class
from remote_agent.settings import check
from tests.documents import DOCUMENTS, NAMED, ROOT, block_of, blocks, in_blocks

OURS = [command for command in NAMED if command.startswith("hetero-tui")]


@functools.cache
def _command_line() -> typer.core.TyperGroup:
    group = typer.main.get_command(application)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def test_the_commands_of_the_documents_are_found() -> None:
    assert {"make demo", "make test", "hetero-tui probe", "python -m benchmarks.faults"} <= set(NAMED)


@pytest.mark.parametrize("command", OURS)
def test_the_command_line_takes(command: str) -> None:
    arguments = shlex.split(command)[1:]
    if not arguments:
        return
    group = _command_line()
    name, *rest = arguments
    if name.startswith("-"):
        assert name in {option for parameter in group.params for option in parameter.opts} | {"--help"}
        return
    if name == "train" and not rest:  # the command itself is meant
        return
    parsed = group.commands[name].make_context(name, rest)
    values, wrong = parse_settings(parsed.params.get("settings") or ())
    assert not wrong
    settings = READY.get(parsed.params.get("job", ""))
    own = {setting.name: setting.hint for setting in of_class(settings)} if settings is not None else {}
    assert not check(values, own=own)


TYPED_BY = {
    "hetero-tui": "tests/ui/test_terminal.py",
    "hetero-tui --readonly": "tests/test_web.py",
    "hetero-tui demo --chaos": "tests/test_demo.py",
    "hetero-tui train my_job.py:job": "tests/test_cli.py",
    **dict.fromkeys(in_blocks((ROOT / "docs/hosts.md").read_text("utf-8")), "tests/lab/test_from_nothing.py"),
}
"""Tests that run a command in a process of its own, which do not write it as the documents do."""


def typed() -> set[str]:
    """The commands that the lab's tests type as they stand in the documents."""
    readers = [file for file in (ROOT / "tests/lab").glob("test_*.py") if "import Reader" in file.read_text("utf-8")]
    nodes = [node for file in readers for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {word for word in words if word.startswith("hetero-tui")}


def parts(command: str) -> set[tuple[str, str]]:
    """The command itself, and the command with each of its options."""
    name, *rest = [*shlex.split(command)[1:], ""]
    return {(name, word) for word in rest if word.startswith("-") or not word}


def test_a_test_runs_each_command_of_the_documents_with_each_option() -> None:
    run = set().union(*map(parts, (*typed(), *TYPED_BY)))
    assert len(run) > 50
    assert {command: missing for command in OURS if (missing := parts(command) - run)} == {}


@pytest.mark.parametrize("command", [command for command in NAMED if command.startswith("make")])
def test_make_knows(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in command.split()[1:]:
        name, given, _ = word.partition("=")
        assert re.search(rf"^{name} \?=" if given else rf"^{name}:", makefile, re.MULTILINE), word


@pytest.mark.parametrize("command", [command for command in NAMED if command.startswith("python -m benchmarks")])
def test_the_benchmark_has_these_options(command: str) -> None:
    module, *arguments = command.split()[2:]
    source = (ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
    assert 'if __name__ == "__main__":' in source
    for option in (argument for argument in arguments if argument.startswith("--")):
        assert f'"{option}"' in source, option


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_the_documents_is_python(path: Path) -> None:
    for block in blocks(path.read_text(encoding="utf-8"), "python"):
        ast.parse(block)


def test_the_inventory_in_readme_is_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(block_of(ROOT / "README.md", "yaml", "cluster:"))
    assert [host.name for host in load(path).hosts] == ["mercer", "crosby", "studio", "nas", "laptop"]


MAPS = (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md")
SOURCES = {
    f"/{path.relative_to(ROOT)}": path.read_text(encoding="utf-8")
    for folder in ("hetero_tui", "remote_agent", "tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".tcss"}
}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_name_of_a_file_in_the_documents_fits_several_files(path: Path) -> None:
    named = sorted(set(re.findall(r"`([\w./]+\.(?:py|tcss))`", path.read_text("utf-8"))))
    fitting = {name: [file for file in SOURCES if file.endswith(f"/{name}")] for name in named}
    assert {name: files for name, files in fitting.items() if len(files) > 1} == {}


def test_what_the_maps_name_of_a_module_is_in_it() -> None:
    named = {name for path in MAPS for name in re.findall(r"`(\w+\.\w+)(?:\(.*?\))?`", path.read_text("utf-8"))}
    modules = {Path(file).stem for file in SOURCES}
    named = {
        name for name in named if name.partition(".")[0] in modules and not name.endswith((".py", ".tcss", ".jsonl"))
    }
    assert {"settings.CODECS", "codecs.register", "strategies.register", "backend.register"} <= named
    for name in named:
        module, _, thing = name.partition(".")
        defined = re.compile(rf"^(?:def |class )?{thing}\b", re.MULTILINE)
        assert any(defined.search(text) for file, text in SOURCES.items() if file.endswith(f"/{module}.py")), name


@pytest.mark.parametrize("path", MAPS, ids=lambda path: path.name)
def test_what_is_drawn_fits_a_terminal_of_80_columns(path: Path) -> None:
    for block in re.findall(r"```\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        assert [line for line in block.splitlines() if len(line) > 80] == []


def test_the_files_that_make_check_names_are_there() -> None:
    done = subprocess.run(["make", "-n", "check"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = {word for word in done.stdout.split() if word.startswith("tests/")}
    assert named
    assert [word for word in sorted(named) if not (ROOT / word).exists()] == []
