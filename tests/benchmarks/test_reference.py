"""The reference pages say what the code says, and every example on them is one that is taken."""

import dataclasses

from benchmarks import reference
from remote_agent.settings import TrainingConfig


def test_the_pages_are_those_that_the_docstrings_give() -> None:
    for name, text in reference.pages().items():
        found = (reference.DOCS / name).read_text(encoding="utf-8")
        assert found == text, f"docs/{name} is old: python -m benchmarks.reference"


def test_every_setting_has_an_example_that_is_not_its_default() -> None:
    names = [field.name for field in dataclasses.fields(TrainingConfig)]
    assert sorted(names) == sorted(reference.EXAMPLES)
    for name, value in reference.EXAMPLES.items():
        needed = {
            "early_stopping": {"keep_best": "val_loss"},
            "quantize": {"lora_rank": "4"},
            "lora_targets": {"lora_rank": "4"},
        }
        with_others = needed.get(name, {})
        made = TrainingConfig.from_settings({name: value, **with_others})
        default = getattr(TrainingConfig(), name)
        assert getattr(made, name) != default, name
