"""What README promises in code runs as it stands there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def block(language: str, first_line: str) -> str:
    """The fenced block of that language whose text starts with ``first_line``."""
    for text in re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        if text.startswith(first_line):
            return text
    raise AssertionError(f"README has no such block: {first_line}")


def test_the_inventory_in_readme_is_a_good_one(tmp_path: Path) -> None:
    from hetero_tui.inventory.file import load

    path = tmp_path / "inventory.yaml"
    path.write_text(block("yaml", "cluster:"))
    assert [host.name for host in load(path).hosts] == ["mercer", "crosby", "studio", "nas", "laptop"]


@pytest.mark.ray
def test_the_model_in_readme_trains_on_this_computer_with_the_command_in_readme(cli) -> None:
    job = cli.home / "my_job.py"
    job.write_text(block("python", "# my_job.py"))
    try:
        done = cli("train", f"{job}:job", deadline=240)
    finally:
        down = cli("down", "--yes")
    assert down.returncode == 0, down.stderr
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", done.stdout)]
    assert losses[-1] < 0.7 * losses[0], done.stdout
