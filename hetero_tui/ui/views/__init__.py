"""The six views between header and footer. Each draws a :class:`~hetero_tui.ui.view.View` into the room that it has."""
