"""What a job requires: listed in its file, asked of the Python that would train, and said where it is missing."""

import sys

import pytest

from hetero_tui.errors import OrderError
from hetero_tui.fleet.install.requirements import Lack, lacking
from hetero_tui.inventory import Host, Inventory
from hetero_tui.runs.order import read_order
from hetero_tui.transport import open_transport


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("class J:\n    requirements = ['einops', 'timm>=1']\n", ("einops", "timm>=1")),
        (
            "requirements = (\n    'einops[all]',  # (for layers)\n)\nclass J:\n    requirements: list = ['y']\n",
            ("einops[all]", "y"),
        ),
        ("requirements = ('einops')\n", ()),
        ("class J:\n    requirements = open('r').read().split()\n", ()),
        ("class J: pass\n", ()),
    ],
)
def test_a_job_has_the_requirements_that_its_file_lists(tmp_path, text, needed):
    (tmp_path / "job.py").write_text(text)
    assert read_order(str(tmp_path / "job.py")).job.requirements == needed


def test_each_requirement_that_is_none_is_a_mistake(tmp_path):
    (tmp_path / "job.py").write_text("requirements = ['-r evil.txt', 'a b']\n")
    with pytest.raises(OrderError) as refused:
        read_order(str(tmp_path / "job.py"))
    assert ["-r evil.txt" in refused.value.mistakes[0], "'a b'" in refused.value.mistakes[1]] == [True, True]


async def test_the_python_that_would_train_is_asked_and_nothing_is_installed(make_facts):
    laptop = Host(name="laptop", connection="local")
    transport = open_transport(laptop, Inventory(hosts=(laptop,)))
    facts = make_facts(python={"version": "3.11.7", "executable": sys.executable})
    wanted = ("numpy", "numpy<1", "no-such-package", "scikit_learn>=1")
    (lack,) = await lacking("lab", {"laptop": transport}, {"laptop": facts}, wanted)
    assert lack == Lack("laptop", ("numpy<1", "no-such-package"), sys.executable)


async def test_what_the_head_needs_is_asked_of_the_head_or_of_all_that_may_be_it(make_facts, tmp_path):
    has = tmp_path / "python"
    none, one = '{"lacks": []}', '{"lacks": ["no-such-package"]}'
    has.write_text(f"#!/bin/sh\ncase \"$*\" in *no-such-package*) echo '{one}';; *) echo '{none}';; esac\n")
    has.chmod(0o755)
    hosts = {name: Host(name=name, connection="local") for name in ("a", "b")}
    inventory = Inventory(hosts=tuple(hosts.values()))
    transports = {name: open_transport(host, inventory) for name, host in hosts.items()}
    pythons = {"a": sys.executable, "b": str(has)}
    facts = {name: make_facts(python={"version": "3.11.7", "executable": path}) for name, path in pythons.items()}

    async def lacks(head, *requirements):
        found = await lacking("lab", transports, facts, requirements, of_head=("einops",), head=head)
        return {lack.host: lack.packages for lack in found}

    assert await lacks("a") == {"a": ("einops",)}
    assert await lacks("b") == {}
    assert await lacks(None) == {}, "b can become the head"
    assert await lacks("b", "no-such-package") == {"a": ("no-such-package",), "b": ("no-such-package",)}
