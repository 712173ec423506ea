"""Checks a job's model and optimizer for problems before any process is started.

The optimizers that a run can step are those whose ``step`` needs nothing but gradients: it is made on a server, or on
each worker, which have no batch at hand.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from remote_agent.models.nf4 import DIGEST
from remote_agent.strategies import spec_of
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.shared.flat import LocalState
from remote_agent.training.user_code.names import TURNS

_ONE = (
    "return one optimizer, with a parameter group for each part of the model:"
    " torch.optim.Adam([{'params': a.parameters()}, {'params': b.parameters(), 'lr': 1e-4}]); or one that steps"
    f" several in its step() (docs/your-own-model.md); {TURNS}"
)
SAME = "create_model must build the same layers wherever it is called: draw sizes from nothing but the seed"


def check_model(model: nn.Module) -> None:
    """Refuse a model that can't be trained; expanded buffers get memory of their own, which can be written to.

    Raises:
        JobError: it has no parameter to train, one without values, or one whose memory is another tensor's too; or a
            tensor that can't be sent, being sparse.
    """
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if parameter.is_meta:
            hint = "build the model where its values are, or call model.to_empty(device='cpu') and initialise it"
            raise JobError(f"the parameter {name} is on the meta device and has no values", hint=hint)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise JobError("the model has no parameter to train", hint="leave requires_grad on for at least one parameter")
    for name, tensor in (*parameters.items(), *model.named_buffers()):
        if tensor.layout != torch.strided:
            kind = str(tensor.layout).removeprefix("torch.")
            hint = "register its indices and its values as two buffers, and make it of them in forward"
            raise JobError(f"{name} is a {kind} tensor, which can't be sent to workers or saved", hint=hint)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            is_plain = type(buffer) is Tensor  # a lazy one has no shape
            if is_plain and any(n > 1 and not step for n, step in zip(buffer.shape, buffer.stride(), strict=True)):
                module._buffers[name] = buffer.contiguous()  # noqa: SLF001 - whatever its __setattr__ does
    _refuse_shared_memory(model)


def _refuse_shared_memory(model: nn.Module) -> None:
    """Refuse a trained parameter that lies in the memory of another tensor.

    Workers put parameters into buffers of their own, and from then on the other one would not follow it.

    Raises:
        JobError: there is one.
    """
    last = (0, "", False)
    for begin, end, name, trained in sorted(_spans(model)):
        if begin < last[0] and (trained or last[2]):
            raise JobError(
                f"{last[1]} and {name} lie in the same memory: in training only one of them would change",
                hint="tie weights by using one Parameter in both places (b.weight = a.weight), take views of a weight"
                " in forward, or copy it: a.weight.detach().clone()",
            )
        last = max(last, (end, name, trained))


def _spans(model: nn.Module) -> Iterator[tuple[int, int, str, bool]]:
    """Where each tensor of the model lies: the first address, that after the last, its name, whether it is trained."""
    named = [*model.named_parameters(), *model.named_buffers()]
    known = {id(tensor) for _, tensor in named}
    for path, module in model.named_modules():
        if not type(module).__module__.startswith("torch."):
            held = [(name, value) for name, value in vars(module).items() if isinstance(value, Tensor)]
            named += [(f"{path}.{name}" if path else name, value) for name, value in held if id(value) not in known]
    for name, tensor in named:
        is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_meta
        if is_plain and tensor.numel():
            reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            begin = tensor.data_ptr()
            trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            yield begin, begin + reach * tensor.element_size(), name, trained


def check_optimizer(made: object, model: nn.Module) -> torch.optim.Optimizer:
    """What ``create_optimizer`` gave, when a run can step it.

    Raises:
        JobError: it is no optimizer, several, one that calls the loss itself, or one over other parameters.
    """
    if isinstance(made, Mapping) and "optimizer" in made:
        hint = "return its optimizer, and the scheduler from create_scheduler(optimizer, config)"
        raise JobError("create_optimizer gave a dict with an optimizer, as Lightning has it", hint=hint)
    if isinstance(made, list | tuple | Mapping):
        raise JobError(f"create_optimizer gave a {_kind(made)}, where a run has one optimizer", hint=_ONE)
    if not isinstance(made, torch.optim.Optimizer):
        raise JobError(f"create_optimizer gave a {_kind(made)}", hint="return a torch.optim.Optimizer over the model")
    if _needs_closure(made.step):
        raise JobError(
            f"{_kind(made)} calls the loss again within a step (a closure), which one of many workers can't answer",
            hint="use an optimizer whose step() needs gradients alone: SGD, Adam, AdamW, Adafactor or one of your own",
        )
    known = {id(parameter) for parameter in model.parameters()}
    given = [parameter for group in made.param_groups for parameter in group["params"]]
    foreign = [parameter for parameter in given if id(parameter) not in known]
    if len(foreign) == len(given):
        hint = "build it over the parameters of the model that create_optimizer gets, not of another copy"
        raise JobError("the optimizer has none of the model's parameters", hint=hint)
    if foreign:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in foreign[:3])
        raise JobError(
            f"the optimizer has parameters that are not the model's: {len(foreign)}, of shape {shapes}",
            hint="make them a part of the model (self.loss = ..., nn.Parameter), so that every worker has them",
        )
    return made


def refuse_scheduled(optimizer: torch.optim.Optimizer) -> None:
    """Raise JobError if a scheduler was made over an optimizer that the engine does not know, and would not step."""
    if getattr(optimizer.step, "_wrapped_by_lr_sched", False):  # torch's LRScheduler marks it
        raise JobError(
            "create_optimizer made a learning rate scheduler, which nothing would step",
            hint="return it from create_scheduler(optimizer, config), or set schedule and warmup_steps",
        )


def refuse_hooks(model: nn.Module, config: TrainingConfig) -> None:
    """Raise JobError for hooks on gradients if they would see those of a part of the batch only."""
    whole = config.unit >= config.batch_size or spec_of(config.strategy).rounds
    if whole and config.precision != "fp16":
        return
    found = [f"the parameter {name}" for name, parameter in model.named_parameters() if _has_hooks(parameter)]
    found += [f"the module {name or 'itself'}" for name, module in model.named_modules() if _has_hooks(module)]
    if found:
        cause = f"{found[0]} has a gradient hook, which would see the gradient of a part of the batch only"
        raise JobError(
            cause,
            hint="use clip_norm, or do it in the optimizer or in loss; with unit set to the batch size one device"
            " computes the whole batch, and hooks see what they see in plain torch",
        )


def _has_hooks(owner: nn.Module | nn.Parameter) -> bool:
    names = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    return any(getattr(owner, name, None) for name in names)


def refuse_changes(bystanders: LocalState) -> None:
    """Raise JobError if an optimizer's step changed what it does not train."""
    name = bystanders.changed()
    if name:
        raise JobError(
            f"the optimizer's step changes {name}, which is not trained: the change would be lost",
            hint="change it in loss or forward: it is then kept the same on all devices",
        )


def _kind(made: object) -> str:
    return type(made).__name__


def _needs_closure(step: Callable[..., Any]) -> bool:
    """Whether ``step`` has an argument that must be given, beside the ``self`` of one that a scheduler wrapped."""
    try:
        parameters = inspect.signature(step).parameters
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        name != "self" and entry.kind in positional and entry.default is inspect.Parameter.empty
        for name, entry in parameters.items()
    )


_ORDER = "order"


def first_state(weights: Mapping[str, Tensor], model: nn.Module) -> bytes:
    """The run's first weights for :func:`load_first`, with the order of the trained parameters."""
    order = {_ORDER: json.dumps(list(flat.trained(model)))}
    return safetensors.torch.save(dict(weights), metadata=order) if weights else b""


def order_in(state: bytes) -> list[str]:
    """The order that :func:`first_state` was given."""
    size = int.from_bytes(state[:8], "little")
    header = json.loads(state[8 : 8 + size])
    found: list[str] = json.loads(header.get("__metadata__", {}).get(_ORDER, "[]"))
    return found


def load_first(model: nn.Module, state: bytes) -> None:
    """Bring the run's first weights (safetensors) into a model that ``create_model`` gave in another process.

    Nothing is done where they are empty: they come later.

    Lazy layers (:mod:`~remote_agent.training.coordinator.lazy`) get their shapes from it.

    Raises:
        JobError: it is another model than the one that they are of.
    """
    if state:
        cause = "create_model gave another model on this host than on the coordinator's"
        weights, own = safetensors.torch.load(state), model.state_dict()
        with torch.no_grad():
            for name, parameter in flat.trained(model).items():  # a state_dict of the user's own may leave it out
                if name in weights and name not in own and weights[name].shape == parameter.shape:
                    parameter.copy_(weights.pop(name))
        for name in weights.keys() & own.keys():
            if weights[name].dtype != own[name].dtype:
                here, there = (str(each[name].dtype).removeprefix("torch.") for each in (own, weights))
                raise JobError(
                    f"{cause}: {name} is {here} here and {there} there",
                    hint="say the dtype in create_model, for example model.double(): torch.set_default_dtype holds in"
                    " the process that calls it alone",
                )
        load(model, weights, cause, SAME)
        for here, there in zip(flat.trained(model), order_in(state), strict=False):
            if here != there:
                raise JobError(
                    f"create_model gave its layers in another order on this host: {here} in the place of {there}",
                    hint="make them from a list or from sorted(...): the order of a set of texts is another one in each"
                    " process",
                )


def load(model: nn.Module, weights: Mapping[str, Tensor], cause: str, hint: str) -> None:
    """Bring weights and buffers into a model; a ``JobError`` with ``cause`` and ``hint``: they are of another one."""
    own = {name for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    different = sorted(name for name in own ^ weights.keys() if not name.endswith(DIGEST))  # older checkpoints lack it
    if different:
        raise JobError(f"{cause}: {different[0]} is in one of them only", hint=hint)
    try:
        model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise JobError(f"{cause}: {str(error).splitlines()[-1].strip()}", hint=hint) from error
