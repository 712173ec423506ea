"""Which machines there are: ``schema`` says what a good inventory is, ``file`` reads and edits the YAML."""

from hetero_tui.inventory.schema import Host, Inventory

__all__ = ["Host", "Inventory"]
