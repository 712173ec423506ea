"""Wheels for tests of installing: each has its package's name and version, and leads to the tests' own packages."""

from __future__ import annotations

import base64
import hashlib
import sysconfig
import zipfile
from pathlib import Path

from hetero_tui.fleet.install.lock import NODE_PACKAGES, pins


def thin_wheels(folder: Path) -> Path:
    """All that a host needs, so that no gigabytes move; the folder is made."""
    folder.mkdir()
    for name in NODE_PACKAGES:
        thin_wheel(folder, name, pins()[name] + ("+cpu" if name == "torch" else ""))
    return folder


def thin_wheel(folder: Path, name: str, version: str) -> None:
    """A wheel of that name and version whose one file has Python look in the tests' own environment too."""
    base = f"{name.replace('-', '_')}-{version}"
    files = {
        f"{name.replace('-', '_')}_thin.pth": sysconfig.get_path("purelib") + "\n",
        f"{base}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{base}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{base}.dist-info/RECORD"
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()) for path, text in files.items()}
    lines = [f"{path},sha256={digests[path].decode().rstrip('=')},{len(text)}" for path, text in files.items()]
    files[record] = "\n".join([*lines, f"{record},,"]) + "\n"
    with zipfile.ZipFile(folder / f"{base}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
