"""The weights of a run in the form of other programs, and a file of them as lines of text.

::

    python -m remote_agent.weights --folder FOLDER --run RUN --format FORMAT --weights newest
                                                                                -> Exported, as one JSON line
    python -m remote_agent.weights --folder FOLDER --run RUN --export NAME --read FILE    -> base64, line by line
    python -m remote_agent.weights --folder FOLDER --run RUN --export NAME --remove

Each export has a folder of its own, which is removed once its files were read, or by an export a day later.

``safetensors`` is the checkpoint's own file, ``pt`` what ``torch.load`` reads. ``hf`` is a folder that
``from_pretrained`` reads, ``peft`` an adapter for that library; ``merged`` is ``hf`` with the adapters added to the
weights that they stand beside, which a four-bit base has as the run had them.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_agent import protocol
from remote_agent.errors import JobError, TrainingError, no_average, none_is_best
from remote_agent.host.processes import absolute_path
from remote_agent.job_settings import REQUIRED

if TYPE_CHECKING:
    from torch import Tensor, nn

    from remote_agent.training.checkpoint.checkpoint import Checkpoint
    from remote_agent.training.config import TrainingConfig
    from remote_agent.training.job import Job

EXPORTS = "exports"
"""In a run's folder."""

_KEPT_S = 24 * 3600.0
"""Seconds that an export is kept if its reader ended before it could remove it."""

_PLAIN = "export it with --format safetensors, or --format pt"

_LINE = 48 * 1024
"""Bytes of a file in a line."""


def export(place: Path, form: str, choice: protocol.Choice = protocol.Choice.NEWEST) -> protocol.Exported:
    """Write weights of the run in ``place`` (:class:`~remote_agent.protocol.Choice`) into a new folder in ``exports``.

    Raises:
        TrainingError: there are none, or they can't have that form.
    """
    _refuse(place, form, choice)
    found = _chosen(place, choice)
    exports = place / EXPORTS
    exports.mkdir(exist_ok=True)
    for old in exports.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _KEPT_S:
                shutil.rmtree(old)
    into = Path(tempfile.mkdtemp(prefix=f"{form}-", dir=exports))
    try:
        _write(place, found, choice, form, into)
    except BaseException:
        shutil.rmtree(into, ignore_errors=True)
        raise
    files = {path.relative_to(into).as_posix(): path.stat().st_size for path in into.rglob("*") if path.is_file()}
    return protocol.Exported(files=dict(sorted(files.items())), step=found.step, name=into.name)


def _write(place: Path, found: Checkpoint, choice: protocol.Choice, form: str, into: Path) -> None:
    if form == "safetensors" and choice != protocol.Choice.AVERAGE:
        shutil.copyfile(found.path, into / f"{place.name}.safetensors")
    elif form == "safetensors":
        from safetensors.torch import save_file

        save_file(_values(place, found, choice), into / f"{place.name}.safetensors", metadata={"format": "pt"})
    elif form == "pt":
        import torch

        torch.save(_values(place, found, choice), into / f"{place.name}.pt")
    else:
        _of_model(place, found, choice, form, into)


def model_of(place: Path, choice: protocol.Choice = protocol.Choice.NEWEST) -> tuple[Checkpoint, Job, nn.Module]:
    """The chosen checkpoint of the run in ``place``, and the model of its job with these weights, on the CPU.

    Raises:
        TrainingError: there is none, or the model can't be made or does not fit.
    """
    found = _chosen(place, choice)
    loaded, config = _job_of(place)
    return found, loaded, _filled(loaded, config, found, choice)


def _values(place: Path, found: Checkpoint, choice: protocol.Choice) -> dict[str, Tensor]:
    """The state dict. That of the average needs the model, which knows what is tied."""
    from remote_agent.training.checkpoint.checkpoint import portable_state

    if choice != protocol.Choice.AVERAGE:
        return found.weights()
    return portable_state(_filled(*_job_of(place), found, choice))


def _refuse(place: Path, form: str, choice: protocol.Choice) -> None:
    """Refuse what the run's files show to be impossible, before torch is loaded, which takes many seconds.

    Raises:
        JobError: says what can be exported.
    """
    documents = sorted((place / "checkpoints").glob("step-*.json"))
    if not documents:
        hint = "a run gets its first one after some seconds of training; one that failed before or a sweep has none"
        raise JobError("it has no checkpoint", hint=hint)
    try:
        config = json.loads(documents[-1].read_text(encoding="utf-8"))["config"]
        name = protocol.decode(protocol.RunSpec, (place / "run.json").read_text(encoding="utf-8")).job
        keep_best, ema_decay, adapters = (config.get(each) for each in ("keep_best", "ema_decay", "lora_rank"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # what reads it next says more
    if choice == protocol.Choice.BEST and not keep_best:
        raise none_is_best()
    if choice == protocol.Choice.AVERAGE and not ema_decay:
        raise no_average()
    if form == "hf" and adapters:
        raise JobError("this run trained adapters", hint="export it with --format peft, or --format merged")
    if form in ("peft", "merged") and not adapters:
        raise JobError("this run trained no adapters", hint=_PLAIN)
    if form == "hf" and "." not in name and name not in REQUIRED:  # a ready job
        raise JobError(f"the model of {name} is no model of Hugging Face's", hint=_PLAIN)


def _chosen(place: Path, choice: protocol.Choice) -> Checkpoint:
    from remote_agent.training.checkpoint import checkpoint

    newest = checkpoint.find(place)
    return newest.best() if choice == protocol.Choice.BEST else newest


def _job_of(place: Path) -> tuple[Job, TrainingConfig]:
    from remote_agent.training import job

    spec = protocol.decode(protocol.RunSpec, (place / "run.json").read_text(encoding="utf-8"))
    loaded = job.load(spec.job, place)
    return loaded, job.configured(loaded, spec.config)


def _filled(loaded: Job, config: TrainingConfig, found: Checkpoint, choice: protocol.Choice) -> nn.Module:
    from remote_agent.training import job

    weights = found.weights()  # at once: a run that trains removes it after a while
    model = job.create_model(loaded.factory, config.seed, config, trains=False)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        cause = f"the checkpoint does not fit the model that the job makes now: {str(error).splitlines()[-1].strip()}"
        raise JobError(cause, detail=str(error)) from error
    if choice == protocol.Choice.AVERAGE:
        found.average_into(model)
    return model


def _of_model(place: Path, found: Checkpoint, choice: protocol.Choice, form: str, into: Path) -> None:
    from remote_agent.models.adapters import merge
    from remote_agent.training import job

    loaded, config = _job_of(place)
    model = _filled(loaded, config, found, choice)
    if form != "peft" and not hasattr(model, "save_pretrained"):
        raise JobError(f"a {type(model).__name__} is no model of Hugging Face's", hint=_PLAIN)
    if form == "peft":
        _write_adapter(loaded, model, config, into)
        return
    made: Any = merge(model)
    made.save_pretrained(into)
    beside = getattr(loaded.factory, "save_beside", None)
    if callable(beside):
        job.guard("save_beside", beside, into)


def _write_adapter(loaded: Job, model: nn.Module, config: TrainingConfig, into: Path) -> None:
    """As peft's own ``save_pretrained`` writes it."""
    from safetensors.torch import save_file

    from remote_agent.models.adapters import adapters_of
    from remote_agent.models.nf4 import is_transposed

    layers = adapters_of(model)
    tensors = {}
    for name, layer in layers.items():
        for part, tensor in (("lora_A", layer.lora_a), ("lora_B", layer.lora_b)):
            tensors[f"base_model.model.{name}.{part}.weight"] = tensor.detach().contiguous()
    save_file(tensors, into / "adapter_model.safetensors", metadata={"format": "pt"})
    base = getattr(getattr(loaded.factory, "settings", None), "model", None)
    if isinstance(base, str) and base.startswith("~"):
        base = str(Path(base).expanduser())  # peft takes it for a name
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if hasattr(model, "generate") else None,
        "base_model_name_or_path": base,
        "r": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "fan_in_fan_out": any(is_transposed(layer.base) for layer in layers.values()),
        "target_modules": sorted(layers),
    }
    (into / "adapter_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def show(path: Path) -> None:
    """Print a file as lines of base64."""
    with path.open("rb") as file:
        while piece := file.read(_LINE):
            print(base64.b64encode(piece).decode())


def main() -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="remote_agent.weights")
    parser.add_argument("--folder", required=True, type=absolute_path)
    parser.add_argument("--run", required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--format", choices=protocol.WEIGHTS)
    what.add_argument("--export", metavar="NAME")
    parser.add_argument("--weights", type=protocol.Choice, choices=protocol.Choice, default=protocol.Choice.NEWEST)
    parser.add_argument("--read", metavar="FILE")
    parser.add_argument("--remove", action="store_true")
    options = parser.parse_args()
    place: Path = options.folder / "runs" / Path(options.run).name
    if options.export is not None:
        made = place / EXPORTS / Path(options.export).name
        if options.read is not None:
            show(made / options.read)
        if options.remove:
            shutil.rmtree(made, ignore_errors=True)
        return 0
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):  # what the job's code prints
            answer = export(place, options.format, options.weights)
    except TrainingError as error:
        print(f"{error.cause} -> {error.hint}" if error.hint else error.cause, file=sys.stderr)
        return 1
    except (OSError, protocol.ProtocolError) as error:
        print(f"it can't be written: {error}", file=sys.stderr)
        return 1
    print(protocol.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
