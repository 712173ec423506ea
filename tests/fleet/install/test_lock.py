"""All hosts get the same exact versions, and one minor version of Python."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from hetero_tui.fleet.install.lock import NODE_PACKAGES, Environment, choose_python, constraints, mistakes_in, pins
from hetero_tui.planning.builds import Build

ROOT = Path(__file__).parents[3]
CPU = Build("cpu", "")
CONDITION = re.compile(r"extra ==|platform_|sys_platform|python_version|os_name|implementation")


def needs(name: str) -> list[str]:
    """What a package needs everywhere, by the environment that the tests run in."""
    always = [line for line in metadata.requires(name) or () if not CONDITION.search(line)]
    return [re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", line)[0]).lower() for line in always]


def test_the_lock_is_constraints_txt_and_has_all_that_a_host_needs_and_all_that_this_needs():
    assert constraints() == (ROOT / "constraints.txt").read_text(), "cp constraints.txt hetero_tui/"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert sorted(re.match(r"[\w-]+", line)[0] for line in extras["node"]) == sorted(NODE_PACKAGES)
    todo, known = [*NODE_PACKAGES, "uv"], set[str]()
    while todo:
        name = todo.pop()
        if name not in known:
            known.add(name)
            todo += [] if name == "uv" else needs(name)
    assert known - {"setuptools"} <= pins().keys()


def test_versions_are_exact_and_torch_is_the_build_that_was_chosen():
    lines = Environment("3.11", Build("cu126", "")).requirements.split()
    assert f"torch=={pins()['torch']}+cu126" in lines
    assert f"ray=={pins()['ray']}" in lines
    assert f"torch=={pins()['torch']}" in Environment("3.11", Build("mps", "")).requirements.split()
    extras = Environment("3.11", CPU, ("pandas", "einops", "transformers>=5")).requirements.split()
    assert {f"pandas=={pins()['pandas']}", "einops", "transformers>=5"} <= set(extras)


def test_another_python_build_or_extra_is_another_environment():
    environments = [
        Environment("3.11", CPU),
        Environment("3.12", CPU),
        Environment("3.11", Build("cu126", "")),
        Environment("3.11", CPU, ("pandas",)),
    ]
    assert len({environment.digest for environment in environments}) == 4
    assert Environment("3.11", Build("cpu", "said otherwise")).digest == environments[0].digest


@pytest.mark.parametrize(
    ("fixed", "available", "python"),
    [
        (["3.12", "3.11", "3.11"], {"a": {"3.13"}}, "3.11"),
        (["3.12"], {"a": {"3.11"}, "b": {"3.11"}}, "3.12"),
        ([], {"a": {"3.11", "3.13"}, "b": {"3.13"}}, "3.13"),
        ([], {"a": {"3.11", "3.12"}, "b": {"3.11", "3.12"}}, "3.11"),  # the laptop's own, of equals
        ([], {"a": set()}, "3.11"),
    ],
)
def test_the_python_that_needs_the_fewest_downloads_and_fits_what_is_there(fixed, available, python):
    assert choose_python(fixed, available, "3.11")[0] == python


def test_what_is_no_requirement_is_refused_before_a_host_is_asked():
    assert mistakes_in(["einops", "ray[data]", "peft==0.21.2", "a>=1,<2"]) == ()
    assert len(mistakes_in(["--index-url=http://evil", "a b", "", "x; rm -rf ~", "git+https://x"])) == 5
