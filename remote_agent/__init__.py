"""The agent: the code that is sent to each machine and runs there. It never imports ``hetero_tui``.

``protocol`` is the wire to the laptop; ``probe`` looks at the machine before anything is installed; ``host`` keeps
the machine in its cluster; ``sampling`` reads live use; ``training`` is the engine; ``jobs`` are the ready-made jobs.
"""
