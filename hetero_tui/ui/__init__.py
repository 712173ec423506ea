"""The terminal app: it renders :class:`~hetero_tui.state.State`, and a session carries out the commands of its keys.

Pure modules (``format``, ``palette``, ``look``, ``columns``, ``cells``, ``arrangement``, ``keys``, ``guards``,
``details``, ``sentences`` and the room ``draw``) decide what is shown and know nothing of Textual; ``app``, ``widgets``
and ``screens`` are thin around them, and ``view`` is what they hand over.
"""

import os

# Textual paints at the beats of a clock of 60 a second, so that a picture waits for up to 17 ms after its key. Ours are
# a few a second: a faster clock costs nothing.
os.environ.setdefault("TEXTUAL_FPS", "120")
