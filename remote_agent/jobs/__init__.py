"""Ready-made jobs that need no download; ``hetero-tui train NAME`` runs one."""

from __future__ import annotations

from typing import Any

from remote_agent.job_settings import CONFIGS
from remote_agent.kinds import nearest

NAMES = tuple(CONFIGS)


def ready(name: str) -> Any:
    """The ready job of that name; raises JobError, which names the nearest, if there is none."""
    from remote_agent.training.errors import JobError

    if name == "digits":
        from remote_agent.jobs.digits import Digits

        return Digits()
    if name == "text":
        from remote_agent.jobs.text import Text

        return Text()
    if name == "hf-lm":
        from remote_agent.jobs.language_model import LanguageModelJob

        return LanguageModelJob()
    close = nearest(name, NAMES)
    advice = f"did you mean {close!r}?" if close else f"ready jobs: {', '.join(NAMES)}; or give file.py:Name"
    raise JobError(f"there is no job {name!r}", hint=advice)
