"""A run's weights in the form of other programs: made on its head (:mod:`remote_agent.weights`), and brought here."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import secrets
from collections.abc import Collection
from pathlib import Path

from hetero_tui import deadlines, output_place
from hetero_tui.errors import CommandFailed, HostError, RunError, UsageError
from hetero_tui.fleet import agent
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol

STEP = "export"

SINGLE = ("safetensors", "pt")
"""Formats of one file; the others are a folder."""

MARKS = {"hf": "config.json", "merged": "config.json", "peft": "adapter_config.json"}
"""The file that each export of a format has."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
"""Of a file, perhaps in a folder, as Hugging Face's additional_chat_templates are."""


async def fetch_weights(
    transport: Transport,
    cluster: str,
    run: str,
    form: str,
    path: Path,
    choice: protocol.Choice = protocol.Choice.NEWEST,
) -> int:
    """Write weights of a run (:class:`protocol.Choice`) to ``path``, a file or a folder; returns the checkpoint's step.

    Raises:
        RunError: the run has no such checkpoint, or it can't have that form.
        UsageError: ``path`` can't be written, is not of the format's kind, or is a folder that has other files.
        HostError: the head failed at it.
    """
    refuse_kind(path, form)
    words: tuple[str, ...] = ("--folder", agent.home_folder(cluster), "--run", run)
    done = await agent.call(
        transport,
        cluster,
        "weights",
        *words,
        "--format",
        form,
        "--weights",
        choice,
        step=STEP,
        deadline=deadlines.EXPORT,
    )
    if done is None or done.exit_status != 0:
        said = last_lines(done.stderr, 1) if done is not None else "no agent there"
        ended = f"the export ended on {transport.host} without a word -> its memory has to hold the whole model"
        cause, _, hint = (said or ended).partition(" -> ")
        raise RunError(f"{run}: {cause}", step=STEP, hint=hint)
    found = agent.answer(protocol.Exported, transport.host, done, step=STEP)
    words += ("--export", found.name)
    try:
        await _bring(transport, cluster, words, found, path, is_single=form in SINGLE)
    finally:
        with contextlib.suppress(HostError):  # it is removed there after a day
            await agent.call(transport, cluster, "weights", *words, "--remove", step=STEP)
    return found.step


async def _bring(
    transport: Transport, cluster: str, words: tuple[str, ...], found: protocol.Exported, path: Path, *, is_single: bool
) -> None:
    """Write the files of an export to ``path``, all at once when all are here; raises as :func:`fetch_weights` does."""
    if not is_single:
        refuse_others(path, found.files)
    drafts: dict[Path, Path] = {}
    target = path
    try:
        for name, size in found.files.items():
            if not _NAME.fullmatch(name):
                raise agent.refused(transport.host, protocol.ProtocolError(f"{name!r} is no file name"), STEP)
            target = path if is_single else path / name
            drafts[target] = draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
            target.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("xb") as file:
                async with agent.follow(transport, cluster, "weights", *words, "--read", name, step=STEP) as lines:
                    async for line in lines:
                        file.write(base64.b64decode(line.raw, validate=True))
            if draft.stat().st_size != size:
                raise CommandFailed(transport.host, f"{name} came cut off", step=STEP, hint="export it again")
        for target, draft in drafts.items():
            draft.replace(target)
    except binascii.Error:
        raise agent.refused(transport.host, protocol.ProtocolError("a file is no base64"), STEP) from None
    except OSError as error:
        cause = f"{target} can't be written: {error.strerror}"
        raise UsageError(cause, step=STEP, hint=output_place.ELSEWHERE) from None
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)


def refuse_without(summary: protocol.RunSummary, *, has: bool, step: str) -> None:
    """Refuse a run that has no weights; ``has``: a checkpoint of it is there.

    Raises:
        RunError: it is no training run, or has no checkpoint.
    """
    if summary.script:
        raise RunError(f"{summary.id} is a script or a sweep: it has no weights", step=step)
    if not has and summary.state.final:
        raise RunError(f"{summary.id} ended without a checkpoint ({summary.state})", step=step, hint="train again")
    if not has:
        hint = "it gets its first one after some seconds of training"
        raise RunError(f"{summary.id} has no checkpoint yet", step=step, hint=hint)


def refuse_kind(path: Path, form: str) -> None:
    """Refuse, before anything is made, a place where the export can't be: of the other kind, or for other files.

    Raises:
        UsageError: a folder where the format is one file, a file where it is a folder, a folder with files that are of
            no export, or a place that can't be written.
    """
    is_single = form in SINGLE
    output_place.refuse(path, step=STEP)
    if not is_single and path.is_dir() and not (path / MARKS[form]).exists():
        refuse_others(path, ())  # an earlier export to the same place has that file, and is replaced
    if path.exists() and path.is_dir() is is_single:
        there, wanted = ("a folder", "one file") if is_single else ("a file", "a folder")
        hint = f"{output_place.ELSEWHERE}{f', such as {path / path.resolve().name}.{form}' * is_single}"
        raise UsageError(f"{path} is {there}, and --format {form} is {wanted}", step=STEP, hint=hint)


def refuse_others(folder: Path, names: Collection[str]) -> None:
    """Raise UsageError for a folder with other files: a library would read weights of another export."""
    folders = {name.partition("/")[0] for name in names if "/" in name}
    places = [folder, *(folder / name for name in folders)]
    entries = (entry for place in places if place.is_dir() for entry in place.iterdir())
    there = sorted(entry.relative_to(folder).as_posix() for entry in entries)
    known = {*names, *folders}
    others = [name for name in there if name not in known and not name.rpartition("/")[2].startswith(".")]
    if others:
        raise UsageError(
            f"{folder} has files that are not of this export, such as {others[0]}",
            step=STEP,
            hint="name a new folder with --output, or empty this one",
        )
