"""Reads and checks an order to train: a ready-made job or the user's file, and settings, before anything starts.

Nothing of the user's runs on the laptop. What a file defines, and whether its own settings are right, the head says
when it imports it (:mod:`~hetero_tui.runs.description`).
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetero_tui import deadlines
from hetero_tui.errors import ChangesError, OrderError, UsageError
from hetero_tui.fleet import agent
from hetero_tui.fleet.install.lock import mistakes_in
from hetero_tui.runs.code import Code, collect
from hetero_tui.text import HostText, meant
from hetero_tui.transport import Transport
from remote_agent import kinds
from remote_agent import settings as fields
from remote_agent.idle_settings import idle
from remote_agent.job_settings import CONFIGS, READY, REQUIRED, VALIDATED, OwnSetting, of_class
from remote_agent.search import Search

READY_JOBS = tuple(CONFIGS)
"""The jobs that come with the agent."""

HINT = f"a JOB is one of {', '.join(READY_JOBS)}, or path/to/file.py:Name"


@dataclass(frozen=True, slots=True)
class Job:
    """What to train: a ready job's name, or a file of the user's and the name in it.

    Attributes:
        name: empty: the file's only job, or it is a script.
        requirements: what it needs installed.
        own: its own settings, of a ready job.
    """

    name: str
    file: Path | None = None
    requirements: tuple[str, ...] = ()
    own: tuple[OwnSetting, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it may have settings that only the host which imports it knows."""
        return self.file is not None

    @property
    def reference(self) -> str:
        """How the coordinator finds it: the ready job's name, or ``file.py:Name``."""
        if self.file is None:
            return self.name
        return f"{self.file.name}:{self.name}" if self.name else self.file.name

    @property
    def slug(self) -> str:
        """The job in a run's name: lower case letters, digits and dashes."""
        base = self.name if self.file is None else self.file.stem
        return re.sub(r"[^a-z0-9]+", "-", base.lower()).strip("-")[:24] or "job"


@dataclass(frozen=True, slots=True)
class Order:
    """A job, the settings that it is to be trained with, and the files that go with one of the user's own.

    ``script``: the arguments of a Ray script, which is run and not trained; None: it is a job. With ``search`` it is a
    sweep of the job, which is carried out as a script is. ``hosts``: those whose devices train; empty: all.
    """

    job: Job
    settings: Mapping[str, str] = field(default_factory=dict)
    code: Code | None = None
    script: tuple[str, ...] | None = None
    hosts: tuple[str, ...] = ()
    search: Search | None = None


def read_order(
    job: str,
    pairs: Sequence[str] | Mapping[str, str] = (),
    paths: Sequence[str] = (),
    swept: Collection[str] = (),
) -> Order:
    """The order that a user's words make.

    Args:
        job: ``digits``, ``path/to/file.py:Name``, or ``path/to/file.py`` where that has one job only.
        pairs: ``key=value`` each, or a mapping.
        paths: files and folders that go with the job's file, beside the modules that it imports.
        swept: settings that the trials of a sweep get.

    Raises:
        OrderError: with every mistake at once.
    """
    mistakes: list[str] = []
    hints: list[str] = []
    found = Job("")
    try:
        found = parse_job(job)
    except OrderError as error:
        mistakes += error.mistakes
        hints.append(error.hint)
    code: Code | None = None
    try:
        if found.file is not None:
            code = collect(found.file, paths)
        elif found.name and paths:
            mistakes.append(f"--with {paths[0]}: {found.name} is a ready job, which takes no files")
    except OrderError as error:
        mistakes += error.mistakes
        hints.append(error.hint)
    wanted, wrong = (pairs, []) if isinstance(pairs, Mapping) else parse_settings(pairs)
    if wrong:
        mistakes += [f"--set {pair!r} is not key=value" for pair in wrong]
        hints.append("for example --set num_iterations=50")
    if not found.is_open:  # else only the job's host knows whether it has a setting of that name itself
        wanted = fields.with_whole_names(wanted, own_hints(found))
    rest = rest_of(found)
    said = fields.check(wanted, own=own_hints(found), is_open=found.is_open, rest=rest, swept=swept)
    mistakes += [placed(mistake, wanted, found) for mistake in said]
    read = fields.values_of(wanted, rest)
    if has_no_validation(found):
        unheard = [f"{name}={read[name]}: {NO_VALIDATION}" for name in fields.OF_VALIDATION if read.get(name)]
        mistakes += [placed(mistake, wanted, found) for mistake in unheard]
    mistakes += [
        f"--set {name}={wanted[name]}: is for scripts; on the fleet `devices:` in the inventory says what trains"
        for name in sorted(fields.FOR_SCRIPTS)
        if name in wanted
    ]
    if mistakes:
        raise OrderError(tuple(mistakes), hint="; ".join(filter(None, hints)))
    return Order(found, wanted, code)


def placed(mistake: str, wanted: Collection[str], job: Job) -> str:
    """A mistake in a setting, with where that stands: on the command line, or in the job's file."""
    name, equals, _ = mistake.partition(":")[0].partition("=")
    return f"--set {mistake}" if not equals or name in wanted else f"{job.file or job.name}: TrainingConfig: {mistake}"


NO_VALIDATION = "the job has no validation data, as create_validation_data() gives it"


def has_no_validation(job: Job) -> bool:
    """True for a ready job without validation data."""
    return job.name in CONFIGS.keys() - VALIDATED and job.file is None


def read_changes(pairs: Sequence[str]) -> Mapping[str, str]:
    """Settings for a resumed run, from ``key=value`` each; raises ChangesError with every mistake at once."""
    wanted, wrong = parse_settings(pairs)
    wanted = fields.with_whole_names(wanted)
    mistakes = [f"--set {pair!r} is not key=value" for pair in wrong]
    kept = [name for name in wanted if name in fields.names() and name not in fields.WHEN_RESUMED]
    mistakes += [f"--set {name}: a run keeps it from its start; for another value start a new run" for name in kept]
    free = {name: value for name, value in wanted.items() if name not in kept}
    mistakes += [f"--set {mistake}" for mistake in fields.check(free)]
    if mistakes:
        hint = f"a run may go on with another value of {', '.join(fields.WHEN_RESUMED)}"
        raise ChangesError(tuple(mistakes), hint=hint)
    return wanted


def parse_settings(pairs: Sequence[str]) -> tuple[Mapping[str, str], list[str]]:
    """``key=value`` pairs as a mapping, and those that are not of that form."""
    wrong = [pair for pair in pairs if not re.fullmatch(r"[A-Za-z_]\w*=.*", pair, re.DOTALL)]
    return dict(pair.split("=", 1) for pair in pairs if pair not in wrong), wrong


def parse_job(text: str) -> Job:
    """The job that ``text`` names; see :func:`read_order`.

    Raises:
        OrderError: neither a ready job nor a readable Python file.
    """
    if text in READY_JOBS:
        return Job(text, None, REQUIRED.get(text, ()), of_class(READY[text]) if text in READY else ())
    path, colon, name = text.rpartition(":")
    if not colon:
        path, name = text, ""
    file = Path(path).expanduser()
    if file.is_dir() and path:
        raise OrderError((f"{path} is a folder, not a Python file",), hint=HINT)
    if file.exists() and not (path.endswith(".py") and file.is_file()) and path:
        raise OrderError((f"{path} is not a Python file",), hint=HINT)
    if not path.endswith(".py"):
        is_there = Path(f"{path}.py").expanduser().is_file()
        file_meant = f"; did you mean '{path}.py{text[len(path) :]}'?" if is_there else ""
        raise OrderError((f"no job {text!r}{file_meant or meant(text.partition(':')[0], READY_JOBS)}",), hint=HINT)
    if name and not name.isidentifier():
        raise OrderError((f"no job {text!r}: {name!r} can't be a name in Python",), hint=HINT)
    if not file.is_file():
        beside = [entry.stem for entry in file.parent.glob("*.py")] if file.parent.is_dir() else []
        close = kinds.nearest(file.stem, beside)  # all end alike, which makes no two of them alike
        file_meant = f"; did you mean '{close}.py'?" if close else ""
        raise OrderError((f"no file {path}{file_meant}",), hint=HINT)
    needed = requirements_in(file)
    if mistakes := mistakes_in(needed):
        raise OrderError(tuple(f"{path}: requirements: {mistake}" for mistake in mistakes))
    return Job(name, file, needed)


_REQUIREMENTS = re.compile(
    r"""^[ \t]*requirements\b[^=\n]*=\s*([\[(](?:[^\])"'#]|"[^"]*"|'[^']*'|\#.*)*[\])])""", re.MULTILINE
)


def requirements_in(file: Path) -> tuple[str, ...]:
    """All words of each ``requirements = [...]`` in a file: the hosts need them before they can import it.

    Raises:
        OrderError: the file can't be read.
    """
    try:
        texts = _REQUIREMENTS.findall(file.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise OrderError((f"can't read {file}: {error.strerror}",)) from error
    words: list[object] = []
    for text in texts:
        with contextlib.suppress(ValueError, SyntaxError):  # it takes running to know, or it stands in a text
            words += list(ast.literal_eval(text)) if "," in text or text[0] == "[" else []
    return tuple(dict.fromkeys(str(word) for word in words))


def rest_of(job: Job) -> Mapping[str, Any]:
    """The settings that a ready job has beside those that are given; of others only the host knows them."""
    if job.file is not None or not job.name:
        return {}
    return {**fields.defaults(), **fields.OF_ORDERS, **CONFIGS[job.name]}


def without_effect(job: Job, settings: Mapping[str, str], swept: Collection[str]) -> dict[str, str]:
    """Of the settings of a sweep's trials those that have no effect for sure, and why."""
    read = fields.values_of(settings, rest_of(job))
    return dict(idle({name: value for name, value in read.items() if name not in swept}))


def own_hints(job: Job) -> dict[str, Any]:
    """What the job's own settings have to be, by name."""
    return {setting.name: setting.hint for setting in job.own}


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
    try:
        compile(file.read_bytes(), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f"{path}:{error.lineno}" if isinstance(error, SyntaxError) else path
        raise OrderError((f"{where}: {getattr(error, 'msg', error)}",)) from error
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
