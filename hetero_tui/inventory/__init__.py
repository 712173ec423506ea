"""The inventory: the list of machines. ``schema`` defines a valid inventory, ``file`` reads and edits the YAML."""

from hetero_tui.inventory.schema import Host, Inventory

__all__ = ["Host", "Inventory"]
