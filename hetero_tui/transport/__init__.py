"""How one host is reached: :class:`Transport` is the seam, ``ssh`` and ``local`` are its two forms."""

from hetero_tui.transport.base import Completed, Transport

__all__ = ["Completed", "Transport"]
