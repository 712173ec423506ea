"""Every command that README, CONTRIBUTING and docs/ name is one that exists, with these options and settings."""

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
from hetero_tui.runs.order import parse_settings
from remote_agent.job_settings import READY, of_class
from remote_agent.settings import check

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
COMMAND = re.compile(r"(?:hetero-tui|make|python -m)(?: .*)?")


def commands(text: str) -> list[str]:
    """What stands as a command of ours in a fenced block or between backticks, without comments and line breaks."""
    found = [line.partition("#")[0].strip() for block in _blocks(text, "sh") for line in block.splitlines()]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    return [command for command in found if COMMAND.fullmatch(command)]


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@functools.cache
def _command_line() -> typer.core.TyperGroup:
    group = typer.main.get_command(application)
    assert isinstance(group, typer.core.TyperGroup)
    return group


NAMED = sorted({command for path in DOCUMENTS for command in commands(path.read_text(encoding="utf-8"))})


def test_the_commands_of_the_documents_are_found() -> None:
    assert {"make demo", "make test", "hetero-tui probe", "python -m benchmarks.faults"} <= set(NAMED)


@pytest.mark.parametrize("command", [command for command in NAMED if command.startswith("hetero-tui")])
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
    for block in _blocks(path.read_text(encoding="utf-8"), "python"):
        ast.parse(block)


def test_the_files_that_contributing_names_are_there() -> None:
    parts = ("benchmarks", "examples", "hetero_tui", "remote_agent", "tests")
    files = [f"/{path.relative_to(ROOT)}" for part in parts for path in (ROOT / part).rglob("*.py")]
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py|[\w/]+/)`", text))
    assert len(named) > 60
    found = {name for name in named if any(f"/{name}" in file for file in files)}
    assert named - found == set()


def test_the_files_that_make_check_names_are_there() -> None:
    done = subprocess.run(["make", "-n", "check"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = {word for word in done.stdout.split() if word.startswith("tests/")}
    assert named
    assert [word for word in sorted(named) if not (ROOT / word).exists()] == []
