"""Says which of a model's layers normalise by statistics of the samples, and which buffers keep these."""

from __future__ import annotations

from torch import nn

NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)  # noqa: SLF001 - their common bases
"""Modules whose running statistics are averaged, as under data parallel training."""


def uses_batch_statistics(model: nn.Module) -> bool:
    """Whether the model normalises by the statistics of the samples that are together."""
    batch_norm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - see NORMS
    return any(
        isinstance(module, batch_norm) and (module.training or not module.track_running_stats)
        for module in model.modules()
    )


def with_running_statistics(model: nn.Module) -> bool:
    """Have those layers use their running statistics, in training, too; False: one of them has none."""
    batch_norm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - see NORMS
    layers = [each for each in model.modules() if isinstance(each, batch_norm)]
    for each in layers:
        each.training = False
    return all(each.track_running_stats for each in layers)


def running_statistics(model: nn.Module) -> frozenset[str]:
    """Names of the buffers that belong to normalisation layers."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, NORMS)
        for name, _ in module.named_buffers(recurse=False)
    )
