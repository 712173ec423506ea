"""An environment of its own on each host: ``lock`` says which packages, ``bootstrap`` has all hosts make theirs.

``sources`` has what the laptop fetches, ``sending`` how hosts get it, ``on_host`` what they do, ``verification`` how it
is shown to work. Nothing outside ``~/.hetero-tui/<cluster>/env`` and ``.../install`` is written there.
"""
