"""The main screen and the dialogs over it. A dialog closes with escape, and its default answer changes nothing."""
