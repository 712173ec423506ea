"""Shows that an environment works: imports what a host needs, and multiplies two matrices on the devices that train.

One file, sent on the command line before the agent is there; run by the environment's own Python. It prints one line of
JSON. A build of torch without kernels for a card, or a driver that does not fit, shows at the first operation only; it
may end the process, so that the device is printed before.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from importlib import metadata
from typing import Any

PACKAGES = ("numpy", "psutil", "ray", "safetensors", "sklearn", "torch")
SIZE = 256
"""Rows and columns of the matrices."""


def main() -> None:
    """Look, and print. ``no-trace``, the first argument, keeps Python from writing what it compiles; devices follow."""
    sys.dont_write_bytecode = sys.argv[1] == "no-trace"
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as for Ray's processes: the order of nvidia-smi
    errors = [error for error in (_import_error(name) for name in PACKAGES) if error]
    found: dict[str, Any] = {"verified": 1, "python": platform.python_version(), "errors": errors}
    found["versions"] = {name: _version(name) for name in ("ray", "torch")}
    found["devices"] = [] if any(error.startswith("torch") for error in errors) else _tried(sys.argv[2:])
    print(json.dumps(found), flush=True)


def _import_error(name: str) -> str:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a broken wheel or library may raise anything
        return f"{name}: {type(error).__name__}: {str(error)[:300]}"
    return ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _tried(devices: list[str]) -> list[dict[str, Any]]:
    import torch

    there = _devices(torch)
    results = []
    for device in dict.fromkeys(["cpu", *devices]):
        print(f"trying {device}", flush=True)
        missing = {"device": device, "seconds": 0.0, "error": f"torch {torch.__version__} does not find it"}
        results.append(_try(torch, device) if device in there else missing)
    return results


def _devices(torch: Any) -> list[str]:
    names = ["cpu"]
    accelerator = torch.accelerator.current_accelerator()  # the kind that this torch is built for
    if accelerator is not None and torch.accelerator.is_available():
        count = torch.accelerator.device_count()
        names += ["mps"] if accelerator.type == "mps" else [f"{accelerator.type}:{each}" for each in range(count)]
    return names


def _try(torch: Any, device: str) -> dict[str, Any]:
    """Multiply on one device: 2 by 3, so that every entry is known without another device's help."""
    began = time.perf_counter()
    try:
        product = torch.full((SIZE, SIZE), 2.0, device=device) @ torch.full((SIZE, SIZE), 3.0, device=device)
        error = "" if bool((product.cpu() == 6.0 * SIZE).all()) else "a matrix product is wrong"
    except Exception as failure:  # noqa: BLE001 - a driver may raise anything
        error = f"{type(failure).__name__}: {str(failure).splitlines()[0][:300] if str(failure) else ''}"
    return {"device": device, "seconds": round(time.perf_counter() - began, 4), "error": error}


if __name__ == "__main__":
    main()
