"""Live use of one machine, about once a second: one file per vendor, each with ``read()``; what can't be read is None.

``python -m remote_agent.sampling --folder F --interval 1.0`` prints a ``HostSample`` a line until its reader is gone.
"""
