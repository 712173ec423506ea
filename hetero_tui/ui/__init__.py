"""The terminal app: it renders :class:`~hetero_tui.state.State` and posts :class:`~hetero_tui.intents.Intents`.

Pure modules (``format``, ``palette``, ``look``, ``columns``, ``cells``, ``arrangement``, ``guards``, ``details``,
``sentences`` and the room ``draw``) decide what is shown and know nothing of Textual; ``widgets`` and ``screens`` are
thin around them.
"""
