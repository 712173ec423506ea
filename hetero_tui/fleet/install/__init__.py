"""Installs an environment on each host: ``lock`` defines its packages, ``bootstrap`` installs on all hosts.

``sources`` fetches packages on the laptop, ``sending`` sends them, ``on_host`` has the steps on a host, and
``verification`` tests the result. Nothing outside ``~/.hetero-tui/<cluster>/env`` and ``.../install`` is written there.
"""
