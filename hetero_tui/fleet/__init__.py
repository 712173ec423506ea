"""The machines as one fleet: what they are, what is missing, cluster up, live use, cluster down.

``agent`` sends and calls our code on a host, ``probing`` asks what it is, ``preflight`` judges, ``bring_up`` and
``teardown`` start and stop Ray, ``ledger`` records what was done to whom, ``telemetry`` follows live use.
"""
