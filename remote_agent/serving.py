"""A run's checkpoint as something that answers: predictions, and for language models text.

A job may say how: ``predict(model, inputs)`` takes what JSON holds and gives what JSON can hold; ``tokens_of(text)``
and ``text_of(tokens)`` make its model one of language. ``continued(model, tokens, cache)`` gives logits of tokens that
follow those of ``cache``, and a new cache: so each token of an answer is computed once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remote_agent import protocol, weights
from remote_agent.errors import chain
from remote_agent.training import job
from remote_agent.training.errors import JobError
from remote_agent.training.user_code.user_errors import DEVICE_FAILURES, is_out_of_memory
from remote_agent.training.worker.device import backend

MAX_TOKENS = 4096
"""Of an answer."""

_MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a model raises at inputs that it is not made for."""

EXAMPLE = "Once upon a time"
"""A prompt."""

BEFORE = 4
"""Tokens of the prompt that are decoded with the answer's."""

LONGEST = 1 << 16
"""Tokens of a model's context that are looked at where it does not say how many it takes."""


class Served:
    """The model of the run in ``place``, on ``device`` (empty: the best of this machine). Safe to use from threads.

    Raises:
        TrainingError: the run has no checkpoint, its model can't be made, or the device is not there.
    """

    def __init__(self, place: Path, device: str = "", choice: protocol.Choice = protocol.Choice.NEWEST) -> None:
        self.device = chosen_device(device)
        found, loaded, model = weights.model_of(place, choice)
        self.step = found.step
        try:
            self._model = model.to(self.device).eval()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise JobError(f"{self.device} can't be used: {error}", hint="choose another with --device") from error
        self._run, self._factory, self._lock = place.name, loaded.factory, threading.Lock()
        self._is_language = callable(getattr(self._factory, "tokens_of", None))

    @property
    def paths(self) -> tuple[str, ...]:
        return ("/predict", "/generate") if self._is_language else ("/predict",)

    @property
    def examples(self) -> dict[str, str]:
        """Bodies of requests that work, by path; of inputs that only the job knows there is none."""
        if not self._is_language:
            return {}
        found = {"/generate": {"prompt": EXAMPLE, "stream": True}}
        if not callable(getattr(self._factory, "predict", None)):
            found["/predict"] = {"inputs": [list(job.guard("tokens_of", self._factory.tokens_of, EXAMPLE))]}
        return {path: json.dumps(body) for path, body in found.items()}

    def about(self) -> Mapping[str, object]:
        return {"run": self._run, "step": self.step, "device": self.device, "paths": self.paths}

    def predict(self, inputs: Any) -> Any:
        """What the model gives for ``inputs``: a list with an entry for each sample, nested as the samples are.

        Raises:
            ValueError: they are no such list, or do not fit the model.
            JobError: the job's own code failed.
        """
        own = getattr(self._factory, "predict", None)
        with self._lock, torch.inference_mode():
            if callable(own):
                return _plain(job.guard("predict", own, self._model, inputs))
            try:
                tensor = torch.tensor(inputs)
            except (ValueError, TypeError, RuntimeError) as error:
                raise ValueError(f"inputs: {error}") from None
            if not tensor.is_floating_point():
                self._check(tensor)
            tensor = tensor.to(self.device)
            try:
                return _plain(_logits(self._forward(tensor)))
            except _MISFITS as error:
                raise ValueError(f"inputs of shape {tuple(tensor.shape)} do not fit the model: {error}") from error

    def _forward(self, tensor: Tensor) -> Any:
        """JSON writes 1.0 as 1, so whole numbers may be meant as tokens or as figures: the model decides."""
        as_figures = tensor.to(torch.get_default_dtype())
        if tensor.is_floating_point():
            return self._model(as_figures)
        try:
            return self._model(tensor)
        except (RuntimeError, TypeError):
            return self._model(as_figures)

    def generate(self, asked: Mapping[str, Any]) -> Iterator[str]:
        """Pieces of a text that goes on from ``prompt``.

        Args:
            asked: ``prompt``; ``max_tokens`` (64), ``temperature`` (0: the likeliest token each time), ``top_k`` (0:
                of all) and ``seed``.

        Raises:
            ValueError: one of them can't be right, or the model is none of language.
        """
        if not self._is_language:
            raise ValueError("this model is none of language: ask /predict")
        prompt = asked.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise ValueError('the body is {"prompt": "a text"}')
        count = _number(asked, "max_tokens", 64, 1, MAX_TOKENS, whole=True)
        temperature = _number(asked, "temperature", 0.0, 0.0, 100.0)
        top = _number(asked, "top_k", 0, 0, 1 << 31, whole=True)
        seed = _number(asked, "seed", 0, 0, 2**63 - 1, whole=True)
        return self._pieces(prompt, int(count), temperature, int(top), int(seed))

    def _pieces(self, prompt: str, count: int, temperature: float, top: int, seed: int) -> Iterator[str]:
        tokens: list[int] = list(job.guard("tokens_of", self._factory.tokens_of, prompt))
        if not tokens:
            raise ValueError("the prompt has no tokens")
        self._check(torch.tensor(tokens))
        said, kept = "", _Kept()
        # Some tokenizers drop the space before the first token that they decode: a few of the prompt's stand before it.
        before = tokens[-BEFORE:]
        begin, first = len(tokens), len(tokens) - len(before)
        known = self._text(before)
        end = getattr(self._factory, "end_token", None)
        chance = torch.Generator().manual_seed(seed)
        for _ in range(count):
            token = self._next(tokens, kept, temperature, top, chance)
            if token == end:
                break
            tokens.append(token)
            text = self._answer(tokens, begin, first, known)
            if text.endswith("\ufffd"):  # a character of several tokens that is not whole yet
                continue
            yield text[len(said) :]
            said = text
        text = self._answer(tokens, begin, first, known)
        if text != said:
            yield text[len(said) :]

    def _text(self, tokens: Sequence[int]) -> str:
        return str(job.guard("text_of", self._factory.text_of, list(tokens)))

    def _answer(self, tokens: Sequence[int], begin: int, first: int, known: str) -> str:
        """The text of the tokens from ``begin`` on; those from ``first`` to there are ``known`` text."""
        whole = self._text(tokens[first:])
        return whole[len(known) :] if whole.startswith(known) else self._text(tokens[begin:])

    def _check(self, tokens: Tensor) -> None:
        """Refuse numbers that are no tokens of the model: on a GPU one of them makes all later calls fail."""
        embeddings = getattr(self._model, "get_input_embeddings", None)
        known = getattr(embeddings(), "num_embeddings", None) if callable(embeddings) else None
        if known is not None and tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < known:
            raise ValueError(f"the model's tokens are whole numbers from 0 to {known - 1:,}")

    def _next(self, tokens: Sequence[int], kept: _Kept, temperature: float, top: int, chance: torch.Generator) -> int:
        with self._lock, torch.inference_mode():
            logits = self._after(tokens, kept).cpu().double()
            if not logits.isfinite().all():
                raise JobError("the model gave numbers that are not finite")
            if temperature == 0:
                return int(logits.argmax())
            if top:
                logits[logits < logits.topk(min(top, len(logits))).values[-1]] = -torch.inf
            # The best one at 0: what is divided by a small temperature must not overflow.
            shares = ((logits - logits.max()) / temperature).softmax(0)
            return int(torch.multinomial(shares, 1, generator=chance))

    def _after(self, tokens: Sequence[int], kept: _Kept) -> Tensor:
        """What the model gives for the token after these; with ``kept`` only the new ones are computed."""
        own, longest = (getattr(self._factory, name, None) for name in ("continued", "context_length"))
        most = longest(self._model) if callable(longest) else LONGEST
        if not callable(own) or len(tokens) > most:  # further on each token moves to another position
            seen = torch.tensor([tokens[-most:]], device=self.device)
            given: Tensor = _logits(job.guard("the model", self._model, seen))[0, -1]
            return given
        new = torch.tensor([tokens[kept.count :]], device=self.device)
        logits, kept.cache = job.guard("continued", own, self._model, new, kept.cache)
        kept.count = len(tokens)
        found: Tensor = logits[0, -1]
        return found


@dataclass
class _Kept:
    """What a model keeps of the first ``count`` tokens."""

    cache: Any = None
    count: int = 0


def chosen_device(wanted: str) -> str:
    """The device of that name, or of that kind (``cuda``: the first); empty: the best one, the CPU last.

    Raises:
        JobError: this machine has none of that name.
    """
    here = [name for kind in backend.BACKENDS.values() for name in kind.names()]
    if wanted in ("", *here):
        return wanted or here[0]
    first = next((name for name in here if name.partition(":")[0] == wanted), None)
    if first is None:
        raise JobError(f"it has no device {wanted!r}", hint=f"--device {' or '.join(here)}")
    return first


def _logits(given: Any) -> Any:
    """The tensor of what a model gives; Hugging Face's models have it as ``logits``."""
    return given.logits if hasattr(given, "logits") else given


def is_device_lost(error: BaseException | None) -> bool:
    """Whether ``error`` came of a device's failure, after which this process can't use the device any more."""
    return any(
        isinstance(each, RuntimeError) and str(each).startswith(DEVICE_FAILURES) and not is_out_of_memory(each)
        for each in chain(error)
    )


def _plain(value: Any) -> Any:
    """A value of tensors or numpy's arrays as JSON can hold it."""
    if callable(listed := getattr(value, "tolist", None)):
        return listed()
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _number(
    asked: Mapping[str, Any], name: str, default: float, least: float, most: float, *, whole: bool = False
) -> float:
    value = asked.get(name, default)
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        raise ValueError(f"{name}: a {'whole ' if whole else ''}number from {least:g} to {most:g}")
    return value
