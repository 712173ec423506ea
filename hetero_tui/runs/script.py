"""A Ray script of the user's on the fleet's cluster, and Ray's own command line: checked here, carried out on the head.

See :mod:`remote_agent.raw_ray` for what is done there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from hetero_tui import deadlines
from hetero_tui.errors import OrderError, UsageError
from hetero_tui.fleet import agent
from hetero_tui.runs.code import collect, parsed
from hetero_tui.runs.order import Job, Order
from hetero_tui.text import HostText, meant
from hetero_tui.transport import Transport

OURS = {
    "start": "`hetero-tui up` starts the cluster",
    "up": "`hetero-tui up` starts the cluster",
    "stop": "`hetero-tui down` ends the cluster; `ray stop` would end every Ray of this user on the head",
    "down": "`hetero-tui down` ends the cluster",
    "attach": "that is of Ray's cluster launcher; `ssh` opens a shell on the head",
}
"""Commands of Ray's that are not run, and what does it instead."""


def read_script(path: str, arguments: Sequence[str] = (), paths: Sequence[str] = ()) -> Order:
    """The order that a script, its own arguments and the files that go with it make.

    Raises:
        OrderError: with every mistake at once.
    """
    file = Path(path).expanduser()
    if not file.is_file() or file.suffix != ".py":
        beside = [entry.name for entry in file.parent.glob("*.py")] if file.parent.is_dir() else []
        cause = f"{path} is not a Python file" if file.exists() else f"no file {path}"
        raise OrderError((cause + meant(f"{file.stem}.py", beside),), hint="name a script: FILE.py")
    parsed(file, path)
    return Order(Job("", file), {}, collect(file, paths), tuple(arguments))


def refuse_ours(words: Sequence[str]) -> None:
    """Raise UsageError for those of Ray's commands that start or end clusters."""
    before = ""
    for word in words:
        if word in OURS:
            raise UsageError(f"`ray {word}` is not for a cluster of ours", step="ray", hint=OURS[word])
        if not word.startswith("-") and not before.startswith("-"):
            return  # the command; a word after an option may be that option's value
        before = word


async def rays_output(transport: Transport, cluster: str, words: Sequence[str]) -> AsyncGenerator[HostText]:
    """Lines of Ray's command line on the head, as they come; raises HostError if it fails."""
    command = agent.words(cluster, "raw_ray", "command", "--folder", agent.home_folder(cluster), "--", *words)
    # What Ray says of an error comes in its place among the rest.
    both = ["sh", "-c", 'exec "$@" 2>&1', "sh", *command]
    async with transport.stream(both, step="ray", silence=deadlines.RAYS_COMMAND) as lines:
        async for line in lines:
            yield line
