"""The scripts of ``benchmarks.compatibility``, how they are run and compared, and an accelerator made of the CPU."""
