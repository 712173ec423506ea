"""Mistakes in models, losses, data and optimizers."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from remote_agent.training import TrainingConfig

Made = tuple[Any, Any, TrainingConfig]
CLASSES, FEATURES, SAMPLES, BAD = 3, 6, 256, 200


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A mistake: what to train; ``words`` have to be in the line that is shown."""

    name: str
    did: str
    make: Callable[[], Made]
    words: tuple[str, ...] = field(default=())


class Factory:
    """A job without a mistake."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


class Points(Dataset[Any]):
    """Data without a mistake."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.full((FEATURES,), index / SAMPLES), index % CLASSES


MISTAKES: list[Mistake] = []


def mistake(did: str, *words: str, **settings: Any) -> Callable[[Any], Any]:
    """Of a factory, or of data; ``settings`` are the configuration's."""

    def known(kind: Any) -> Any:
        def make() -> Made:
            config = TrainingConfig(**{"batch_size": 32, "num_iterations": 40, "num_cpu_workers": 2} | settings)
            is_data = not hasattr(kind, "create_model")
            return (Factory(), kind(), config) if is_data else (kind(), Points(), config)

        MISTAKES.append(Mistake(name=kind.__name__, did=did, make=make, words=words))
        return kind

    return known


# --- The model -------------------------------------------------------------------------------------------------------


@mistake("`create_model` raises", "create_model", "jobs.py", "FileNotFoundError", "weights.pt")
class NoWeightsFile(Factory):
    def create_model(self) -> nn.Module:
        torch.load("weights.pt")
        return super().create_model()


@mistake("`create_model` returns nothing", "create_model", "NoneType")
class NoModel(Factory):
    def create_model(self) -> Any:
        super().create_model()


@mistake("every parameter is frozen", "parameter to train", "requires_grad")
class Frozen(Factory):
    def create_model(self) -> nn.Module:
        return super().create_model().requires_grad_(False)


@mistake("the model's layers do not fit the data", "loss", "mat1 and mat2 shapes")
class WrongShapes(Factory):
    def create_model(self) -> nn.Module:
        return nn.Linear(128, CLASSES)


class Unfit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


@mistake("a layer of an own module does not fit", "forward of Unfit", "jobs.py", "mat1 and mat2 shapes")
class WrongShapesInside(Factory):
    def create_model(self) -> nn.Module:
        return Unfit()


@mistake("the model is moved to `cuda` where there is none", "create_model", "jobs.py", "CUDA")
class OnCuda(Factory):
    def create_model(self) -> nn.Module:
        return super().create_model().to("cuda:7")


# --- The loss --------------------------------------------------------------------------------------------------------


class WithLoss(Factory):
    """A job whose loss is a mistake's."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1])


@mistake("`loss` returns a float", "loss", "float")
class LossIsNumber(WithLoss):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch).item()


@mistake("`loss` returns one value a sample", "loss", "scalar")
class LossOfEach(WithLoss):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@mistake("`loss` returns a detached tensor", "loss", "grad")
class LossDetached(WithLoss):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch).detach()


@mistake("`loss` takes a column that the batch has not", "loss", "jobs.py", "labels")
class NoSuchColumn(WithLoss):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), {"x": batch[0]}["labels"])


@mistake("the loss becomes NaN", "nan", "learning rate")
class LossIsNan(WithLoss):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch) * float("nan")


@mistake("`loss` calls `sys.exit`", "loss", "jobs.py", "sys.exit(3)")
class Exits(WithLoss):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        sys.exit(3)


@mistake("`loss` lacks an argument", "loss", "TypeError")
class LossOfOne(Factory):
    def loss(self, batch: Any) -> Any:
        return batch


@mistake("targets are no class of the model's", "loss", "out of bounds")
class TargetsOutOfRange(WithLoss):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1] + 7)


# --- The optimizer ---------------------------------------------------------------------------------------------------


@mistake("`create_optimizer` over another model's parameters", "create_optimizer")
class OthersParameters(Factory):
    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Any:
        return torch.optim.SGD(nn.Linear(FEATURES, CLASSES).parameters(), lr=0.1)


@mistake("`create_optimizer` returns a class", "create_optimizer")
class OptimizersClass(Factory):
    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Any:
        return torch.optim.SGD


# --- What is sent ----------------------------------------------------------------------------------------------------


@mistake("the job holds an open file", "sent", "open files")
class OpenFile(Factory):
    def __init__(self) -> None:
        self.log = Path(os.devnull).open("w")  # noqa: SIM115 - the mistake


@mistake("the data holds an open file", "data can't be sent")
class OpenFileInData(Points):
    def __init__(self) -> None:
        self.file = Path(os.devnull).open("rb")  # noqa: SIM115 - the mistake


# --- The data --------------------------------------------------------------------------------------------------------


@mistake("the data is empty", "0 samples")
class Empty(Points):
    def __len__(self) -> int:
        return 0


@mistake("there are fewer samples than a batch has", "20 samples", "batch_size")
class Few(Points):
    def __len__(self) -> int:
        return 20


@mistake("`__len__` is larger than the data", "__getitem__", "jobs.py", "IndexError")
class LongerThanItIs(Points):
    def __getitem__(self, index: int) -> Any:
        if index >= 100:
            raise IndexError(index)
        return super().__getitem__(index)


@mistake("one sample has another shape", str(BAD), "put together")
class AnotherShape(Points):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(FEATURES + (index == BAD)), index % CLASSES


@mistake("`__getitem__` returns None for a sample", "None")
class GivesNone(Points):
    def __getitem__(self, index: int) -> Any:
        return None if index == BAD else super().__getitem__(index)


@mistake("a sample's file is missing", f"__getitem__({BAD})", "jobs.py", "FileNotFoundError")
class MissingFile(Points):
    def __getitem__(self, index: int) -> Any:
        if index == BAD:
            Path("image.png").read_bytes()
        return super().__getitem__(index)


@mistake("the data is a number", "int", "torch Dataset")
def number() -> Any:
    return 7


# --- What ends, or holds up, the process -----------------------------------------------------------------------------


@mistake("a sample's code crashes (SIGSEGV)", f"sample {BAD}", "twice", "SIGSEGV", "jobs.py")
class Crashes(Points):
    def __getitem__(self, index: int) -> Any:
        if index == BAD:
            ctypes.string_at(0)
        return super().__getitem__(index)


@mistake("a sample's code calls `os._exit`", f"sample {BAD}", "twice", "os._exit(3)")
class Leaves(Points):
    def __getitem__(self, index: int) -> Any:
        if index == BAD:
            os._exit(3)
        return super().__getitem__(index)


@mistake("a sample's code never returns", f"sample {BAD}", "no return", "jobs.py", slice_deadline_s=5)
class NeverReturns(Points):
    def __getitem__(self, index: int) -> Any:
        while index == BAD:
            time.sleep(0.1)
        return super().__getitem__(index)


# --- The configuration -----------------------------------------------------------------------------------------------


@mistake("more GPUs than there are", "num_gpu_workers=9", num_gpu_workers=9)
class NineGpus(Factory):
    pass


@mistake('`TrainingConfig(batch_size="32")`', "batch_size", batch_size="32")
class TextAsNumber(Factory):
    pass
