"""``hf-lm``: a causal language model of Hugging Face's, from a folder, trained or tuned on text.

::

    hetero-tui train hf-lm --set model=~/models/tiny --set data=~/notes.jsonl --set lora_rank=16 --set quantize=nf4

The model's folder lies on every host, at the same path; the text on the head alone: its tokens are handed to the
workers. Texts are put one after the other, with the end-of-text token between them, and cut into samples of ``context``
tokens, so that none is padding. It needs ``transformers`` on the hosts (the extra ``hf``); nothing is fetched.
"""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from remote_agent import wording
from remote_agent.errors import first_line
from remote_agent.job_settings import CONFIGS, LanguageModel
from remote_agent.models.adapters import CannotAdapt, adapt
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

UNQUANTIZED = "name the folder of the model in float32 or bfloat16; quantize=nf4 makes four bits of it"

DAMAGED = "copy the folder again: a file of weights is cut off or damaged"

ENDINGS = (".jsonl", ".txt")
"""Of files with texts."""

OTHER_FORMS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
"""Of weights that are not read."""

_INTEGERS = ("I", "U", "BOOL")
"""How safetensors begin the names of types that are no weights."""

_POINTER = b"version https://git-lfs"


def refuse_unfit(named: str, folder: Path) -> None:
    """Check the files that transformers reads.

    Args:
        named: the folder as the user named it.

    Raises:
        JobError: one is missing, damaged or a pointer of Git LFS, a tensor is in two of them, or they hold a form that
            would be taken for the values of weights (int8 without its scales).
    """
    holders: dict[str, str] = {}
    for path in _files(named, folder):
        if not path.is_file():
            raise JobError(f"{named}: {path.name} is missing", hint="copy the whole folder")
        try:
            with path.open("rb") as start:
                is_pointer = start.read(len(_POINTER)) == _POINTER
            if is_pointer:
                hint = "run `git lfs pull` in that folder, on each host"
                raise JobError(f"{named}: {path.name} is a pointer of Git LFS, and not the weights", hint=hint)
            with safe_open(path, "pt") as file:
                kinds = {name: str(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            raise JobError(f"{named}: its weights can't be read: {path.name}: {error}", hint=DAMAGED) from error
        wrong = [name for name, kind in kinds.items() if name.endswith("weight") and kind.startswith(_INTEGERS)]
        if wrong:
            cause = f"{wrong[0]} is {kinds[wrong[0]]} in {path.name}, a quantized form that is not known here"
            raise JobError(f"{named}: {cause}", hint=UNQUANTIZED)
        for name in sorted(holders.keys() & kinds.keys()):
            cause = f"{name} is in {holders[name]} and in {path.name}"
            raise JobError(f"{named}: {cause}", hint="the files are of two models: copy the whole folder anew")
        holders |= dict.fromkeys(kinds, path.name)


def _files(named: str, folder: Path) -> list[Path]:
    """The one file, or else those of the index, as transformers chooses."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if index.is_file():
        try:
            return [folder / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            cause = f"its weights can't be read: {INDEX}: {type(error).__name__}: {error}"
            raise JobError(f"{named}: {cause}", hint=DAMAGED) from error
    if any(folder.glob("*.safetensors")):
        raise JobError(f"{named}: there is neither {WEIGHTS} nor {INDEX}", hint="copy the whole folder")
    others = sorted(path.name for path in folder.iterdir() if path.suffix in OTHER_FORMS)
    if others:
        hint = "save the model as safetensors (`save_pretrained` of transformers), or set from_scratch=true"
        raise JobError(f"{named}: {others[0]} is no safetensors", hint=hint)
    raise JobError(f"{named}: there are no weights ({WEIGHTS})", hint="from_scratch=true begins with random weights")


_UTF8 = "utf-8-sig"  # Windows' programs write a mark before the text


def texts(data: str, field: str) -> Iterator[str]:
    """The texts of ``data``, file by file; of a .jsonl line its ``field``. Raises JobError."""
    place = Path(data).expanduser()
    files = [place]
    if place.is_dir():
        files = sorted(path for path in place.rglob("*") if path.suffix in ENDINGS and path.is_file())
    hint = "name a .jsonl or .txt file, or a folder of them, on the head"
    if not place.exists():
        raise JobError(f"data={data}: not there", hint=hint)
    if not place.is_dir() and not place.is_file():
        raise JobError(f"data={data}: neither a file nor a folder", hint=hint)
    if not files or files[0].suffix not in ENDINGS:
        raise JobError(f"data={data}: no {' or '.join(ENDINGS)} file", hint=hint)
    found = False
    for path in files:
        for text in _texts_of(path, field):
            if text.strip():
                found = True
                yield text
    if not found:
        raise JobError(f"data={data}: there is no text in it", hint=hint)


def _texts_of(path: Path, wanted: str) -> Iterator[str]:
    try:
        if path.suffix == ".txt":
            if "\0" in (text := path.read_text(encoding=_UTF8)):
                raise JobError(f"data: {path} has zero bytes", hint="it has to be text in UTF-8")
            yield text
            return
        with path.open(encoding=_UTF8) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                entry = json.loads(line)
                if not isinstance(entry, dict) or not isinstance(entry.get(wanted), str):
                    there = ", ".join(map(str, entry)) if isinstance(entry, dict) else f"a {type(entry).__name__}"
                    if isinstance(entry, dict) and wanted in entry:
                        there = json.dumps(entry[wanted])[:40]
                    hint = "say which field has the text with text_field=NAME"
                    raise JobError(f"{path.name}, line {number}: no text in {wanted!r}; it has {there}", hint=hint)
                entry[wanted].encode()
                yield entry[wanted]
    except UnicodeEncodeError as error:
        raise JobError(f"{path.name}, line {number}: its text has half a character: {error.reason}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"data: {path} can't be read: {error}", hint="it has to be text in UTF-8") from error
    except (ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, json.JSONDecodeError) else first_line(error)
        hint = "each line of a .jsonl file is a JSON object with a text"
        raise JobError(f"{path.name}, line {number}: it is no JSON: {said}", hint=hint) from error


T = TypeVar("T")

_AT_ONCE = 256
"""Texts that are tokenized at a time."""

_PIECE = 1 << 20
"""Characters of a text that are tokenized at a time: a tokenizer takes a hundred times their memory."""

_UNKNOWN = 0.5
"""The part of a text's tokens that a tokenizer may not know."""


class LanguageModelJob:
    """The job; see :mod:`remote_agent.training.job`."""

    config = TrainingConfig(**CONFIGS["hf-lm"])
    settings = LanguageModel()
    _read: Any = None  # the tokenizer

    def check(self, config: TrainingConfig) -> None:
        """Refuse a folder without weights, a tokenizer that does not fit, data without text, unknown targets.

        Raises:
            JobError: with every mistake at once.
        """
        mistakes: dict[str, str] = {}

        def tried(part: Callable[[], T]) -> T | None:
            try:
                return part()
            except JobError as error:
                mistakes.setdefault(error.cause, error.hint)
                return None

        if tried(self._folder) is not None:
            tried(self._whole_folder)
            model = tried(self.outline)
            if model is not None:
                tried(partial(self._check_context, model))
                tried(partial(self._check_adapters, model, config))
            tried(self._tokenizer)
        tried(lambda: next(self._texts()))
        if mistakes:
            hints = dict.fromkeys(filter(None, mistakes.values()))
            raise JobError("; ".join(mistakes), hint="; ".join(hints))

    def _check_context(self, model: nn.Module) -> None:
        most, context = self.context_length(model), self.settings.context
        if context > most:
            raise JobError(f"context={context}: the model looks at {most} tokens", hint=f"set context={most} or less")

    def _check_adapters(self, model: nn.Module, config: TrainingConfig) -> None:
        if config.lora_rank:
            bits, targets = config.quantize == "nf4", [each.strip() for each in config.lora_targets.split(",")]
            try:
                adapt(model, four_bits=bits, rank=config.lora_rank, alpha=1.0, targets=tuple(filter(None, targets)))
            except CannotAdapt as error:
                raise JobError(error.cause, hint=error.hint) from error

    def create_model(self) -> nn.Module:
        """The folder's model in float32: token numbers ``(n, t)`` to logits ``(n, t, vocabulary)``."""
        if self.settings.from_scratch:
            made: nn.Module = _transformers().AutoModelForCausalLM.from_config(self._config(), dtype=torch.float32)
            return made
        return self._read_model()

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        """AdamW; weight decay for matrices only."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.dim() >= 2]
        vectors = [parameter for parameter in trained if parameter.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=config.learning_rate)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean cross entropy of the next token, in nats."""
        inputs, targets = batch
        logits: Tensor = model(input_ids=inputs, use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Mapping[str, Any]:
        """Loss and perplexity on held-out samples."""
        loss = self.loss(model, batch)
        return {"val_loss": loss, "perplexity": loss.exp()}

    def create_data(self) -> Samples:
        """The samples to train on."""
        samples, held_out = self._samples()
        return Samples(samples.tokens, len(samples) - held_out, self.settings.context)

    def create_validation_data(self) -> Samples | None:
        """The last samples; None where none are kept."""
        samples, held_out = self._samples()
        context = self.settings.context
        return Samples(samples.tokens[(len(samples) - held_out) * context :], held_out, context) if held_out else None

    def tokens_of(self, text: str) -> list[int]:
        """The tokens of a prompt, for ``hetero-tui serve``."""
        tokens, (_, after) = list(self._tokenizer()(text)["input_ids"]), self._around()
        return tokens[: len(tokens) - len(after)]  # the end of a text is not that of a prompt

    def text_of(self, tokens: list[int]) -> str:
        return str(self._tokenizer().decode(tokens, skip_special_tokens=True))

    def continued(self, model: nn.Module, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits of tokens ``(1, t)`` that follow those of ``cache`` (None: they are the first), and a new cache."""
        given = model(input_ids=tokens, past_key_values=cache, use_cache=True)
        return given.logits, given.past_key_values

    @property
    def end_token(self) -> int | None:
        """After which a text ends; None: there is none."""
        end = self._tokenizer().eos_token_id
        return None if end is None else int(end)

    def context_length(self, model: nn.Module) -> int:
        """The most tokens that the model looks at."""
        return int(getattr(self._config().get_text_config(), "max_position_embeddings", self.settings.context))

    def save_beside(self, folder: Path) -> None:
        """The tokenizer, beside exported weights."""
        self._tokenizer().save_pretrained(folder)

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _folder(self) -> Path:
        folder = Path(self.settings.model).expanduser()
        if not (folder / "config.json").is_file():
            what = "no config.json" if folder.is_dir() else "not a folder on this host"
            hint = "name a folder of a Hugging Face model that every host has at this path"
            if (folder / "adapter_config.json").is_file():
                what, hint = "an adapter without its model", "export the run that made it with --format merged"
            raise JobError(f"model={self.settings.model}: {what}", hint=hint)
        if (folder / "adapter_config.json").is_file():  # transformers would read the base that it names
            hint = "take adapter_config.json out of the folder: the model is trained without the adapter"
            raise JobError(f"model={self.settings.model}: an adapter is beside the model", hint=hint)
        return folder

    def _whole_folder(self) -> Path:
        """The folder, whose weights are checked."""
        folder = self._folder()
        if not self.settings.from_scratch:
            refuse_unfit(f"model={self.settings.model}", folder)
        return folder

    def _read_model(self) -> nn.Module:
        """The folder's model; transformers alone would fill what is missing there with random numbers."""
        named, folder = f"model={self.settings.model}", self._whole_folder()
        with _reading(f"{named}: its weights can't be read", DAMAGED):
            made, about = _transformers().AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are told below
                output_loading_info=True,
            )
        if wrong := sorted(about["mismatched_keys"]):
            name, there, wanted = wrong[0]
            cause = f"{name} is of shape {tuple(there)}, and config.json says {tuple(wanted)}"
            raise JobError(f"{named}: {cause}", hint="config.json and weights are of two models")
        if missing := sorted(about["missing_keys"]):
            others = f" and {len(missing) - 1} more" * (len(missing) > 1)
            hint = "name the folder of a whole causal language model, or set from_scratch=true"
            raise JobError(f"{named}: there are no weights for {missing[0]}{others}", hint=hint)
        return cast("nn.Module", made)

    def _config(self) -> Any:
        hint = "name the folder of a causal language model, with the config.json that belongs to it"
        with _reading(f"model={self.settings.model}: config.json can't be used", hint):
            found = _transformers().AutoConfig.from_pretrained(
                self._folder(), local_files_only=True, trust_remote_code=False
            )
        if quantized := getattr(found, "quantization_config", None):
            kind = quantized.get("quant_method") if isinstance(quantized, dict) else None
            cause = f"its weights are quantized already{f' ({kind})' if kind else ''}"
            raise JobError(f"model={self.settings.model}: {cause}", hint=UNQUANTIZED)
        return found

    def made_from(self) -> list[Path]:
        """The files that the model is made from; none: it is not made from files."""
        folder = self._folder()
        return [] if self.settings.from_scratch else [folder / "config.json", *folder.glob("*.safetensors")]

    def outline(self) -> nn.Module:
        """The model without memory: its modules and shapes."""
        named, config = f"model={self.settings.model}", self._config()
        hint = "name a causal language model, such as Llama, Mistral, Qwen2, Gemma 2, GPT-NeoX or GPT-2"
        with _reading(f"{named}: config.json describes no model that can be built", hint), torch.device("meta"):
            made: nn.Module = _transformers().AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        own: Any = made.config
        if type(own) in _transformers().MODEL_FOR_MASKED_LM_MAPPING and not getattr(own, "is_decoder", False):
            raise JobError(f"{named}: a {type(made).__name__} sees the tokens that it would have to predict", hint=hint)
        return made.eval()  # as one that is read

    def _tokenizer(self) -> Any:
        if self._read is None:
            self._read = self._read_tokenizer()
        return self._read

    def _around(self) -> tuple[list[int], list[int]]:
        """The tokens for a text's beginning and its end that the tokenizer itself adds, or none."""
        first, *others = (tokenizer := self._tokenizer())("a")["input_ids"] or [None]
        before = [first] if others and first == tokenizer.bos_token_id else []
        return before, others[-1:] if others[-1:] == [tokenizer.eos_token_id] else []

    def _read_tokenizer(self) -> Any:
        named = self.settings.tokenizer or self.settings.model
        which = f"tokenizer={named}" if self.settings.tokenizer else f"model={named}"
        if not Path(named).expanduser().is_dir():
            raise JobError(f"{which}: not a folder on this host", hint="it has to have tokenizer.json")
        transformers, is_there = _transformers(), (Path(named).expanduser() / "tokenizer.json").is_file()
        what = "its tokenizer can't be read" if is_there else "no tokenizer is there: tokenizer.json is missing"
        with _reading(f"{which}: {what}", "name its folder with tokenizer=FOLDER: it has tokenizer.json"):
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                Path(named).expanduser(), local_files_only=True, trust_remote_code=False
            )
            ids = max(tokenizer.get_vocab().values(), default=-1)
        known = int(self._config().get_text_config().vocab_size)
        if ids < 0:
            raise JobError(f"{which}: its tokenizer has no tokens", hint="name one with tokenizer=FOLDER")
        if ids >= known:
            hint = "name the tokenizer that the model was trained with: tokenizer=FOLDER"
            cause = f"its tokenizer does not fit the model: its numbers go up to {ids:,}, the model knows {known:,}"
            raise JobError(f"{which}: {cause}", hint=hint)
        return tokenizer

    def _texts(self) -> Iterator[str]:
        return texts(self.settings.data, self.settings.text_field)

    def _samples(self) -> tuple[Samples, int]:
        """All samples, and how many of them are held out."""
        tokenizer, context = self._tokenizer(), self.settings.context
        before, end = self._around()[0], tokenizer.eos_token_id
        between = before if end is None else [end, *before]
        tokens, waiting = array("i", before), list[str]()

        def take() -> None:
            for numbers in tokenizer(waiting, add_special_tokens=False)["input_ids"] if waiting else ():
                tokens.extend((*numbers, *between))
            waiting.clear()

        for text in self._texts():
            *begun, rest = _pieces(text)
            if begun:
                take()  # in their order
            for piece in begun:
                tokens.extend(tokenizer(piece, add_special_tokens=False)["input_ids"])
            waiting.append(rest)
            if len(waiting) >= _AT_ONCE:
                take()
        take()
        known = torch.from_numpy(np.array(tokens[: len(tokens) - len(before)], dtype=np.int32))
        unknown = tokenizer.unk_token_id
        if unknown not in (None, end) and (share := float((known == unknown).float().mean())) > _UNKNOWN:
            cause = f"the tokenizer does not know {wording.share(share)} of its tokens"
            hint = "name the tokenizer that the model was trained with: tokenizer=FOLDER"
            raise JobError(f"data={self.settings.data}: {cause}", hint=hint)
        samples = Samples(known, max(0, len(known) - 1) // context, context)
        held_out = min(round(len(samples) * self.settings.validation_fraction), len(samples) - 1)
        if len(samples) < 1:
            cause = f"its {len(known):,} tokens are fewer than one sample of {context} and the token after it"
            raise JobError(f"data={self.settings.data}: {cause}", hint="give more text, or a smaller context")
        return samples, held_out


class Samples:
    """Samples of ``context`` tokens, and of those one token on.

    Args:
        tokens: int32, all of them, one text after the other.
        context: tokens of each.
    """

    def __init__(self, tokens: Tensor, count: int, context: int) -> None:
        self.tokens, self._count, self._context = tokens[: count * context + 1].clone(), count, context

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self._count:
            raise IndexError(index)
        at = index * self._context
        piece = self.tokens[at : at + self._context + 1].long()
        return piece[:-1], piece[1:]


def _transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import transformers
    except ImportError as error:
        hint = "install it on every host: `hetero-tui bootstrap --with transformers`, or pip install '.[node,hf]'"
        raise JobError("this host has no transformers, which hf-lm needs", hint=hint) from error
    transformers.utils.logging.disable_progress_bar()
    return transformers


@contextlib.contextmanager
def _reading(what: str, hint: str) -> Iterator[None]:
    """Say ``what`` of whatever transformers raises at files that are not as it expects them; it checks few of them."""
    try:
        yield
    except JobError:
        raise
    except Exception as error:
        said = first_line(error)
        if isinstance(error, LookupError | TypeError | AttributeError):  # their text alone says little
            said = f"{type(error).__name__}: {said}"
        raise JobError(f"{what}: {said}", hint=hint) from error


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces of :data:`_PIECE` characters, cut at the ends of lines or words where there are any."""
    while len(text) > _PIECE:
        ends = (text.rfind(mark, 1, _PIECE) for mark in ("\n", " "))
        at = next((end for end in ends if end > 0), _PIECE)
        yield text[:at]
        text = text[at:]
    yield text
