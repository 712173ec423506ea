"""The scripts, by area; importing this fills :data:`benchmarks.compatible.table.SCRIPTS`."""

from benchmarks.compatible.scripts import (
    generative,
    habits,
    language,
    refused,
    reinforcement,
    tabular,
    vision,
)

AREAS = (vision, language, generative, reinforcement, tabular, habits, refused)
