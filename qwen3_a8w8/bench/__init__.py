"""Benchmarks of this machine: every figure beside the limit that it is held against.

`machine.py` measures the limits, `kernels.py` and `engine.py` what is held against
them, `report.py` writes both. Nothing here decides what is fast enough.
"""
