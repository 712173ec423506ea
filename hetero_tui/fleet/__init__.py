"""The machines as one fleet: probes and installs hosts, starts and stops the cluster, follows live use.

``agent`` sends our code to a host and calls it, ``probing`` collects facts, ``preflight`` judges them, ``bring_up`` and
``teardown`` start and stop Ray, ``ledger`` records what was done to each host, ``telemetry`` follows live use.
"""
