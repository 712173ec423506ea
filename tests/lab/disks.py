"""Disks of the lab's hosts: an ext4 file system in a file, which can be as slow as a card of a single-board computer.

The kernel limits what is written to the device, so that everything that waits for the disk (fsync) waits as on a real
one. Only these devices are slow, not the computer's own disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab.network import LabError, command

_LIMITS = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")


def add(image: Path, folder: Path, megabytes: int) -> None:
    """Make a disk in the file ``image``, and mount it on ``folder``."""
    with image.open("xb") as file:
        file.truncate(megabytes << 20)
    command(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)])
    command(["mount", "-o", "loop", str(image), str(folder)])


def remove(folder: Path) -> None:
    """Unmount a disk; nothing happens where there is none."""
    if folder.is_mount():
        limit(folder, None)
        command(["umount", "--lazy", str(folder)])


def limit(folder: Path, bytes_s: int | None) -> None:
    """Limit what is written to the disk in each second; None: no limit.

    Raises:
        LabError: this computer's kernel can't.
    """
    number = folder.stat().st_dev
    try:
        _LIMITS.write_text(f"{os.major(number)}:{os.minor(number)} {bytes_s or 0}")
    except OSError as error:
        if bytes_s is not None:
            raise LabError(f"a slow disk needs {_LIMITS}: {error.strerror}") from error
